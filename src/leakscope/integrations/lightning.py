"""Defences under Lightning: `pip install 'leakscope[lightning]'`."""

from __future__ import annotations

from typing import Any

from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError
from leakscope.experiments.defended import Defended

try:
    ensure_torchvision()  # which torchmetrics, and so Lightning, imports
    from lightning.pytorch import Callback
except ImportError:
    raise UsageError("this needs Lightning; pip install 'leakscope[lightning]'") from None


class DefenseCallback(Callback):  # type: ignore[misc]  # Lightning is not seen by the type checker
    """Tells the `Defended` networks of a LightningModule that an epoch starts.

        class Net(LightningModule):
            def __init__(self):
                super().__init__()
                self.net = leakscope.Defended(model, "layer2", "nopeek", epochs=20)
            def training_step(self, batch, _):
                return self.net.loss(*batch)
            def configure_optimizers(self):
                return torch.optim.AdamW(self.net.parameters())

        Trainer(max_epochs=20, callbacks=[DefenseCallback()]).fit(Net(), loader)

    Give the optimiser `self.net.parameters()`: an attacker inside a defence has an optimiser of its own.
    """

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        networks = [module for module in pl_module.modules() if isinstance(module, Defended)]
        if not networks:
            raise UsageError(f"{type(pl_module).__name__} holds no leakscope.Defended; make one its network")
        for network in networks:
            network.start_epoch(_optimizer_of(network, trainer.optimizers), trainer.current_epoch)


def _optimizer_of(network: Defended, optimizers: list[Any]) -> Any:
    """The optimiser that steps the network."""
    own = {id(parameter) for parameter in network.parameters()}
    for optimizer in optimizers:
        if any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
            return optimizer
    raise UsageError("no optimiser steps the defended network; give one its parameters in configure_optimizers")
