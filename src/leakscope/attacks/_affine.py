"""The best affine map from one kind of features to another, shared over rows or pixels where shapes allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.devices import widened

_HELD = 0.2  # share of the pictures on which a strength is chosen


@dataclass(frozen=True)
class Affine:
    """Groups of rows mapped by `weights` (groups×inputs×outputs, the last input a constant one).

    `layout` says how features fall into groups: 0, a group for each channel whose rows share a map
    (N×C×H×W → C groups of N·H rows); 1, one group of pixels (N×C×H×W → N·H·W rows of C); 2, one group
    of whole pictures.
    """

    weights: Tensor
    shape: tuple[int, ...]  # of the outputs, one picture
    layout: int

    def __call__(self, z: Tensor) -> Tensor:
        rows = _LAYOUTS[self.layout].rows(z)
        return _LAYOUTS[self.layout].back(_with_one(rows) @ self.weights, len(z), self.shape)

    def stored(self, tensors: dict[str, Tensor], name: str) -> Affine:
        tensors[f"{name}.weights"] = self.weights.contiguous()
        tensors[f"{name}.shape"] = torch.tensor([self.layout, *self.shape])
        return self

    @staticmethod
    def read(tensors: dict[str, Tensor], name: str) -> Affine:
        layout, *shape = tensors[f"{name}.shape"].tolist()
        return Affine(tensors[f"{name}.weights"], tuple(shape), layout)


@dataclass(frozen=True)
class _Layout:
    """When a way of sharing a map fits two kinds of features, how it lays out rows, and how it takes them back."""

    fits: Callable[[Tensor, Tensor], bool]
    rows: Callable[[Tensor], Tensor]
    back: Callable[[Tensor, int, tuple[int, ...]], Tensor]


def _maps(z: Tensor, target: Tensor) -> bool:
    return z.ndim == target.ndim == 4


_LAYOUTS = (
    _Layout(
        lambda z, target: _maps(z, target) and z.shape[1:3] == target.shape[1:3],
        lambda z: z.transpose(0, 1).flatten(1, 2),  # C × N·H × W
        lambda rows, count, shape: rows.unflatten(1, (count, shape[1])).transpose(0, 1),
    ),
    _Layout(
        lambda z, target: _maps(z, target) and z.shape[2:] == target.shape[2:],
        lambda z: z.movedim(1, 3).flatten(0, 2)[None],  # 1 × N·H·W × C
        lambda rows, count, shape: rows[0].unflatten(0, (count, *shape[1:])).movedim(3, 1),
    ),
    _Layout(
        lambda z, target: True,
        lambda z: z.flatten(1)[None],  # 1 × N × D
        lambda rows, count, shape: rows[0].view(count, *shape),
    ),
)


def fit_affine(z: Tensor, target: Tensor, strengths: tuple[float, ...]) -> Affine:
    """Ridge regression from z to target; the strength with the least error on held-out pictures wins."""
    layout = next(number for number, kind in enumerate(_LAYOUTS) if kind.fits(z, target))
    kind, shape = _LAYOUTS[layout], tuple(target.shape[1:])
    if len(strengths) == 1:
        only = _ridge(_with_one(kind.rows(widened(z))), kind.rows(widened(target)), strengths[0])
        return Affine(only.to(target), shape, layout)
    held = max(1, round(_HELD * len(z)))
    seen, wanted = (_with_one(kind.rows(widened(z[held:]))), kind.rows(widened(target[held:])))
    best: tuple[float, float] | None = None
    for strength in strengths:
        guess = Affine(_ridge(seen, wanted, strength), shape, layout)(widened(z[:held]))
        error = float((guess - widened(target[:held])).square().mean())
        if best is None or error < best[0]:
            best = (error, strength)
    assert best is not None
    everything = _with_one(kind.rows(widened(z))), kind.rows(widened(target))
    return Affine(_ridge(*everything, best[1]).to(target), shape, layout)


def _with_one(rows: Tensor) -> Tensor:
    return torch.cat((rows, rows.new_ones(*rows.shape[:-1], 1)), -1)


def _ridge(z: Tensor, x: Tensor, strength: float) -> Tensor:
    """argmin ‖ZW − X‖² + λ‖W‖² for each group, λ = strength × mean square; the smaller system is solved.

    It is positive definite, so nobody asks whether it could be solved: an accelerator would wait for each answer.
    """
    rows, columns = z.shape[1:]
    amount = strength * z.square().sum((1, 2), keepdim=True) / min(rows, columns) + 1e-12
    identity = torch.eye(min(rows, columns), dtype=z.dtype, device=z.device)
    if columns <= rows:
        primal: Tensor = torch.linalg.solve_ex(z.mT @ z + amount * identity, z.mT @ x).result
        return primal
    dual: Tensor = z.mT @ torch.linalg.solve_ex(z @ z.mT + amount * identity, x).result
    return dual
