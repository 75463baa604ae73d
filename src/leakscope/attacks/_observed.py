"""What an inversion needs to know of an observation before it starts: its shape, and how noisy it is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakscope.attacks._release import child
from leakscope.core.attack import Observed
from leakscope.core.errors import UsageError
from leakscope.core.threat import View

_PROBES = 8
_PROBE_BYTES = 2**28  # of their features


def _probes(view: View, rng: torch.Generator) -> Tensor:
    if "public" in view:
        return view.public.images[:_PROBES].to(view.device)
    return torch.rand(_PROBES, *view.image_shape, generator=child(rng, view.device), device=view.device)


def checked_features(view: View, seen: Observed, attack: str) -> Tensor:
    """The features seen, if they have the shape the encoder gives."""
    if seen.features is None:
        raise ValueError(f"{attack} rebuilds observed inputs; it was handed no features")
    features = seen.features.to(view.device)
    with torch.no_grad():
        expected = view.encoder(torch.full((1, *view.image_shape), 0.5, device=view.device)).shape[1:]
    if features.shape[1:] != expected:
        got, want = ("×".join(str(size) for size in shape) for shape in (features.shape[1:], expected))
        raise UsageError(f"{attack} was handed features of {got}, the encoder gives {want}; release them at its cut")
    return features


#: A relative fit above this leaves features unexplained …
UNEXPLAINED = 0.1
#: … unless the release is noisy: then above so many times its error.
_NOISE_LEVELS = 3


def noise_level(y: Tensor, noise: float) -> float:
    """Noise over signal."""
    if noise == 0:
        return 0.0
    return noise / max(math.sqrt(float(y.nan_to_num().square().mean())), 1e-30)


def explainable(y: Tensor, noise: float) -> float:
    """The relative fit that a converged solve of y reaches when the release errs by `noise`."""
    return max(UNEXPLAINED, _NOISE_LEVELS * noise_level(y, noise))


@torch.no_grad()
def release_error(view: View, rng: torch.Generator) -> float:
    """The root mean squared error that the release adds to a feature.

    Two releases of the same pictures differ by √2 times the noise; what their mean differs from the
    clean features is bias, and no less in the way.
    """
    probes = _probes(view, rng)
    clean = view.encoder(probes[:1])
    count = _PROBE_BYTES // (clean.numel() * clean.element_size())
    if count > 1:  # wide features of large pictures tell enough by themselves
        clean = view.encoder(probes[:count])
    noise = child(rng, view.device)
    first, second = (view.defense.release(clean, noise) for _ in range(2))
    if first.shape != clean.shape:
        raise UsageError("the defence releases features of another shape than the encoder's; use decoder or search")
    spread, away = (first - second).square().mean(), ((first + second) / 2 - clean).square().mean()
    apart, off = torch.stack([spread, away]).tolist()
    variance = apart / 2
    bias = max(off - variance / 2, 0.0)
    return float((variance + bias) ** 0.5)
