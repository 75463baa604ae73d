"""What a decoder is trained to minimise; low is good, and a perfect picture scores zero."""

from __future__ import annotations

from collections.abc import Callable

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.errors import UsageError

Loss = Callable[[Tensor, Tensor], Tensor]


def one_minus_ssim(guess: Tensor, truth: Tensor) -> Tensor:
    """1 − SSIM with an 11×11 Gaussian window (σ = 1.5), smaller on smaller pictures.

    Wang et al., "Image quality assessment: from error visibility to structural similarity", 2004.
    """
    side = min(11, *(length - 1 + length % 2 for length in guess.shape[2:]))
    offsets = torch.arange(side, device=guess.device, dtype=guess.dtype) - side // 2
    line = (-offsets.square() / (2 * 1.5**2)).exp()
    line = line / line.sum()
    channels = guess.shape[1]
    window = (line[:, None] * line).expand(channels, 1, side, side)

    def blur(x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, window, groups=channels)

    mean_g, mean_t = blur(guess), blur(truth)
    variance_g, variance_t = blur(guess.square()) - mean_g.square(), blur(truth.square()) - mean_t.square()
    covariance = blur(guess * truth) - mean_g * mean_t
    luminance = (2 * mean_g * mean_t + 0.01**2) / (mean_g.square() + mean_t.square() + 0.01**2)
    structure = (2 * covariance + 0.03**2) / (variance_g + variance_t + 0.03**2)
    return 1 - (luminance * structure).mean()


class Perceptual(nn.Module):
    """Mean squared error plus the LPIPS distance in AlexNet's convolutions.

    Zhang et al., "The unreasonable effectiveness of deep features as a perceptual metric", 2018.
    """

    #: (index in torchvision's AlexNet, stride, padding, pooled before)
    LAYERS = ((0, 4, 2, False), (3, 1, 2, True), (6, 1, 1, True), (8, 1, 1, False), (10, 1, 1, False))
    SMALLEST = 64  # AlexNet needs room for its strides

    def __init__(self, path: str) -> None:
        super().__init__()
        try:
            tensors = load_file(path)
            for index, *_ in self.LAYERS:
                self.register_buffer(f"weight{index}", tensors[f"features.{index}.weight"])
                self.register_buffer(f"bias{index}", tensors[f"features.{index}.bias"])
            for number in range(len(self.LAYERS)):
                self.register_buffer(f"lin{number}", tensors[f"lin{number}"].view(1, -1, 1, 1))
        except (OSError, SafetensorError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"weights {path!r} of the perceptual loss cannot be read: {reason}") from None
        except KeyError as error:
            raise UsageError(f"weights {path!r} lack {error}; use lpips-alexnet-v0.1.safetensors") from None
        self.register_buffer("shift", torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1))
        self.register_buffer("scale", torch.tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1))

    def _maps(self, x: Tensor) -> list[Tensor]:
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        if min(x.shape[2:]) < self.SMALLEST:
            factor = self.SMALLEST / min(x.shape[2:])
            x = nn.functional.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)
        x = (2 * x - 1 - self.get_buffer("shift")) / self.get_buffer("scale")
        maps = []
        for index, stride, padding, pooled in self.LAYERS:
            if pooled:
                x = nn.functional.max_pool2d(x, 3, 2)
            weight, bias = self.get_buffer(f"weight{index}"), self.get_buffer(f"bias{index}")
            x = nn.functional.conv2d(x, weight, bias, stride=stride, padding=padding).relu()
            maps.append(x / (x.square().sum(1, keepdim=True) + 1e-10).sqrt())
        return maps

    def distance(self, guess: Tensor, truth: Tensor) -> Tensor:
        """LPIPS, one value an image."""
        total = torch.zeros(len(guess), device=guess.device)
        for number, (a, b) in enumerate(zip(self._maps(guess), self._maps(truth), strict=True)):
            total = total + ((a - b).square() * self.get_buffer(f"lin{number}")).sum(1).flatten(1).mean(1)
        return total

    def forward(self, guess: Tensor, truth: Tensor) -> Tensor:
        return nn.functional.mse_loss(guess, truth) + self.distance(guess, truth).mean()


class RandomConvolutions(nn.Module):
    """Mean squared error plus 1 − cosine of features in random convolutions, averaged over places and three layers.

    Random filters keep edges and textures apart without having been trained on anybody's pictures, so that
    the loss needs no file. He, Wang & Hopcroft, "A powerful generative model using random weights for the deep
    image representation", 2016. The filters are not those of any metric: an attack must not own its evaluator.
    """

    WIDTHS = (16, 32, 64)

    def __init__(self) -> None:
        super().__init__()
        rng = seeds.generator(0, "attacks", "random-conv")
        inputs = 3
        for number, width in enumerate(self.WIDTHS):
            filters = torch.randn(width, inputs, 3, 3, generator=rng) * (2 / (9 * inputs)) ** 0.5
            self.register_buffer(f"weight{number}", filters)
            # Without biases a picture faded towards grey would have the features of the picture itself.
            self.register_buffer(f"bias{number}", 0.5 * torch.randn(width, generator=rng))
            inputs = width

    def _maps(self, x: Tensor) -> list[Tensor]:
        x = 2 * (x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x) - 1
        maps: list[Tensor] = []
        for number in range(len(self.WIDTHS)):
            if maps and min(x.shape[2:]) > 1:
                x = nn.functional.avg_pool2d(x, 2)
            weight, bias = self.get_buffer(f"weight{number}"), self.get_buffer(f"bias{number}")
            x = nn.functional.conv2d(x, weight, bias, padding=1).relu()
            maps.append(x)
        return maps

    def forward(self, guess: Tensor, truth: Tensor) -> Tensor:
        distances = [
            1 - nn.functional.cosine_similarity(a, b, dim=1, eps=1e-6).mean()
            for a, b in zip(self._maps(guess), self._maps(truth), strict=True)
        ]
        return nn.functional.mse_loss(guess, truth) + torch.stack(distances).mean()


def _perceptual(weights: str | None, device: torch.device) -> Loss:
    if weights is None:
        raise UsageError("loss=perceptual needs weights=PATH to lpips-alexnet-v0.1.safetensors")
    return Perceptual(weights).to(device)


#: Each takes the path of a weights file, which only one of them reads, and the device.
LOSSES: dict[str, Callable[[str | None, torch.device], Loss]] = {
    "mse": lambda weights, device: nn.functional.mse_loss,
    "l1": lambda weights, device: nn.functional.l1_loss,
    "ssim": lambda weights, device: one_minus_ssim,
    "perceptual": _perceptual,
    "random-conv": lambda weights, device: RandomConvolutions().to(device),
}
