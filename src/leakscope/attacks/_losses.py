"""What a decoder is trained to minimise; low is good, and a perfect picture scores zero."""

from __future__ import annotations

from collections.abc import Callable

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

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
}
