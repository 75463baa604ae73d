"""The decoder: a network trained to turn released features back into pictures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch

from leakscope.attacks._decoder_training import Course, Network, apply, learn
from leakscope.attacks._decoders import Capacity, unfit
from leakscope.attacks._losses import LOSSES
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.model import SplitModel
from leakscope.core.spec import LATER
from leakscope.core.threat import Access, View
from leakscope.nn.precision import Precision


@ATTACKS.register("decoder", revision=3)
@dataclass(frozen=True)
class TrainedDecoder(Attack):
    """Trains a network on the defended features of the attacker's pictures, and applies it to the victims'.

        min_θ Σ ℓ(D_θ(release(encoder(x))), x)   over public x

    with fresh noise in every step when the release is random; the best look at the attacker's own validation
    slice is kept. Without `steps`, training goes in rounds of 4, 8, 16, 32 and 64 passes over the pictures, each
    one cycle of the rate at half the height of the last, and ends when a round lowers the validation loss by less
    than a fiftieth, or with `converged` false. With `steps`, it is one cycle of so many, looked at ten times,
    and ends early when `patience` looks in a row bring nothing. `loss` is ℓ: mse, l1, ssim (1 − SSIM), or
    squared error plus a distance of deep features: "perceptual" in AlexNet, whose `weights` must be given,
    "random-conv" in random convolutions, which need no file.

    Dosovitskiy & Brox, "Inverting visual representations with convolutional networks", 2016. `front`
    residual is `res_normN8C64` (capacity large; medium N4C64) of Xia et al., "CEM", 2025; losses of features
    after Johnson, Alahi & Fei-Fei, "Perceptual losses for real-time style transfer and super-resolution", 2016.

    Differs from the papers: AdamW on one cycle of the learning rate with standardised features, and
    the slice that stops training is never the victims.
    """

    front: Literal["auto", "conv", "dense", "residual", "rows"] = "auto"
    capacity: Capacity = "medium"
    loss: Literal["mse", "l1", "ssim", "perceptual", "random-conv"] = "mse"
    weights: str | None = None  # of the perceptual loss: lpips-alexnet-v0.1.safetensors
    steps: int | None = None  # None: until a longer round brings nothing
    batch: int = 16
    learning_rate: float = 5e-3
    weight_decay: float = 1e-4
    validation: float = 0.1
    patience: int = 4
    precision: Precision = field(default="float32", metadata=LATER)  # of training, where the device has it
    compiled: bool = field(default=False, metadata=LATER)  # train by torch.compile

    needs: ClassVar[frozenset[Access]] = frozenset({Access.FEATURES, Access.QUERY})
    averages_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._course()

    def _course(self) -> Course:
        return Course(
            self.steps, self.batch, self.learning_rate, self.weight_decay, self.validation, self.patience,
            self.precision, self.compiled,
        )  # fmt: skip

    def unsuited(self, split: SplitModel, image_shape: tuple[int, int, int]) -> str | None:
        was_training = split.training
        device = next((p.device for p in split.parameters()), torch.device("cpu"))
        with torch.no_grad():
            shape = tuple(split.eval().encode(torch.zeros(1, *image_shape, device=device)).shape[1:])
        split.train(was_training)
        return unfit(self.front, shape, image_shape)

    def prepare(self, view: View, rng: torch.Generator) -> Prepared:
        loss = LOSSES[self.loss](self.weights, view.device)
        network = Network(self.front, self.capacity)
        return learn(view, network, self._course(), loss, lambda *_: lambda guess, x, z: loss(guess, x), rng)

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        return apply(view, Network(self.front, self.capacity), prepared, seen, "decoder")
