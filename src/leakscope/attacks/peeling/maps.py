"""Linear maps between batches of feature maps, with their adjoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.devices import widened

Shape = tuple[int, ...]


def rank(matrix: Tensor) -> int:
    """Singular values above rounding in the matrix's own precision, though found in double."""
    tolerance = max(matrix.shape) * torch.finfo(matrix.dtype).eps
    return int(torch.linalg.matrix_rank(widened(matrix), rtol=tolerance))


class Linear(Protocol):
    """A linear map between batches, its adjoint, and a bound on its rank."""

    rank_bound: int

    def __call__(self, v: Tensor) -> Tensor: ...

    def adjoint(self, u: Tensor) -> Tensor: ...


@dataclass
class Convolution:
    """`conv2d` without bias; its adjoint is `conv_transpose2d` with the same weights.

    Without stride the adjoint is also a convolution, with the kernel turned round and its channels
    exchanged, which runs up to twice as fast on a CPU.
    """

    weight: Tensor
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    inputs: Shape
    outputs: Shape

    def __post_init__(self) -> None:
        # Several input sizes give one output size under stride: this picks the one that was traced.
        self.rest = tuple(
            size - ((out - 1) * step - 2 * pad + (kernel - 1) * gap + 1)
            for size, out, step, pad, kernel, gap in zip(
                self.inputs[1:],
                self.outputs[1:],
                self.stride,
                self.padding,
                self.weight.shape[2:],
                self.dilation,
                strict=True,
            )
        )
        turned = [
            gap * (kernel - 1) - pad
            for gap, kernel, pad in zip(self.dilation, self.weight.shape[2:], self.padding, strict=True)
        ]
        self.turned: Tensor | None = None
        if self.stride == (1, 1) and self.groups == 1 and min(turned) >= 0:
            self.turned, self.turned_padding = self.weight.flip(2, 3).transpose(0, 1).contiguous(), turned
        numel = [int(torch.Size(shape).numel()) for shape in (self.inputs, self.outputs)]
        self.rank_bound = min(numel)
        if self.pointwise:
            matrix_rank = rank(self.weight[:, :, 0, 0])
            self.rank_bound = matrix_rank * self.outputs[1] * self.outputs[2]

    @property
    def pointwise(self) -> bool:
        return self.weight.shape[2:] == (1, 1) and self.groups == 1 and self.padding == (0, 0)

    def __call__(self, v: Tensor) -> Tensor:
        return F.conv2d(v, self.weight, None, self.stride, self.padding, self.dilation, self.groups)

    def adjoint(self, u: Tensor) -> Tensor:
        if self.turned is not None:
            return F.conv2d(u, self.turned, None, 1, self.turned_padding, self.dilation)
        return self._transposed(u, self.weight)

    def _transposed(self, u: Tensor, weight: Tensor) -> Tensor:
        rest = list(self.rest)
        return F.conv_transpose2d(u, weight, None, self.stride, self.padding, rest, self.groups, self.dilation)

    def pseudoinverse(self) -> Callable[[Tensor], Tensor]:
        """Of a 1×1 convolution: each kept pixel is a matrix product, each skipped one is zero."""
        inverse = torch.linalg.pinv(widened(self.weight[:, :, 0, 0])).to(self.weight)  # in × out
        return lambda u: self._transposed(u, inverse.t()[:, :, None, None].contiguous())


@dataclass
class Scaling:
    """Multiplication with one number per channel."""

    scale: Tensor  # C, or 1×C×1×1 after __post_init__
    shape: Shape

    def __post_init__(self) -> None:
        self.scale = self.scale.view(1, -1, *(1 for _ in self.shape[1:]))
        self.rank_bound = int(torch.Size(self.shape).numel())

    def __call__(self, v: Tensor) -> Tensor:
        return v * self.scale

    adjoint = __call__


@dataclass
class Recorded:
    """Any other linear map (pooling by averages, subsampling, padding, reshaping); autograd gives the adjoint."""

    function: Callable[[Tensor], Tensor]
    inputs: Shape
    outputs: Shape

    def __post_init__(self) -> None:
        self.rank_bound = min(int(torch.Size(shape).numel()) for shape in (self.inputs, self.outputs))

    def __call__(self, v: Tensor) -> Tensor:
        return self.function(v)

    def adjoint(self, u: Tensor) -> Tensor:
        with torch.enable_grad():
            x = torch.zeros(len(u), *self.inputs, dtype=u.dtype, device=u.device, requires_grad=True)
            return torch.autograd.grad(self.function(x), x, u)[0]
