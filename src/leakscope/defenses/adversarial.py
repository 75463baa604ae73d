"""An inner attacker in the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import DEFENSES, Defense, Step
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses._encoding import deployed
from leakscope.defenses._inner_decoder import InnerDecoder
from leakscope.defenses._weight import refuse_not_positive, refuse_weight
from leakscope.nn.ssim import ssim


@dataclass(frozen=True)
class _Contest:
    """What the decoder minimises, and how far the encoder is from its goal; both of one reconstruction error."""

    error: Callable[[Tensor, Tensor], Tensor]
    success: Callable[[Tensor, float], Tensor]  # of the attacker, beyond the threshold


_CONTESTS: dict[str, _Contest] = {
    "ssim": _Contest(
        lambda guess, x: -ssim(guess, x).mean().to(x.dtype),
        lambda error, threshold: (-error - threshold).clamp_min(0),
    ),
    "mse": _Contest(nn.functional.mse_loss, lambda error, threshold: (threshold - error).clamp_min(0)),
}

#: Shares of training after which the decoder's rate falls to a fifth: epochs 60 and 150 of 240.
_MILESTONES = (0.25, 0.625)


class InnerAttacker(nn.Module):
    """A decoder and its optimiser, whose state is saved and loaded with the module."""

    error: Tensor

    def __init__(self, decoder: InnerDecoder, rate: float) -> None:
        super().__init__()
        self.decoder = decoder
        self.rate = rate
        self.optimizer = torch.optim.Adam(decoder.parameters(), rate)
        self.register_buffer("error", torch.tensor(float("nan")))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> InnerAttacker:
        """Moving a module to some devices makes its parameters anew: the optimiser follows them."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        state = self.optimizer.state_dict()
        self.optimizer = torch.optim.Adam(self.decoder.parameters(), self.rate)
        self.optimizer.load_state_dict(state)
        return self

    def get_extra_state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)

    def learn(self, z: Tensor, x: Tensor, error: Callable[[Tensor, Tensor], Tensor], steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad(set_to_none=True)
            loss = error(self.decoder(z), x)
            loss.backward()
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def attack(self, z: Tensor, x: Tensor, error: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The error of the decoder as it stands, with gradients for the encoder alone."""
        self.decoder.requires_grad_(False)
        try:
            value = error(self.decoder(z), x)
        finally:
            self.decoder.requires_grad_(True)
        self.error.copy_(value.detach())
        return value


@DEFENSES.register("adversarial", revision=2)
@dataclass(frozen=True)
class Adversarial(Defense):
    """Trains the encoder against a decoder that is trained, in turn, to invert it.

        decoder, `steps` times a batch:  min_D  −SSIM(D(z̃), x)
        encoder:  L = λ · max(0, SSIM(D(z̃), x) − t)

    with λ the `weight` and t the `threshold` below which a reconstruction no longer counts. With `loss`
    "mse" the decoder minimises MSE and L = λ · max(0, t − MSE). The decoder has Adam at `rate`, which falls
    to a fifth after a quarter and after five eighths of training.

    Li et al., "ResSFL: a resistance transfer framework for defending model inversion attack in split
    federated learning", 2022; constants of `gan_adv` in the code of Xia et al., "CEM", 2025.

    Differs from the paper: the decoder learns from what is released, noise included, as an attacker would,
    and from the features of the training step itself; it is not pre-trained on test pictures; its layers
    are normalised by groups, not batches, so that it is the same network when it learns and when it attacks.
    """

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    weight: float = 0.3
    threshold: float = 0.5
    steps: int = 3
    rate: float = 1e-3
    width: int = 64
    blocks: int = 4
    loss: Literal["ssim", "mse"] = "ssim"

    def __post_init__(self) -> None:
        refuse_weight(self.weight)
        refuse_not_positive(rate=self.rate)
        if not 0 <= self.threshold < 1:
            raise ValueError("threshold must be in [0, 1): the SSIM (or MSE) at which the encoder is content")
        if self.steps < 1 or self.width < 8 or self.width % 8 or self.blocks < 0:
            raise ValueError("steps must be at least 1, width a multiple of 8 and blocks 0 or more")
        if self.loss not in _CONTESTS:
            raise ValueError(f"unknown loss {self.loss!r}; loss must be one of {', '.join(_CONTESTS)}")

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        if self.weight == 0:
            return nn.Module()
        if self.loss == "ssim" and not data.pixels:
            raise UsageError("adversarial: points are not pictures and have no SSIM; set loss=mse")
        with deployed(split) as device:
            shape = split.encode(data.images[:1].to(device)).shape[1:]
        with seeds.ambient(int(torch.randint(2**62, (), generator=rng)), "inner-decoder"):
            return InnerAttacker(InnerDecoder(tuple(shape), data.shape, self.width, self.blocks), self.rate)

    def optimised(self, aux: nn.Module) -> Iterable[nn.Parameter]:
        return ()  # the decoder has its own optimiser, and its own goal

    def penalty(self, step: Step) -> Tensor | None:
        if self.weight == 0:
            return None
        attacker, contest = step.aux, _CONTESTS[self.loss]
        assert isinstance(attacker, InnerAttacker)
        passed = sum(step.epoch >= share * step.epochs for share in _MILESTONES)
        for group in attacker.optimizer.param_groups:
            group["lr"] = self.rate * 0.2**passed
        with torch.autocast(step.x.device.type, enabled=False):
            z = step.released.float().contiguous()  # torch 2.13: normalising groups in another order crashes it
            attacker.learn(z.detach(), step.x, contest.error, self.steps)
            error = attacker.attack(z, step.x, contest.error)
        return self.weight * contest.success(error, self.threshold)

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        return {f"inner_{self.loss}": abs(aux.error.item())} if isinstance(aux, InnerAttacker) else {}
