"""A small style generator: a W space without a downloaded StyleGAN."""

from __future__ import annotations

import itertools
from collections import abc
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.prior import PRIORS, Generator, PriorState
from leakscope.core.spec import LATER
from leakscope.nn.adversarial import LOSSES
from leakscope.nn.precision import Precision
from leakscope.nn.weights import part, take_over
from leakscope.priors._adversarial import AdversarialPrior
from leakscope.priors._convolutional import Critic, ladder, settled
from leakscope.priors._mapping import Mapping
from leakscope.priors._modulation import GAIN, SLOPE, ScaledLinear, demodulation
from leakscope.priors._styled import StyledGenerator

_AVERAGED = 8192  # latents behind the mean style
_MAPPING_RATE = 0.1  # the mapping network learns slower than the rest; 0.01 in StyleGAN, over far more steps


@PRIORS.register("style")
@dataclass(frozen=True)
class Style(AdversarialPrior):
    """A mapping network z ↦ w and modulated convolutions that read w at every size.

    w = LReLU_{0.2}(W_d(… LReLU_{0.2}(W_1 z/‖z‖))); each layer convolves with weights w_oi·s_i(w), scaled to
    unit norm. The equations of each `loss` are in `nn.adversarial`.

    Karras et al., "Analyzing and improving the image quality of StyleGAN", 2020.

    Differs from the paper: two mapping layers, one convolution a size (transposed, 4×4, without a filter
    behind it), colours not modulated, no noise inputs, no path-length penalty, the critic of `dcgan`; 0.2
    million weights rather than thirty.
    """

    loss: Literal["hinge", "logistic", "wgan-gp"] = "hinge"
    width: int = 24
    latent: int = 64
    depth: int = 2  # layers of the mapping network
    size: int | None = None  # of the pictures; None: that of the public ones
    steps: int = 1200
    batch: int = 32
    learning_rate: float = 5e-4
    penalty: float = 0.5
    penalty_every: int = 8
    average: float = 0.995
    opening: int = 300  # steps of imitating the principal components first; 0: none
    precision: Precision = field(default="float32", metadata=LATER)  # of training, where the device has it

    has_mapping: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth < 1:
            raise ValueError("depth must be 1 or more")

    def network(self, shape: tuple[int, int, int]) -> StyleNetwork:
        return StyleNetwork(shape, self.latent, self.width, self.depth)

    def critic(self, shape: tuple[int, int, int]) -> Critic:
        return Critic(shape, self.width, normalized=False)

    def finish(self, network: nn.Module, seed: int) -> None:
        assert isinstance(network, StyleNetwork)
        network.find_mean_style(torch.randn(_AVERAGED, self.latent, generator=seeds.generator(seed, "mean style")))

    def generator(self, state: PriorState, device: torch.device) -> Generator:
        network, critic = self.network(state.shape), self.critic(state.shape)
        take_over(network, part(state.tensors, "network"), device)
        take_over(critic, part(state.tensors, "critic"), device)
        finished = StyledGenerator(
            state.shape, self.latent, network.mapping, network.synthesis, Tensor.contiguous, critic=critic,
            opinion=LOSSES[self.loss].generator, hidden_maps=True,
        )  # fmt: skip
        return settled(finished, device).eval().requires_grad_(False)


class StyleNetwork(nn.Module):
    """Mapping and synthesis, as they are trained."""

    def __init__(self, shape: tuple[int, int, int], latent: int, width: int, depth: int) -> None:
        super().__init__()
        self.mapping = Mapping(latent, latent, depth, rate=_MAPPING_RATE)
        self.synthesis = SmallSynthesis(shape, latent, width)

    def forward(self, z: Tensor) -> Tensor:
        w: Tensor = self.mapping(z)
        images: Tensor = self.synthesis(w[:, None].expand(-1, self.synthesis.layers, -1))
        return images

    @torch.no_grad()
    def find_mean_style(self, z: Tensor) -> None:
        self.mapping.w_avg.copy_(self.mapping(z.to(self.mapping.w_avg.device)).mean(0))


class SmallSynthesis(nn.Module):
    """A learnt coarse map, doubled by modulated convolutions; the picture is the sum of what each size draws."""

    def __init__(self, shape: tuple[int, int, int], style: int, width: int) -> None:
        super().__init__()
        size, doublings = ladder(shape)
        widths = [width * 2 ** max(0, doublings - 1 - rung) for rung in range(doublings + 1)]
        self.layers = doublings + 1
        self.coarse = nn.Parameter(torch.randn(1, widths[0], size, size))
        self.first = Modulated(widths[0], widths[0], 3, style)
        self.doublings = nn.ModuleList(
            Modulated(before, after, 4, style) for before, after in itertools.pairwise(widths)
        )
        self.colours = nn.ModuleList(nn.Conv2d(channels, shape[0], 1) for channels in widths)

    def forward(self, styles: Tensor, changes: abc.Mapping[int, Tensor] | None = None) -> Tensor:
        """Pictures; `changes` are added to the hidden maps of some sizes, coarsest first."""
        changed = changes or {}
        x = _with(self.hidden(styles, 0, {}), changed.get(0))
        image = self.colours[0](x)
        for rung, (doubled, colour) in enumerate(zip(self.doublings, self.colours[1:], strict=True), start=1):
            x = _with(doubled(x, styles[:, rung]), changed.get(rung))
            coarse = F.interpolate(image, scale_factor=2, mode="bilinear", align_corners=False)
            image = coarse + colour(x)
        pixels: Tensor = image.sigmoid()
        return pixels

    def hidden(self, styles: Tensor, block: int, changes: abc.Mapping[int, Tensor]) -> Tensor:
        """The hidden map of a size, when `changes` are added to those of the sizes before it."""
        x: Tensor = self.first(self.coarse.expand(len(styles), -1, -1, -1), styles[:, 0])
        for rung in range(block):
            x = self.doublings[rung](_with(x, changes.get(rung)), styles[:, rung + 1])
        return x


def _with(x: Tensor, change: Tensor | None) -> Tensor:
    return x if change is None else x + change


class Modulated(nn.Module):
    """A modulated convolution with bias and rectifier: 3×3 keeps the size, transposed 4×4 doubles it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, style: int) -> None:
        super().__init__()
        self.affine = ScaledLinear(style, inputs, bias=1.0)
        self.weight = nn.Parameter(torch.randn(outputs, inputs, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        style = self.affine(w)
        # The rectifier's gain is taken before it, where it costs nothing: LReLU(√2·x) = √2·LReLU(x).
        scale, bias = GAIN * demodulation(self.weight, style), GAIN * self.bias
        x = x * style[:, :, None, None]
        if self.weight.shape[-1] == 3:
            y = F.conv2d(x, self.weight, padding=1)
        else:
            y = F.conv_transpose2d(x, self.weight.transpose(0, 1), stride=2, padding=1)
            scale = 2 * scale  # of the sixteen taps four meet a pixel
        return F.leaky_relu(torch.addcmul(bias.view(-1, 1, 1), y, scale[:, :, None, None]), SLOPE)
