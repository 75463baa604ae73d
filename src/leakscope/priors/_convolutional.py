"""Convolutional generator and critic of the DCGAN family, for any square picture that halves down to 4…7 pixels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from leakscope.core.errors import UsageError
from leakscope.core.prior import written

Network = TypeVar("Network", bound=nn.Module)


def ladder(shape: tuple[int, int, int]) -> tuple[int, int]:
    """Coarsest size and number of doublings up to the picture's: 28 is 7·2², 64 is 4·2⁴."""
    channels, height, width = shape
    size, doublings = height, 0
    while size > 7 and size % 2 == 0:
        size, doublings = size // 2, doublings + 1
    if channels not in (1, 3) or height != width or not 4 <= size <= 7 or doublings < 1:
        raise UsageError(
            f"this prior makes square pictures of 1 or 3 channels whose size is 4 to 7 times a power of two "
            f"(16, 28, 32, 64, …), not {written(shape)}; resize the dataset"
        )
    return size, doublings


class Upward(nn.Module):
    """z → coarse map → doubled by transposed 4×4 convolutions with batch normalisation → colours → sigmoid."""

    def __init__(self, shape: tuple[int, int, int], latent: int, width: int) -> None:
        super().__init__()
        size, doublings = ladder(shape)
        widths = [width * 2**i for i in reversed(range(doublings))]
        self.coarse = (widths[0], size, size)
        numbers = widths[0] * size * size
        self.lift = nn.Sequential(nn.Linear(latent, numbers, bias=False), nn.BatchNorm1d(numbers), nn.ReLU())
        steps: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            steps += [nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        # A transposed convolution to colours would leave a checkerboard where the picture is smooth.
        steps += [nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(widths[-1], shape[0], 3, padding=1)]
        self.rise = nn.Sequential(*steps, nn.Sigmoid())
        for module in self.modules():
            if isinstance(module, nn.ConvTranspose2d):
                nn.init.normal_(module.weight, 0, 0.02)

    def forward(self, z: Tensor) -> Tensor:
        images: Tensor = self.rise(self.lift(z).view(-1, *self.coarse))
        return images

    @property
    def blocks(self) -> int:
        """Hidden maps: the coarse one, and one behind each transposed convolution."""
        return 1 + sum(isinstance(module, nn.ConvTranspose2d) for module in self.rise)

    def hidden(self, z: Tensor, block: int, changes: Mapping[int, Tensor]) -> Tensor:
        """The hidden map of a block, when `changes` are added to those before it."""
        x: Tensor = self.lift(z).view(-1, *self.coarse)
        for number in range(block):
            x = self.rise[3 * number : 3 * number + 3](x + changes.get(number, 0))
        return x

    def finished(self, x: Tensor, changes: Mapping[int, Tensor]) -> Tensor:
        """Pictures of the last hidden map."""
        last = self.blocks - 1
        images: Tensor = self.rise[3 * last :](x + changes.get(last, 0))
        return images


class Downward(nn.Module):
    """Pictures to features: strided 4×4 convolutions, leaky rectifiers, instance normalisation when asked."""

    def __init__(self, shape: tuple[int, int, int], width: int, *, normalized: bool) -> None:
        super().__init__()
        size, doublings = ladder(shape)
        steps: list[nn.Module] = []
        before = shape[0]
        for rung in range(doublings):
            after = width * 2**rung
            steps.append(nn.Conv2d(before, after, 4, 2, 1))
            if normalized and rung:
                steps.append(nn.InstanceNorm2d(after, affine=True))
            steps.append(nn.LeakyReLU(0.2))
            before = after
        self.fall = nn.Sequential(*steps)
        self.features = before * size * size

    def forward(self, images: Tensor) -> Tensor:
        flat: Tensor = self.fall(2 * images - 1).flatten(1)
        return flat


class Critic(nn.Module):
    """One score a picture."""

    def __init__(self, shape: tuple[int, int, int], width: int, *, normalized: bool) -> None:
        super().__init__()
        self.body = Downward(shape, width, normalized=normalized)
        self.score = nn.Linear(self.body.features, 1)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.score(self.body(images)).squeeze(1)
        return scores


def settled(network: Network, device: torch.device) -> Network:
    """On a device, channels last: a quarter faster on a CPU."""
    network.to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


@torch.no_grad()
def recalibrate(network: nn.Module, latents: Tensor, batch: int) -> None:
    """Give batch normalisation the statistics of these weights.

    Averaged weights have other activations than those whose running statistics were copied; the
    cumulative mean over batches of `latents` is exact for what `eval` will see.
    """
    norms = [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    network.train()
    for part in latents.split(batch):
        network(part)
    network.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
