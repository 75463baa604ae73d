"""The sparse-coding problem, once for dense, 1-d and 2-d dictionaries: operators, objective, certificates.

Everything is posed as a strided 2-d convolution: a signal is an image of height one, a vector an image
of one pixel. Codes `R` rebuild the zero-padded canvas from overlapping atoms,

    min_R  ½‖pad(X) − rec(R)‖² + λ‖R‖₁        (R ≥ 0 unless signed)

on the canvas that the atoms reach, of side (h − 1)·stride + k: what LCA's Gram tensor minimises, not
the cropped form in the paper (spec/sca.md §1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Required, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from leakscope.core.errors import UsageError

Pair = tuple[int, int]


class Diverged(RuntimeError):
    """The objective of one sample stopped being a number."""

    def __init__(self, sample: int) -> None:
        super().__init__(f"sparse coding diverged: the objective of batch index {sample} is not finite")
        self.sample = sample


@dataclass(frozen=True)
class Problem:
    """A batch of posed problems; build it with `pose`."""

    canvas: Tensor  # N×C×H×W, padded
    atoms: Tensor  # F×C×kh×kw
    stride: Pair
    penalty: float
    nonneg: bool

    def __len__(self) -> int:
        return len(self.canvas)

    @cached_property
    def grid(self) -> Pair:
        """Positions an atom can take, down and across."""
        down, across = (
            (side - k) // step + 1
            for side, k, step in zip(self.canvas.shape[2:], self.atoms.shape[2:], self.stride, strict=True)
        )
        return down, across

    @property
    def codes_shape(self) -> tuple[int, int, int, int]:
        return len(self), len(self.atoms), *self.grid

    def take(self, rows: Tensor | slice) -> Problem:
        return replace(self, canvas=self.canvas[rows])

    def rec(self, codes: Tensor) -> Tensor:
        """The canvas that codes describe: the adjoint of `corr`."""
        return F.conv_transpose2d(codes, self.atoms, stride=self.stride)

    def corr(self, canvas: Tensor) -> Tensor:
        """How well each atom fits at each position."""
        return F.conv2d(canvas, self.atoms, stride=self.stride)

    def atom_gradient(self, canvas: Tensor, codes: Tensor) -> Tensor:
        """∂⟨rec(codes), canvas⟩/∂atoms = Σ over samples and positions of code × patch."""
        gradient: Tensor = conv2d_weight(canvas, self.atoms.shape, codes, stride=self.stride)
        return gradient

    def shrink(self, values: Tensor, amount: float | Tensor) -> Tensor:
        """The proximal step of the penalty."""
        if self.nonneg:
            return (values - amount).clamp_min_(0)
        return values.sign() * (values.abs() - amount).clamp_min_(0)

    def residual(self, codes: Tensor) -> Tensor:
        return self.canvas - self.rec(codes)

    def objective_of(self, residual: Tensor, codes: Tensor) -> Tensor:
        """½‖E‖² + λ‖R‖₁ for each sample, given E = pad(X) − rec(R)."""
        return 0.5 * residual.flatten(1).square().sum(1) + self.penalty * codes.flatten(1).abs().sum(1)

    def objective(self, codes: Tensor) -> Tensor:
        return self.objective_of(self.residual(codes), codes)

    def fit(self, correlation: Tensor) -> Tensor:
        """The largest correlation of each sample that the penalty has to hold down."""
        flat = correlation.flatten(1)
        return flat.amax(1) if self.nonneg else flat.abs().amax(1)

    def duality_gap(self, codes: Tensor) -> Tensor:
        """A certificate: the objective is at most this far above the optimum, for each sample.

        The dual is max ⟨X, θ⟩ − ½‖θ‖² over corr(θ) ≤ λ; θ is the residual, scaled by the best factor
        that makes it feasible. fp32 rounding of the objective is not part of the certificate.
        """
        residual = self.residual(codes)
        image, error = self.canvas.flatten(1), residual.flatten(1)
        square = error.square().sum(1)
        tiny = torch.finfo(square.dtype).tiny
        along = (image * error).sum(1)
        scale = torch.minimum(
            along / square.clamp_min(tiny), self.penalty / self.fit(self.corr(residual)).clamp_min(tiny)
        )
        scale = scale.clamp_min(0)
        dual = scale * along - 0.5 * scale.square() * square
        return self.objective_of(residual, codes) - dual

    def kkt_violation(self, codes: Tensor) -> Tensor:
        """Largest |R − prox(R + corr(E))| of each sample; zero exactly at an optimum."""
        step = codes + self.corr(self.residual(codes))
        return (codes - self.shrink(step, self.penalty)).flatten(1).abs().amax(1)


class Terms(TypedDict, total=False):
    """What a problem needs besides its tensors, as keywords of `pose`, `solve` and `differentiable`."""

    penalty: Required[float]
    stride: int | tuple[int, ...]
    nonneg: bool


def pose(
    x: Tensor, dictionary: Tensor, *, penalty: float, stride: int | tuple[int, ...] = 1, nonneg: bool = True
) -> Problem:
    """Check a batch and its dictionary, pad "same" and cut to what the atoms reach.

    The dictionary says which case it is: F×D for vectors N×D, F×C×k for signals N×C×L, F×C×kh×kw for
    images N×C×H×W.
    """
    if not (math.isfinite(penalty) and penalty >= 0):
        raise UsageError(f"the sparsity penalty λ must be a number ≥ 0, not {penalty}")
    if dictionary.ndim not in (2, 3, 4):
        raise UsageError(f"a dictionary is F×D, F×C×k or F×C×kh×kw, not {tuple(dictionary.shape)}")
    if x.ndim != dictionary.ndim or len(dictionary) == 0 or x.shape[1] != dictionary.shape[1]:
        raise UsageError(
            f"input {tuple(x.shape)} does not fit dictionary {tuple(dictionary.shape)}: "
            "they need as many axes and, second, as many channels"
        )
    for tensor, name in ((x, "input"), (dictionary, "dictionary")):
        if tensor.dtype not in (torch.float32, torch.float64):
            raise UsageError(f"sparse coding needs float32 or float64, the {name} is {tensor.dtype}; call .float()")
    if x.dtype != dictionary.dtype or x.device != dictionary.device:
        raise UsageError(
            f"input ({x.dtype}, {x.device}) and dictionary ({dictionary.dtype}, {dictionary.device}) differ; "
            "move one with .to(other)"
        )
    kernel = tuple(dictionary.shape[2:])
    if any(k % 2 == 0 for k in kernel):
        raise UsageError(f"kernel {kernel} has an even side; 'same' padding needs odd ones, such as 5 or 7")
    steps = (stride,) * len(kernel) if isinstance(stride, int) else tuple(stride)
    if len(steps) != len(kernel) or (not kernel and stride != 1):
        raise UsageError(f"stride {stride} does not fit a kernel with {len(kernel)} axes; give one step an axis")
    if any(not 1 <= step <= k for step, k in zip(steps, kernel, strict=True)):
        raise UsageError(f"stride {stride} must lie between 1 and the kernel {kernel}, or pixels go unseen")
    if not torch.isfinite(dictionary).all():
        raise UsageError("the dictionary holds NaN or infinite values; renormalise or rebuild it")
    finite = torch.isfinite(x).flatten(1).all(1)
    if not finite.all():
        bad = int((~finite).nonzero()[0])
        raise UsageError(f"batch index {bad} holds NaN or infinite values; remove it or replace them")
    images = as_images(x)
    kh, kw = (1,) * (2 - len(kernel)) + kernel  # a signal is one pixel high, a vector also one wide
    sh, sw = (1,) * (2 - len(steps)) + steps
    height, width = images.shape[2:]
    reach = (height - 1) // sh * sh + kh, (width - 1) // sw * sw + kw
    canvas = F.pad(images, (kw // 2, kw // 2, kh // 2, kh // 2))[..., : reach[0], : reach[1]].contiguous()
    return Problem(canvas, as_images(dictionary).contiguous(), (sh, sw), float(penalty), nonneg)


def as_images(x: Tensor) -> Tensor:
    """N×D, N×C×L or N×C×H×W as N×C×H×W (the same for a dictionary)."""
    return x if x.ndim == 4 else x.unsqueeze(2) if x.ndim == 3 else x[..., None, None]


def like(images: Tensor, ndim: int) -> Tensor:
    """The inverse of `as_images` for a tensor that had `ndim` axes."""
    return images if ndim == 4 else images.squeeze(2) if ndim == 3 else images[..., 0, 0]


def window(canvas: Tensor, atoms: Tensor, size: Sequence[int]) -> Tensor:
    """The image inside a canvas: cut the padding off, and fill pixels no atom reaches with zeros."""
    top, left = atoms.shape[2] // 2, atoms.shape[3] // 2
    inside = canvas[..., top : top + size[0], left : left + size[1]]
    return F.pad(inside, (0, size[1] - inside.shape[3], 0, size[0] - inside.shape[2]))
