"""Defences under the Hugging Face `Trainer`: `pip install 'leakscope[huggingface]'`."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError
from leakscope.experiments.defended import Defended

try:
    ensure_torchvision()  # which transformers imports for pictures
    from transformers import TrainerCallback
except ImportError:
    raise UsageError("this needs transformers; pip install 'leakscope[huggingface]'") from None


class _EpochStarts(TrainerCallback):  # type: ignore[misc]  # transformers is not seen by the type checker
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        optimizer = given["optimizer"]
        # accelerate wraps the optimiser that really steps.
        _defended(given["model"]).start_epoch(getattr(optimizer, "optimizer", optimizer), round(state.epoch or 0))


class DefendedTrainerMixin:
    """Put before `Trainer`; its `model` is a `leakscope.Defended`.

        class DefendedTrainer(DefendedTrainerMixin, Trainer): ...

        net = leakscope.Defended(model, "layer2", "nopeek", epochs=3)
        DefendedTrainer(net, TrainingArguments("out", num_train_epochs=3), train_dataset=pictures).train()

    Items of the data are mappings with the pictures, in [0, 1], and the labels.
    """

    picture_key: ClassVar[str] = "pixel_values"
    label_key: ClassVar[str] = "labels"

    def __init__(self, model: Any, args: Any, *more: Any, **settings: Any) -> None:
        _defended(model)
        args.remove_unused_columns = False  # it would drop the pictures, which `forward` calls x
        args.label_names = args.label_names or [self.label_key]  # else it evaluates without our loss
        super().__init__(model, args, *more, **settings)  # type: ignore[call-arg]  # of Trainer
        self.add_callback(_EpochStarts())  # type: ignore[attr-defined]

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        network = _defended(model)
        x: Tensor = inputs[self.picture_key]
        loss = network.loss(x, inputs[self.label_key])
        return (loss, {"loss": loss, "logits": network.last_scores}) if return_outputs else loss


def _defended(model: Any) -> Defended:
    """The network inside whatever distributed training wrapped around it."""
    found = getattr(model, "module", model)
    if not isinstance(found, Defended):
        raise UsageError(f"the model is {type(found).__name__}; give a leakscope.Defended around it")
    return found
