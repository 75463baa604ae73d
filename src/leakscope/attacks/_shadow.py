"""A shadow of an encoder that nobody handed over: trained until its features look like those that were seen."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from leakscope.attacks._decoders import ImageShape, Shape, doublings, map_shape, token_grid
from leakscope.attacks._release import channel_statistics

_WIDTH = 16  # channels of the layers before the last
_LAGS = ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0))  # distances at which features are compared with each other
_BANDWIDTHS = (0.25, 1.0, 4.0)  # of the kernels, in median squared distances
_ROWS = 192  # feature vectors of single places that the kernels compare at once
_WIDEST = 256  # channels above which random sums of them are compared
_MEANS, _KERNELS = 3.0, 0.1  # weights of the means and of the kernel distance, beside covariances at one


class Shadow(nn.Module):
    """Pictures to features of the shape that was seen, by convolutions such as most networks begin with.

    A map is reached by 3×3 convolutions, halving where the picture is larger; a vector by a linear layer on such a
    map. What lies outside of the picture (`outside`, black at first) and the noise of the release are learnt too.
    """

    def __init__(self, image: ImageShape, shape: Shape) -> None:
        super().__init__()
        place = map_shape(shape)
        channels, height, width = place or (_WIDTH, max(1, image[1] // 4), max(1, image[2] // 4))
        halvings = max(doublings(height, image[1]), doublings(width, image[2]))
        widths = [_WIDTH] * max(1, halvings) + [channels]
        self.body = nn.Sequential(nn.Conv2d(image[0], _WIDTH, 3, padding=1))
        for before, behind in itertools.pairwise(widths):
            conv = nn.Conv2d(before, behind, 3, stride=2 if halvings else 1, padding=1)
            self.body.extend((nn.LeakyReLU(0.2), conv))
        self.size = (height, width)
        outputs = channels if place is not None else math.prod(shape)
        self.dense = None if place is not None else nn.Linear(channels * height * width, outputs)
        self.outside = nn.Parameter(torch.zeros(image[0], 1, 1))
        self.noise = nn.Parameter(torch.full((outputs, 1, 1), 0.1))

    def forward(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """Features as maps N×C×h×w with fresh noise; a vector is a map of one place."""
        z: Tensor = self.body(x - self.outside)
        if tuple(z.shape[2:]) != self.size:
            z = nn.functional.adaptive_avg_pool2d(z, self.size)
        if self.dense is not None:
            z = self.dense(z.flatten(1))[:, :, None, None]
        return z + self.noise * torch.randn(z.shape, generator=rng, device=rng.device).to(z)


def as_places(z: Tensor) -> Tensor:
    """Seen features as a shadow gives them: tokens laid out as a map without the class token, others as one place."""
    shape = tuple(z.shape[1:])
    grid = token_grid(shape)
    if grid is not None:
        laid_out: Tensor = z[:, grid[0] :].mT.unflatten(2, (grid[1], grid[1]))
        return laid_out
    return z if map_shape(shape) is not None else z.flatten(1)[:, :, None, None]


class Likeness:
    """How far features are from those seen: means at every place, covariances at small distances, and kernels.

        3·‖μ(z) − μ(seen)‖² + Σ_lag ‖Cov_lag(z) − Cov_lag(seen)‖² + MMD²(z, seen) / 10

    each a mean over its entries, with seen features of mean zero and deviation one in every channel. The kernel
    distance compares feature vectors of single places under Gaussians of three widths, without bias.

    Gretton et al., "A kernel two-sample test", 2012.
    """

    def __init__(self, seen: Tensor, rng: torch.Generator) -> None:
        self.center, self.scale = channel_statistics(seen)
        self.rng = rng
        channels = seen.shape[1]
        self.mix: Tensor | None = None
        if channels > _WIDEST:
            signs = torch.randn(channels, _WIDEST, generator=rng, device=rng.device).to(seen)
            self.mix = signs / channels**0.5
        self.seen = self.standard(seen)
        self.means, self.covariances = _moments(self._mixed(self.seen))

    def standard(self, z: Tensor) -> Tensor:
        return (z - self.center) / self.scale

    def _mixed(self, z: Tensor) -> Tensor:
        return z if self.mix is None else torch.einsum("nchw,cd->ndhw", z, self.mix)

    def __call__(self, z: Tensor) -> Tensor:
        """Of features in standard units."""
        z = self._mixed(z)
        means, covariances = _moments(z)
        moments = _MEANS * (means - self.means).square().mean() + (covariances - self.covariances).square().mean()
        return moments + _KERNELS * kernel_distance(self._places(z), self._places(self._mixed(self.seen)))

    def _places(self, z: Tensor) -> Tensor:
        rows = z.movedim(1, 3).flatten(0, 2)
        chosen = torch.randperm(len(rows), generator=self.rng, device=self.rng.device)[:_ROWS]
        return rows[chosen.to(rows.device)]


def _moments(z: Tensor) -> tuple[Tensor, Tensor]:
    """Means at every place, C×h×w, and covariances of the channels at every distance that fits, L×C×C."""
    away = z - z.mean((0, 2, 3), keepdim=True)
    count, _, height, width = z.shape
    found = []
    for down, right in _LAGS:
        if down < height and right < width:
            later, earlier = away[:, :, down:, right:], away[:, :, : height - down, : width - right]
            pairs = count * (height - down) * (width - right)
            found.append(torch.einsum("nchw,ndhw->cd", later, earlier) / pairs)
    return z.mean(0), torch.stack(found)


def kernel_distance(first: Tensor, second: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of two samples N×C, M×C, without bias; zero when one has fewer than two."""
    n, m = len(first), len(second)
    if min(n, m) < 2:
        return first.new_zeros(())
    both = torch.cat((first, second))
    squared = (both[:, None] - both[None]).square().sum(2) if both.shape[1] < 4 else _squared(both)
    width = squared.detach().median().clamp_min(1e-6)
    kernel = torch.stack([torch.exp(-squared / (share * width)) for share in _BANDWIDTHS]).mean(0)
    own = kernel - torch.diag(kernel.diagonal())
    return own[:n, :n].sum() / (n * (n - 1)) + own[n:, n:].sum() / (m * (m - 1)) - 2 * kernel[:n, n:].mean()


def _squared(rows: Tensor) -> Tensor:
    lengths = rows.square().sum(1)
    return (lengths[:, None] + lengths[None] - 2 * rows @ rows.T).clamp_min(0)
