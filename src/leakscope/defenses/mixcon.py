"""Features of different classes brought close, but not together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.defense import DEFENSES, Defense, Step
from leakscope.defenses._classes import by_class
from leakscope.defenses._weight import refuse_weight


def mixcon(features: Tensor, y: Tensor, beta: float, epsilon: float, *, unit_norm: bool = True) -> Tensor:
    """The mean of d + β/d over pairs of different classes; 0 with fewer than two classes."""
    z = features.flatten(1).float()  # N×D
    if unit_norm:
        z = F.normalize(z, dim=1)
    classes = by_class(y)
    present = len(classes.count)
    if present < 2:
        return z.sum() * 0
    depth = int(classes.count.min())
    ranks = classes.ranks()
    kept = ranks < depth
    # The i-th sample of class c goes to row i, column c; every place is filled once.
    place = ranks[kept] * present + classes.index[kept]
    rows = z.new_zeros(depth * present, z.shape[1]).index_copy(0, place, z[kept])
    rows = rows.view(depth, present, -1)  # p×C×D
    # Differences, not 2 − 2·cos: the latter has no correct digits left where β/d matters.
    distance = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    d = distance.clamp(epsilon, 1 / epsilon)  # p×C×C
    apart = ~torch.eye(present, dtype=torch.bool, device=z.device)
    return (d + beta / d)[:, apart].mean()


@DEFENSES.register("mixcon")
@dataclass(frozen=True)
class MixCon(Defense):
    """Pulls features of different classes together, up to a distance that keeps them apart.

        L = λ · 1/(p·C·(C−1)) · Σ_{i≤p} Σ_{a≠b} ( d + β/d ),  d = ‖z_{i,a} − z_{i,b}‖²

    over unit-norm features, with z_{i,c} the i-th sample of class c in the batch, p the size of the
    smallest class present and C the number of classes present; λ is `weight`, and d is kept within
    [ε, 1/ε]. The first term shrinks to d = √β; with β = 0 all features fall on one point. With
    `unit_norm` off, features are taken as they are: the paper normalises "in practice", but the collapse to the
    origin that it shows for β = 0 on synthetic data is only possible without.

    Li et al., "MixCon: adjusting the separability of data representations for harder data recovery", 2020
    (arXiv 2010.11463).

    Differs from the paper: its sum includes a = b, where β/0 has no value; here it does not. A batch
    with one class has no pairs and gives 0.
    """

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    weight: float = 0.1
    beta: float = 0.01
    epsilon: float = 1e-6
    unit_norm: bool = True

    def __post_init__(self) -> None:
        refuse_weight(self.weight)
        if not 0 <= self.beta < float("inf"):
            raise ValueError("beta must be 0 or more, such as 0.01")
        if not 0 < self.epsilon < 1:
            raise ValueError("epsilon bounds distances away from 0: between 0 and 1, such as 1e-6")

    def penalty(self, step: Step) -> Tensor | None:
        if self.weight == 0:
            return None
        return self.weight * mixcon(step.features, step.y, self.beta, self.epsilon, unit_norm=self.unit_norm)
