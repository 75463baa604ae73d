"""The best affine map from one kind of features to another, shared over rows or pixels where shapes allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.devices import widened


@dataclass(frozen=True)
class Affine:
    """Groups of rows mapped by `weights` (groups×inputs×outputs, the last input a constant one).

    Fitted on fewer rows than there are inputs, the map is a sum over those rows: they stand in `through`
    (groups×inputs×rows) and `weights` is rows×outputs, where the product of both would be larger than they are. Both
    keep the digits they were solved with, since large weights of rows cancel each other.
    `layout` says how features fall into groups: 0, a group for each channel whose rows share a map
    (N×C×H×W → C groups of N·H rows); 1, one group of pixels (N×C×H×W → N·H·W rows of C); 2, one group
    of whole pictures.
    """

    weights: Tensor
    shape: tuple[int, ...]  # of the outputs, one picture
    layout: int
    through: Tensor | None = None

    def __call__(self, z: Tensor) -> Tensor:
        rows = _with_one(_LAYOUTS[self.layout].rows(z))
        mapped = rows @ self.weights if self.through is None else (widened(rows) @ self.through @ self.weights).to(z)
        return _LAYOUTS[self.layout].back(mapped, len(z), self.shape)

    def stored(self, tensors: dict[str, Tensor], name: str) -> Affine:
        tensors[f"{name}.weights"] = self.weights.contiguous()
        if self.through is not None:
            tensors[f"{name}.through"] = self.through.contiguous()
        tensors[f"{name}.shape"] = torch.tensor([self.layout, *self.shape])
        return self

    @staticmethod
    def read(tensors: dict[str, Tensor], name: str) -> Affine:
        layout, *shape = tensors[f"{name}.shape"].tolist()
        return Affine(tensors[f"{name}.weights"], tuple(shape), layout, tensors.get(f"{name}.through"))


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


def fit_affine(z: Tensor, target: Tensor, strength: float) -> Affine:
    """Ridge regression from z to target."""
    layout = next(number for number, kind in enumerate(_LAYOUTS) if kind.fits(z, target))
    rows = _LAYOUTS[layout].rows
    weights, through = _ridge(_with_one(rows(widened(z))), rows(widened(target)), strength)
    return Affine(weights.to(target) if through is None else weights, tuple(target.shape[1:]), layout, through)


def _with_one(rows: Tensor) -> Tensor:
    return torch.cat((rows, rows.new_ones(*rows.shape[:-1], 1)), -1)


def _ridge(z: Tensor, x: Tensor, strength: float) -> tuple[Tensor, Tensor | None]:
    """argmin ‖ZW − X‖² + λ‖W‖² for each group, λ = strength × mean square; the smaller system is solved.

    It is positive definite, so nobody asks whether it could be solved: an accelerator would wait for each answer.
    From rows fewer than columns W = Zᵀ(ZZᵀ + λ)⁻¹X, which is left as a product where that is smaller.
    """
    rows, columns = z.shape[1:]
    amount = strength * z.square().sum((1, 2), keepdim=True) / min(rows, columns) + 1e-12
    identity = torch.eye(min(rows, columns), dtype=z.dtype, device=z.device)
    if columns <= rows:
        return torch.linalg.solve_ex(z.mT @ z + amount * identity, z.mT @ x).result, None
    dual: Tensor = torch.linalg.solve_ex(z @ z.mT + amount * identity, x).result
    if rows * (columns + x.shape[2]) < columns * x.shape[2]:
        return dual, z.mT
    return z.mT @ dual, None
