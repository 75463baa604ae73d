"""What residual blocks are made of: affine maps with their adjoints, activations, and the rest.

Batch norm in eval mode is affine. After or before a convolution without groups its scale folds into
the weights; the shift of a batch norm before a *zero-padded* convolution is a map over the picture,
not one number per channel, so every constant is kept as a map: `A x = linear(x) + A(0)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakscope.attacks.peeling.maps import Convolution, Linear, Recorded, Scaling, Shape


@dataclass
class Affine:
    """`A x = L_k … L_1 x + A(0)`."""

    maps: tuple[Linear, ...]
    constant: Tensor | None  # 1×…, None when it is zero

    def __call__(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return x if self.constant is None else x + self.constant

    def linear(self, v: Tensor) -> Tensor:
        for part in self.maps:
            v = part(v)
        return v

    def adjoint(self, u: Tensor) -> Tensor:
        for part in reversed(self.maps):
            u = part.adjoint(u)
        return u

    def linearise(self, x: Tensor) -> tuple[Tensor, Products]:
        return self(x), Products(self.linear, self.adjoint)

    @property
    def rank_bound(self) -> int | None:
        """None for the identity, whose rank is that of the space it acts on."""
        return min((part.rank_bound for part in self.maps), default=None)

    def pseudoinverse(self) -> Callable[[Tensor], Tensor] | None:
        """Where it is cheap: the identity, and one 1×1 convolution."""
        if not self.maps:
            return lambda u: u
        only = self.maps[0]
        return (
            only.pseudoinverse() if len(self.maps) == 1 and isinstance(only, Convolution) and only.pointwise else None
        )


IDENTITY = Affine((), None)


@dataclass
class Products:
    """`J v` and `Jᵀ u` at one point; `active` counts the units an activation lets through, per picture."""

    forward: Callable[[Tensor], Tensor]
    adjoint: Callable[[Tensor], Tensor]
    active: Callable[[], Tensor] | None = None


@dataclass
class Rectifier:
    """`z` where z > 0, `slope · z` elsewhere: ReLU (slope 0), LeakyReLU, PReLU (one slope a channel)."""

    slope: Tensor  # broadcasts against a batch
    relu: InitVar[bool | None] = None  # whether all slopes are zero, if known: an accelerator waits for a look

    def __post_init__(self, relu: bool | None) -> None:
        self.plain = not bool(self.slope.any()) if relu is None else relu  # ReLU has its own fast kernel

    def __call__(self, z: Tensor) -> Tensor:
        return torch.relu(z) if self.plain else torch.where(z > 0, z, self.slope * z)

    def slopes(self, z: Tensor) -> Tensor:
        return self._factor(z > 0, z.dtype)

    def _factor(self, positive: Tensor, dtype: torch.dtype) -> Tensor:
        on = positive.to(dtype)
        return on if self.plain else on * (1 - self.slope) + self.slope

    def linearise(self, z: Tensor) -> tuple[Tensor, Products]:
        """Only the signs are kept, one byte per number: a wide network at 224 pixels has 10⁸ of them."""
        positive = (z > 0).view(torch.uint8)  # bytes multiply faster than truth values

        def through(v: Tensor) -> Tensor:
            return v * positive if self.plain else v * self._factor(positive, v.dtype)

        def active() -> Tensor:
            return (self._factor(positive, self.slope.dtype) != 0).flatten(1).sum(1)

        return through(z), Products(through, through, active)

    @property
    def invertible(self) -> bool:
        return not self.plain and bool((self.slope > 0).all())

    def invert(self, y: Tensor) -> Tensor:
        return torch.where(y > 0, y, y / self.slope)


@dataclass
class Smooth:
    """A part that is not a chain of affine maps and rectifiers (attention, GELU, max-pooling): differentiated."""

    function: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)

    def linearise(self, x: Tensor) -> tuple[Tensor, Products]:
        return products(self.function, x)


def products(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Products]:
    """`f(x)` with `J v` and `Jᵀ u` there, each for about one forward pass.

    The graph of `u ↦ Jᵀ u` is linear in u, so its own gradient is `v ↦ J v`. Fused attention kernels
    have no second derivative: the plain one is used.
    """
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        x = x.detach().requires_grad_()
        y = function(x)
    if not y.requires_grad:  # a step that rounds, compares or draws by itself
        shape, size = y.shape, x.shape
        return y, Products(lambda v: v.new_zeros(shape), lambda w: w.new_zeros(size))

    @functools.cache
    def pullback() -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            u = torch.zeros_like(y, requires_grad=True)
            return u, torch.autograd.grad(y, x, u, create_graph=True)[0]

    def forward(v: Tensor) -> Tensor:
        u, pulled = pullback()
        # A step of an encoder that rounds has no gradient at all.
        return torch.autograd.grad(pulled, u, v, retain_graph=True, allow_unused=True, materialize_grads=True)[0]

    def adjoint(w: Tensor) -> Tensor:
        return torch.autograd.grad(y, x, w, retain_graph=True)[0]

    return y.detach(), Products(forward, adjoint)


Piece = Affine | Rectifier | Smooth


def affine(parts: Sequence[tuple[nn.Module | None, Callable[[Tensor], Tensor]]], example: Tensor) -> Affine:
    """The affine map `part_k ∘ … ∘ part_1` with batch norms folded into convolutions.

    Each part comes with its module, if it is one, and as a function.
    """
    maps: list[Linear] = []
    pending: Tensor | None = None  # scale of a batch norm that waits for its convolution
    x = torch.zeros_like(example)
    for module, apply in parts:
        before = x
        x = apply(x)
        inputs, outputs = tuple(before.shape[1:]), tuple(x.shape[1:])
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            scale = _scale(module)
            last = maps[-1] if maps and pending is None else None
            if isinstance(last, Convolution):
                last.weight = last.weight * scale.view(-1, 1, 1, 1)
                last.__post_init__()
            else:
                pending = scale if pending is None else pending * scale
            continue
        convolution = _convolution(module, inputs, outputs)
        if pending is not None:
            if convolution is not None and convolution.groups == 1:
                convolution.weight = convolution.weight * pending.view(1, -1, 1, 1)
                convolution.__post_init__()
            else:
                maps.append(Scaling(pending, inputs))
            pending = None
        if convolution is not None:
            maps.append(convolution)
        elif not _is_identity(module):
            maps.append(Recorded(_without_constant(apply, torch.zeros_like(before)), inputs, outputs))
    if pending is not None:
        maps.append(Scaling(pending, tuple(x.shape[1:])))
    # x is now the image of zero under all parts: the constant.
    return Affine(tuple(maps), x if _may_be_nonzero(x) else None)


def _may_be_nonzero(x: Tensor) -> bool:
    """Adding zeros costs an accelerator less than the wait that would tell."""
    return x.device.type != "cpu" or bool(x.any())


def _is_identity(module: nn.Module | None) -> bool:
    """In eval mode; the IR networks write the identity as pooling over one pixel."""
    if isinstance(module, nn.MaxPool2d):
        return module.kernel_size in (1, (1, 1)) and module.stride in (1, (1, 1))
    return isinstance(module, nn.Identity | nn.Dropout | nn.Dropout2d)


def _scale(norm: nn.BatchNorm2d | nn.BatchNorm1d) -> Tensor:
    assert norm.running_var is not None
    scale = torch.rsqrt(norm.running_var + norm.eps)
    return scale if norm.weight is None else scale * norm.weight


def _without_constant(function: Callable[[Tensor], Tensor], zero: Tensor) -> Callable[[Tensor], Tensor]:
    constant = function(zero)
    return (lambda v: function(v) - constant) if _may_be_nonzero(constant) else function


def _convolution(module: nn.Module | None, inputs: Shape, outputs: Shape) -> Convolution | None:
    if not isinstance(module, nn.Conv2d) or module.padding_mode != "zeros" or isinstance(module.padding, str):
        return None
    height, width = module.padding
    return Convolution(
        module.weight.detach().clone(),
        (module.stride[0], module.stride[1]),
        (height, width),
        (module.dilation[0], module.dilation[1]),
        module.groups,
        inputs,
        outputs,
    )
