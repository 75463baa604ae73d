"""Smooth pictures as coordinates in which they are plain: the space that gradients search fast.

Natural pictures have little energy at high frequencies and in colour differences, so x is written as

    x = ½ + ¼ · (Lap + ε)^{−1/2} z,

with the Laplacian of a picture that is mirrored at its edges (diagonal under the cosine transform) and
the two colour differences scaled by `chroma`. Then ‖z‖² is the smoothness prior xᵀ(Lap + ε)x, and an
optimiser that treats all coordinates alike moves smooth content first.

Differs from the usual FFT: the cosine transform has no seam between opposite edges.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_OPPONENT = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))  # grey, red−blue, green−magenta


def _cosines(size: int, like: Tensor) -> Tensor:
    """The orthonormal cosine transform (DCT-II) as a matrix, frequency by position."""
    k = torch.arange(size, dtype=like.dtype, device=like.device)
    matrix = torch.cos(math.pi / size * (k[None] + 0.5) * k[:, None]) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix


class PictureSpace:
    """The map z ↦ x and its adjoint, for flat z (n×d) and pictures (n×C×H×W)."""

    def __init__(self, shape: tuple[int, int, int], epsilon: float, chroma: float, like: Tensor) -> None:
        channels, height, width = self.shape = shape
        self.rows, self.columns = _cosines(height, like), _cosines(width, like)
        laplacian = sum(
            4
            * torch.sin(math.pi * torch.arange(size, dtype=like.dtype, device=like.device) / (2 * size)).square()[view]
            for size, view in ((height, (slice(None), None)), (width, (None, slice(None))))
        )
        self.gain = 0.25 * (laplacian + epsilon) ** -0.5
        self.colours = torch.eye(channels, dtype=like.dtype, device=like.device)
        if channels == 3:
            basis = torch.tensor(_OPPONENT, dtype=like.dtype, device=like.device)
            basis = basis / basis.norm(dim=1, keepdim=True)
            self.colours = basis * torch.tensor([1.0, chroma, chroma], dtype=like.dtype, device=like.device)[:, None]

    def pixels(self, z: Tensor) -> Tensor:
        return 0.5 + self.linear(z)

    def linear(self, z: Tensor) -> Tensor:
        field = self.rows.T @ (z.view(-1, *self.shape) * self.gain) @ self.columns
        return torch.einsum("kc,nkhw->nchw", self.colours, field)

    def adjoint(self, g: Tensor) -> Tensor:
        field = torch.einsum("kc,nchw->nkhw", self.colours, g)
        return ((self.rows @ field @ self.columns.T) * self.gain).flatten(1)

    def low_pass(self) -> Tensor:
        """A factor for flat z that keeps the lower half of the frequencies along each side."""
        keep = torch.zeros(self.shape, dtype=self.gain.dtype, device=self.gain.device)
        keep[:, : -(-self.shape[1] // 2), : -(-self.shape[2] // 2)] = 1
        return keep.flatten()

    def coordinates(self, x: Tensor) -> Tensor:
        """The z of a picture: the inverse of `pixels`."""
        field = torch.einsum("ck,nchw->nkhw", torch.linalg.inv(self.colours), x - 0.5)
        return ((self.rows @ field @ self.columns.T) / self.gain).flatten(1)
