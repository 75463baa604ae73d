"""A defence inside your own training loop."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense, build_defense, members
from leakscope.core.errors import UsageError
from leakscope.core.model import Normalize, SplitModel
from leakscope.data.images import checked, from_torch
from leakscope.experiments.training_step import Moment, losses, release_rng, set_up, stepped


class Defended(nn.Module):
    """A network with a defence, to be trained by a loop of yours.

        net = leakscope.Defended(model, "layer2", "cem+gaussian:sigma=0.1", data=pictures, epochs=20)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(20):
            net.start_epoch(optimizer)
            for x, y in loader:
                optimizer.zero_grad()
                net.loss(x, y).backward()
                optimizer.step()

    `model` is copied, since a defence may rebuild it. `data` is what it is trained on (a pair of tensors, a
    `Dataset`, a `DataLoader`), for defences that look at it; others do without. Pixels are in [0, 1] and
    `normalize` is a layer of the network. In eval mode `loss` is the task's alone. What a defence does after a
    step happens when the optimiser steps; what it does instead of `backward`, in `backward`.
    """

    #: Not part of a copy or of a saved file.
    _passing = ("_optimizer", "_hook", "_rng", "_data", "last_scores")
    _optimizer: Callable[[], torch.optim.Optimizer | None] | None = None
    _hook: Any = None
    _rng: torch.Generator | None = None
    _data: Any = None
    #: Of the last batch, for a running accuracy.
    last_scores: Tensor | None = None
    epoch: Tensor  # that is under way; −1 before the first

    def __init__(
        self,
        model: nn.Module,
        cut: str,
        defense: str | dict[str, Any] | list[Any] | Defense = "none",
        *,
        data: Any = None,
        epochs: int = 10,
        seed: int = 0,
        normalize: nn.Module | tuple[tuple[float, ...], tuple[float, ...]] | None = None,
    ) -> None:
        super().__init__()
        if epochs < 1:
            raise UsageError("epochs must be 1 or more: defences follow a plan over all of training")
        own = build_defense(defense)
        if any(type(part).augment is not Defense.augment for part in members(own)):
            raise UsageError("this defence chooses the training pictures itself; use leakscope.train")
        layer = Normalize(*normalize) if isinstance(normalize, tuple) else normalize
        self._data = _pictures(data)
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        plain = SplitModel(copy.deepcopy(model), cut, normalize=layer, defense=own).to(device)
        with seeds.ambient(seed, "target", "init"):
            self.split = own.rebuild(plain.eval(), self._data.images[:2].to(device)).train()
        self.aux = set_up(self.split, self._data, seed).to(device)
        self._stepped = {id(parameter) for parameter in stepped(self.split, self.aux)}
        self.epochs, self.seed = epochs, seed
        self.register_buffer("epoch", torch.tensor(-1))

    @property
    def defense(self) -> Defense:
        return self.split.defense

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that your optimiser steps; an attacker inside a defence has an optimiser of its own."""
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            if id(parameter) in self._stepped:
                yield name, parameter

    def start_epoch(self, optimizer: torch.optim.Optimizer, epoch: int | None = None) -> None:
        """To be called once before every epoch; `epoch` counts from 0, and from the last one when left out."""
        known = None if self._optimizer is None else self._optimizer()
        if known is not optimizer:
            if self._hook is not None:
                self._hook.remove()
            self._optimizer = weakref.ref(optimizer)
            self._hook = optimizer.register_step_post_hook(_after_step(self))
        self.epoch.fill_(int(self.epoch) + 1 if epoch is None else epoch)
        self._rng = None
        self.train()
        self.defense.before_epoch(self.split, self.aux, self._data, int(self.epoch))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy and penalty of one batch of pictures in [0, 1]; `backward` is that of the defence."""
        if not self.training:
            scores: Tensor = self.split(x)
            self.last_scores = scores.detach()
            return F.cross_entropy(scores, y)
        optimizer = None if self._optimizer is None else self._optimizer()
        if optimizer is None:
            raise UsageError("call start_epoch(optimizer) before every epoch")
        epoch = int(self.epoch)
        if self._rng is None or self._rng.device != x.device:
            self._rng = release_rng(self.seed, epoch, x.device)
        moment = Moment(epoch, max(self.epochs, epoch + 1), float(optimizer.param_groups[0]["lr"]))
        found = losses(self.split, self.aux, x, y, moment, self._rng)
        found.require_finite(f"epoch {epoch + 1}")
        self.last_scores = found.step.scores.detach()
        if not any(part.owns_backward for part in members(self.defense)):
            return found.total
        anchor = torch.zeros((), device=x.device, requires_grad=True)
        backward = partial(self.defense.backward, found.total, found.step)
        whole = _OwnBackward.apply(anchor, found.total.detach(), backward)  # type: ignore[no-untyped-call]
        return cast("Tensor", whole)

    def forward(self, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Scores, through the release."""
        return self.split.run(x, rng).scores

    def release(self, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """What leaves the client."""
        return self.split.release(x, rng)

    def notes(self) -> dict[str, Any]:
        """What the defence says about the training: a privacy budget, a diagnostic."""
        return self.defense.notes(self.split, self.aux)

    def halves(self, example: Tensor) -> tuple[nn.Module, nn.Module]:
        """The client's and the server's half, to be deployed."""
        return self.split.export(example)

    def __getstate__(self) -> dict[str, Any]:
        # Identities of parameters mean nothing in a copy: keep positions instead.
        kept = {name: value for name, value in vars(self).items() if name not in self._passing}
        kept["_stepped"] = [name for name, p in nn.Module.named_parameters(self) if id(p) in self._stepped]
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        names = set(state["_stepped"])
        self._stepped = {id(p) for name, p in nn.Module.named_parameters(self) if name in names}
        self._data = _Absent("a copy does not hold the pictures")


class _OwnBackward(torch.autograd.Function):
    """A loss whose gradient the defence computes: DP-SGD, a two-stage update."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, total: Tensor, backward: Callable[[], None]) -> Tensor:
        del anchor  # it only makes autograd call `backward`
        ctx.fill = backward
        return total.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        if float(grad) != 1:
            raise UsageError(
                "this defence computes the gradient itself: do not scale the loss or accumulate over steps"
            )
        with torch.enable_grad():
            ctx.fill()
        return None, None, None


def _after_step(net: Defended) -> Callable[..., None]:
    # A weak reference: an optimiser must not keep a network alive that nobody else holds.
    found = weakref.ref(net)

    def hook(*_: Any) -> None:
        own = found()
        if own is not None and own.training:
            own.defense.after_step(own.split, own.aux)

    return hook


class _Absent:
    """Placeholder for missing training pictures; any use raises an error that asks for them."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        if name == "images":
            return _Absent(self._why)
        raise self._refusal()

    def __getitem__(self, index: Any) -> _Absent:
        return self

    def to(self, *args: Any) -> _Absent:
        return self

    def __len__(self) -> int:
        raise self._refusal()

    def _refusal(self) -> UsageError:
        return UsageError(f"this defence looks at the training pictures, and {self._why}; give them as data=")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise UsageError("this defence looks at the training pictures; give them as data=")


def _pictures(data: Any) -> Any:
    if data is None:
        return _Absent("there are none")
    return checked(data if isinstance(data, ImageSet) else from_torch(data))
