"""The linear picture: ridge regression on standardised features, and what it says of pictures it never saw."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks._spectrum import Spectrum, sketched
from leakscope.core.devices import widened

STRENGTHS = (1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True)
class Linear:
    """Columns N×D ↦ flat pictures N×P."""

    tensors: dict[str, Tensor]  # mean, and weights, or rows and coefficients when those are smaller

    def __call__(self, columns: Tensor) -> Tensor:
        columns = columns.to(self.tensors["mean"])
        if "weights" in self.tensors:
            return self.tensors["mean"] + columns @ self.tensors["weights"]
        if "rows" in self.tensors:
            return self.tensors["mean"] + (columns @ self.tensors["rows"].T) @ self.tensors["coefficients"]
        return self.tensors["mean"].expand(len(columns), -1)


@dataclass(frozen=True)
class Fitted:
    """A linear fit, its strength, and how its answers change for a picture that it was not fitted on."""

    linear: Linear
    strength: float
    offsets: Tensor  # pictures×P: add to the answer for a picture of the fit to get the answer of a fit without it


def fit(columns: Tensor, pixels: Tensor, draws: int, rng: torch.Generator) -> Fitted:
    """Ridge from columns (all draws of a picture side by side) to pixels (one row per picture).

    The strength of least leave-one-picture-out error wins (Allen, "PRESS", 1974). Columns are centred here:
    their statistics may come from other pictures.
    """
    target = widened(pixels)
    center, mean = columns.mean(0), target.mean(0)
    z, x = columns - center, (target - mean).repeat_interleave(draws, 0)
    spectrum = Spectrum.of(z)
    level = float(spectrum.eigenvalues.mean())
    if level <= 0:
        return Fitted(Linear({"mean": mean.to(pixels)}), 0.0, torch.zeros_like(pixels))
    sketch = sketched(x, rng)
    errors = spectrum.left_out_errors(sketch, [strength * level for strength in STRENGTHS], draws)
    best = STRENGTHS[min(range(len(errors)), key=errors.__getitem__)]
    solved = {name: tensor.to(pixels) for name, tensor in spectrum.solve(z, x, best * level).items()}
    linear = Linear({"mean": mean.to(pixels), **solved})
    shift = linear(center[None]) - linear.tensors["mean"]
    within, without = spectrum.residuals(x, best * level, draws)
    offsets = (within - without).mean(1).to(pixels)
    return Fitted(Linear({**solved, "mean": mean.to(pixels) - shift[0]}), best, offsets)
