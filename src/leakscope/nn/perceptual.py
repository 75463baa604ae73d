"""Distance in the maps of a network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor


class Perception(Protocol):
    """Pictures in, rectified maps out; `channel_weights[l]` says how much each channel of map l counts."""

    @property
    def channel_weights(self) -> Iterable[Tensor]: ...

    def __call__(self, images: Tensor) -> list[Tensor]: ...


def _unit(features: Tensor) -> Tensor:
    """Every position's feature vector, scaled to length 1."""
    length: Tensor = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    return features / (length + 1e-10)


def perceptual_distance(network: Perception, guess: Tensor, truth: Tensor) -> Tensor:
    """Σ_l mean over positions of Σ_c w_lc·(f̂_lc(x̂) − f̂_lc(x))², one number for each image.

    f̂_l is map l with the feature vector of every position scaled to length 1, w_l its channel weights. With the
    weights that LPIPS learnt on AlexNet this is LPIPS (Zhang et al., CVPR 2018).
    """
    pairs = zip(network(guess), network(truth), network.channel_weights, strict=True)
    # Positions are averaged before channels are weighted: the same sum, in one pass over the maps.
    terms = [(_unit(f) - _unit(g)).square().mean((2, 3)) @ weight for f, g, weight in pairs]
    return torch.stack(terms).sum(0)
