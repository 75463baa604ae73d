"""The same defence, batches and optimiser give the same weights under Lightning, the Trainer and a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import leakscope
from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError
from leakscope.testing.synthetic import image_set, small_split

DATA = image_set(24, "private")
RATE, BATCH, EPOCHS = 0.01, 8, 2
#: A penalty that looks at the data before epochs and at the rate, one with an act after each step, and one that owns
#: the backward pass.
DEFENSES = ["cem", "cem:two_stage=true"]  # gong++ takes half a minute and is held to our loop in test_defended.py

ensure_torchvision()


def _net(spec: str) -> leakscope.Defended:
    plain = small_split()
    return leakscope.Defended(plain.model, plain.cut, spec, data=DATA, epochs=EPOCHS)


def _expected(spec: str) -> list[torch.Tensor]:
    net = _net(spec)
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    for _ in range(EPOCHS):
        net.start_epoch(optimizer)
        for start in range(0, len(DATA), BATCH):
            optimizer.zero_grad()
            net.loss(DATA.images[start : start + BATCH], DATA.labels[start : start + BATCH]).backward()
            optimizer.step()
    return [p.detach() for p in net.parameters()]


def _same(found: leakscope.Defended, spec: str) -> None:
    assert int(found.epoch) == EPOCHS - 1
    for own, wanted in zip(found.parameters(), _expected(spec), strict=True):
        assert torch.allclose(own.detach(), wanted, atol=1e-6)


@pytest.mark.parametrize("spec", DEFENSES)
@pytest.mark.filterwarnings("ignore")
def test_lightning(spec: str, tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")
    from leakscope.integrations.lightning import DefenseCallback

    class Net(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = _net(spec)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return self.net.loss(*batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.net.parameters(), RATE)

    module = Net()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = pl.Trainer(
        max_epochs=EPOCHS, callbacks=[DefenseCallback()], enable_model_summary=False, default_root_dir=tmp_path, **quiet
    )
    trainer.fit(module, DataLoader(TensorDataset(DATA.images, DATA.labels), BATCH))
    _same(module.net, spec)


class _Items(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixel_values": DATA.images[index], "labels": int(DATA.labels[index])}


@pytest.mark.parametrize("spec", DEFENSES)
@pytest.mark.filterwarnings("ignore")
def test_hugging_face(spec: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    pytest.importorskip("accelerate", reason="the extra huggingface is not installed")
    from leakscope.integrations.huggingface import DefendedTrainerMixin

    class Trainer(DefendedTrainerMixin, transformers.Trainer):  # type: ignore[misc, name-defined]
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    net = _net(spec)
    arguments = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, learning_rate=RATE,
        lr_scheduler_type="constant", max_grad_norm=0.0, report_to="none", save_strategy="no", use_cpu=True,
        disable_tqdm=True, weight_decay=0.0,
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    trainer = Trainer(net, arguments, train_dataset=_Items(), eval_dataset=_Items(), optimizers=(optimizer, None))
    trainer.train()
    _same(net, spec)
    found = trainer.predict(_Items())
    with torch.no_grad():
        assert torch.allclose(torch.from_numpy(found.predictions), net.eval()(DATA.images), atol=1e-5)


def test_a_network_without_a_defence_is_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    from leakscope.integrations.huggingface import DefendedTrainerMixin

    class Trainer(DefendedTrainerMixin, transformers.Trainer):  # type: ignore[misc, name-defined]
        pass

    with pytest.raises(UsageError, match=r"leakscope\.Defended"):
        Trainer(torch.nn.Linear(2, 2), None)
