"""How far a picture is from being taken for a class: one number per picture, from its scores."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

_INSET = 1e-4  # the vertex of the ball is at infinite distance; aim this far inside
_LEAST = 1e-7  # float32 cannot tell a smaller 1 − ‖u‖², nor a smaller argument of arccosh above 1

IdentityLoss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(scores: Tensor, classes: Tensor) -> Tensor:
    """−log softmax_y."""
    return F.cross_entropy(scores, classes, reduction="none")


def negative_logit(scores: Tensor, classes: Tensor) -> Tensor:
    """−logit_y: does not fade when the class is already likely (LOMMA)."""
    return -scores.gather(1, classes[:, None]).squeeze(1)


def poincare(scores: Tensor, classes: Tensor) -> Tensor:
    """Distance in the Poincaré ball between u = logits/‖logits‖₁ and the class's vertex (PPA).

    d(u, v) = arccosh(1 + 2‖u − v‖² / ((1 − ‖u‖²)(1 − ‖v‖²))), v the one-hot vector times 1 − 1e-4.
    """
    u = scores / scores.abs().sum(1, keepdim=True).clamp_min(_LEAST)
    v = F.one_hot(classes, scores.shape[1]).to(scores) * (1 - _INSET)
    inside = (1 - u.square().sum(1)).clamp_min(_LEAST) * (1 - v.square().sum(1))
    return torch.acosh((1 + 2 * (u - v).square().sum(1) / inside).clamp_min(1 + _LEAST))


IDENTITY_LOSSES: dict[str, IdentityLoss] = {
    "cross-entropy": cross_entropy,
    "logit": negative_logit,
    "poincare": poincare,
}
