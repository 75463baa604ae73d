"""Defences: hooks that change nothing, of which a defence overrides what it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from leakscope.core.errors import UsageError
from leakscope.core.spec import Kind

if TYPE_CHECKING:
    from leakscope.core.data import ImageSet
    from leakscope.core.model import SplitModel


@dataclass(frozen=True)
class Step:
    """One training step as a defence sees it."""

    x: Tensor  # N×C×H×W in [0, 1], as fed to the network
    y: Tensor  # N
    features: Tensor  # at the cut, before release
    released: Tensor  # what leaves the client
    scores: Tensor  # N×classes
    task_loss: Tensor  # cross-entropy of this batch
    split: SplitModel
    aux: nn.Module  # what `setup` returned
    epoch: int  # from 0
    epochs: int
    learning_rate: float
    rng: torch.Generator


class Defense:
    """Changes how a target is built, trained or releases features. All hooks default to nothing.

    A subclass is a frozen dataclass: state that lives through training belongs to the module that
    `setup` returns, which is checkpointed with the run and handed back in every `Step`.
    """

    kind_name: ClassVar[str]
    revision: ClassVar[int]
    #: Names of attacks made against this defence; the audit adds them to its suite.
    adaptive: ClassVar[tuple[str, ...]] = ()
    #: Replaces the gradient step; a stack may hold one such defence.
    owns_backward: ClassVar[bool] = False
    #: Keeps weights as they were before private training: the network must have learned something by then.
    keeps_first_weights: ClassVar[bool] = False
    #: Promises nothing about private pictures that the network learned from before it acted.
    from_scratch: ClassVar[bool] = False

    def augment(self, data: ImageSet, rng: torch.Generator) -> ImageSet:
        """The training data (GAN samples added, …)."""
        return data

    def rebuild(self, split: SplitModel, example: Tensor) -> SplitModel:
        """The architecture (a bottleneck, sparse layers); may move the cut."""
        return split

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        """What the defence carries through training: running moments, gates, an inner attacker."""
        return nn.Module()

    def trainable(self, split: SplitModel) -> set[str]:
        """Names of the parameters that private data may touch."""
        return {name for name, _ in split.named_parameters()}

    def optimised(self, aux: nn.Module) -> Iterable[nn.Parameter]:
        """Parameters of the defence itself that the target's optimiser steps."""
        return aux.parameters()

    def before_epoch(self, split: SplitModel, aux: nn.Module, data: ImageSet, epoch: int) -> None:
        """Once per epoch: put frozen normalisation in eval mode, refit clusters."""

    def penalty(self, step: Step) -> Tensor | None:
        """Extra loss, or None; with its weight at zero it must be None."""
        return None

    def backward(self, loss: Tensor, step: Step) -> None:
        """Fill the gradients (DP-SGD, privacy-first two-stage updates)."""
        loss.backward()

    def after_step(self, split: SplitModel, aux: nn.Module) -> None:
        """After the optimiser's step: dictionary updates, projections."""

    def finish(self, split: SplitModel, aux: nn.Module) -> None:
        """Once, after training, when the weights to keep are chosen: what is measured on them is kept with them."""

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        """What leaves the client, in training and when deployed."""
        return z

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        """What to say about the trained target: a privacy budget, a diagnostic."""
        return {}


DEFENSES: Kind[Defense] = Kind("defense", "leakscope.defenses", Defense)


class _Parts(nn.Module):
    """The carried modules of a stack's parts, in order."""

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.parts)


@dataclass(frozen=True)
class Stack(Defense):
    """Several defences at once, applied in order; conflicts are refused at construction.

    Written as a list in a configuration and with `+` on a command line, so it needs no name in the registry.
    """

    kind_name: ClassVar[str] = "stack"
    revision: ClassVar[int] = 1

    parts: tuple[Defense, ...] = ()

    def __post_init__(self) -> None:
        owners = [part.kind_name for part in self.parts if part.owns_backward]
        if len(owners) > 1:
            raise ValueError(f"only one defence may replace the gradient step, not {' and '.join(owners)}")
        if any(isinstance(part, Stack) for part in self.parts):
            raise ValueError("a stack holds defences, not stacks")

    def augment(self, data: ImageSet, rng: torch.Generator) -> ImageSet:
        for part in self.parts:
            data = part.augment(data, rng)
        return data

    def rebuild(self, split: SplitModel, example: Tensor) -> SplitModel:
        for part in self.parts:
            split = part.rebuild(split, example)
        return split

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        return _Parts(part.setup(split, data, rng) for part in self.parts)

    def trainable(self, split: SplitModel) -> set[str]:
        return set.intersection(super().trainable(split), *(part.trainable(split) for part in self.parts))

    def _each(self, aux: nn.Module) -> Iterator[tuple[Defense, nn.Module]]:
        assert isinstance(aux, _Parts)
        return zip(self.parts, aux, strict=True)

    def optimised(self, aux: nn.Module) -> Iterable[nn.Parameter]:
        return [p for part, own in self._each(aux) for p in part.optimised(own)]

    def before_epoch(self, split: SplitModel, aux: nn.Module, data: ImageSet, epoch: int) -> None:
        for part, own in self._each(aux):
            part.before_epoch(split, own, data, epoch)

    def penalty(self, step: Step) -> Tensor | None:
        terms = [part.penalty(replace(step, aux=own)) for part, own in self._each(step.aux)]
        present = [term for term in terms if term is not None]
        return torch.stack(present).sum() if present else None

    def backward(self, loss: Tensor, step: Step) -> None:
        owner = next(((part, own) for part, own in self._each(step.aux) if part.owns_backward), None)
        if owner is None:
            loss.backward()
        else:
            part, own = owner
            part.backward(loss, replace(step, aux=own))

    def after_step(self, split: SplitModel, aux: nn.Module) -> None:
        for part, own in self._each(aux):
            part.after_step(split, own)

    def finish(self, split: SplitModel, aux: nn.Module) -> None:
        for part, own in self._each(aux):
            part.finish(split, own)

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        for part in self.parts:
            z = part.release(z, rng, training=training)
        return z

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        return {part.kind_name: part.notes(split, own) for part, own in self._each(aux)}


def members(defense: Defense) -> tuple[Defense, ...]:
    """The single defences inside `defense`."""
    return defense.parts if isinstance(defense, Stack) else (defense,)


#: A plus between two defences; one of two at the end of a name (gong++) belongs to it.
_BETWEEN = re.compile(r"(?<!\+)\+(?!\+)|(?<=\+\+)\+")


def build_defense(spec: str | Mapping[str, Any] | Sequence[Any] | Defense) -> Defense:
    """A defence from a name, a mapping, or a list (also `a:x=1+b`), which makes a stack."""
    if isinstance(spec, str) and "+" in spec:
        spec = _BETWEEN.split(spec)
    if isinstance(spec, Mapping) and spec.get("kind") == "stack":
        spec = spec["parts"]
    if isinstance(spec, list | tuple):
        parts = tuple(DEFENSES.build(part) for part in spec)
        if not parts:
            raise UsageError("an empty stack of defences; write 'none'")
        if len(parts) == 1:
            return parts[0]
        try:
            return Stack(parts)
        except ValueError as error:
            raise UsageError(str(error)) from None
    return DEFENSES.build(spec)  # type: ignore[arg-type]
