"""A layer whose output is the sparse code of its input."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakscope.core.errors import UsageError
from leakscope.sparse.batch import Solver, solve
from leakscope.sparse.implicit import Implicit, differentiable
from leakscope.sparse.problem import Terms, as_images, like, pose, window


@dataclass(frozen=True)
class Coding:
    """What the last forward pass looked like, averaged over its batch."""

    density: float  # share of codes that are not zero
    objective: float
    iterations: float
    converged: float  # share of samples that met the tolerance


class SparseCoding(nn.Module):
    """x ↦ argmin_{R≥0} ½‖pad(x̂) − rec(R)‖² + λ‖R‖₁, with x̂ the standardised input.

    The kernel's axes say what is coded: 5 or (5, 5) images, (5,) signals, () vectors. Gradients through
    the code are implicit. In training mode they flow only with `backprop`; in evaluation mode they
    always do, so that an attacker who differentiates is not stopped by a switch meant to save time.

    Dibbo et al., "Improving robustness to model inversion attacks via sparse coding architectures",
    ECCV 2024; facts of the published layer in spec/sca.md §1.

    Differs from the paper: solved to a tolerance instead of for 500 steps of LCA; a constant input has
    the zero code instead of amplified rounding.
    """

    def __init__(
        self,
        in_channels: int,
        features: int,
        kernel: int | tuple[int, ...] = 5,
        *,
        stride: int | tuple[int, ...] = 1,
        penalty: float = 0.25,
        nonneg: bool = True,
        standardize: bool = True,
        solver: Solver | None = None,
        backprop: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sides = (kernel, kernel) if isinstance(kernel, int) else tuple(kernel)
        if min(in_channels, features) < 1 or len(sides) > 2:
            raise UsageError("a sparse layer needs at least one channel and feature, and a kernel of 0, 1 or 2 axes")
        self.terms = Terms(penalty=penalty, stride=stride, nonneg=nonneg)
        self.standardize = standardize
        self.solver = solver
        self.backprop = backprop
        self.implicit = Implicit()
        atoms = nn.init.trunc_normal_(torch.empty(features, in_channels, *sides), a=-2, b=2, generator=generator)
        self.dictionary = nn.Parameter(unit_norm(atoms), requires_grad=backprop)
        self.last: Coding | None = None
        pose(torch.zeros(1, in_channels, *sides), self.dictionary.detach(), **self.terms)  # refuse bad settings now

    def prepare(self, x: Tensor) -> Tensor:
        """The input as it is coded."""
        return standardized(x) if self.standardize else x

    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        x = self.prepare(x)
        found = solve(x, self.dictionary, solver=self.solver, start=start, **self.terms)
        with torch.no_grad():
            self.last = Coding(
                density=float((found.codes != 0).float().mean()),
                objective=float(found.objective.mean()),
                iterations=float(found.iterations.float().mean()),
                converged=float(found.converged.float().mean()),
            )
        wanted = torch.is_grad_enabled() and (x.requires_grad or self.dictionary.requires_grad)
        if wanted and (self.backprop or not self.training):
            return differentiable(found.codes, x, self.dictionary, self.implicit, **self.terms)
        return found.codes

    def reconstruct(self, codes: Tensor, size: tuple[int, ...]) -> Tensor:
        """The prepared input that codes describe, cropped to the input's spatial `size`."""
        example = codes.new_zeros(1, self.dictionary.shape[1], *size)
        problem = pose(example, self.dictionary.detach().to(codes), **self.terms)
        canvas = problem.rec(as_images(codes))
        return like(window(canvas, problem.atoms, as_images(example).shape[2:]), codes.ndim)

    @torch.no_grad()
    def update_dictionary(self, x: Tensor, codes: Tensor, rate: float = 0.01) -> None:
        """One step of the paper's fast update, in place, then unit norm.

            Ω_f ← Ω_f + η/(1 + n_f) · Σ R_f·E,   n_f = active codes of f in the batch

        E is the error inside the image; on the padding it is taken as zero, as in the reference.
        """
        x = self.prepare(x)
        problem = pose(x, self.dictionary, **self.terms)
        places = as_images(codes)
        error = x - self.reconstruct(codes, tuple(x.shape[2:]))
        gradient = problem.atom_gradient(pose(error, self.dictionary, **self.terms).canvas, places)
        active = (places != 0).sum((0, 2, 3)).view(-1, 1, 1, 1)
        self.dictionary.add_(like(rate * gradient / (1 + active), self.dictionary.ndim))
        self.renormalize()

    @torch.no_grad()
    def renormalize(self) -> None:
        """Atoms to unit norm, as the solvers' penalty assumes; call after a gradient step too."""
        self.dictionary.copy_(unit_norm(self.dictionary))

    def extra_repr(self) -> str:
        features, channels, *kernel = self.dictionary.shape
        return f"{channels}→{features}, kernel={tuple(kernel)}, {self.terms}, backprop={self.backprop}"


def unit_norm(atoms: Tensor) -> Tensor:
    norms = atoms.flatten(1).norm(dim=1) + 1e-12
    unit: Tensor = atoms / norms.view(-1, *(1,) * (atoms.ndim - 1))
    return unit


def standardized(x: Tensor) -> Tensor:
    """Mean 0 and unbiased deviation 1 for each sample; a constant one becomes zero.

    Constant means a deviation within the rounding of its values: dividing by it would turn rounding
    into a picture.
    """
    flat = x.flatten(1)
    centered = flat - flat.mean(1, keepdim=True)
    variance = centered.square().sum(1, keepdim=True) / max(1, flat.shape[1] - 1)
    scale = flat.detach().abs().amax(1, keepdim=True)
    constant = variance.detach() <= (64 * torch.finfo(x.dtype).eps * scale).square()
    deviation = torch.where(constant, 1.0, variance).sqrt() + 1e-12
    return torch.where(constant, 0.0, centered / deviation).view_as(x)


@torch.no_grad()
def encode_dataset(layer: nn.Module, images: Tensor, batch: int = 256) -> Tensor:
    """The codes of all images: a fixed first layer is solved once, not once an epoch.

    Runs in evaluation mode and puts the mode back; the answer lives on the images' device.
    """
    if batch < 1:
        raise UsageError(f"batch must be at least 1, not {batch}")
    was_training = layer.training
    layer.eval()
    device = next(layer.parameters()).device
    try:
        first: Tensor = layer(images[:batch].to(device)).to(images.device)
        codes = first.new_empty(len(images), *first.shape[1:])
        codes[:batch] = first
        for begin in range(batch, len(images), batch):
            codes[begin : begin + batch] = layer(images[begin : begin + batch].to(device)).to(images.device)
    finally:
        layer.train(was_training)
    return codes


def codes_key(layer: SparseCoding, images: Tensor) -> str:
    """What `encode_dataset` depends on, as 24 hexadecimal digits: where a pipeline stores its answer."""
    key = hashlib.sha256(repr((layer.extra_repr(), layer.standardize, layer.solver)).encode())
    for tensor in (layer.dictionary.detach(), images):
        key.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
        key.update(tensor.cpu().contiguous().numpy().tobytes())
    return key.hexdigest()[:24]
