"""Features of random convolutions: always there, the same on every machine, and trained on nothing."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.nn.alexnet import to_rgb


class RandomFeatures(nn.Module):
    """Convolutions with ReLU and 2×2 averages between; pictures in [0, 1] to one map per convolution.

    Random biases keep it from being homogeneous: without them a picture faded towards grey would give the same
    feature directions as the picture itself. Each owner draws its own filters: an attack must not own its evaluator.
    """

    def __init__(self, kernels: Iterable[Tensor], biases: Iterable[Tensor]) -> None:
        super().__init__()
        self.kernels, self.biases = nn.ParameterList(kernels), nn.ParameterList(biases)
        self.requires_grad_(False)

    def forward(self, images: Tensor) -> list[Tensor]:
        x = 2 * to_rgb(images) - 1
        maps: list[Tensor] = []
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            if maps and min(x.shape[-2:]) > 1:
                x = F.avg_pool2d(x, 2)
            x = F.relu(F.conv2d(x, kernel, bias, padding=1))
            maps.append(x)
        return maps
