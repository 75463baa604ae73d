"""The decoder: a network trained to turn released features back into pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from leakscope.attacks._decoders import FRONTS, Capacity, Decoder
from leakscope.attacks._losses import LOSSES, Loss
from leakscope.attacks._release import PublicReleases, channel_statistics
from leakscope.core import progress, seeds
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.threat import Access, View

_CHECKS = 10  # looks at the validation slice
_CHECKED = 256  # pictures of the slice that are looked at
_WARM_UP = 0.15  # share of the steps


@ATTACKS.register("decoder")
@dataclass(frozen=True)
class TrainedDecoder(Attack):
    """Trains a network on the defended features of the attacker's pictures, and applies it to the victims'.

    min_θ Σ ℓ(D_θ(release(encoder(x))), x) over public x, with fresh noise in every step when the
    release is random; the best of ten looks at the attacker's own validation slice is kept, and
    training ends when `patience` looks in a row bring nothing.

    Dosovitskiy & Brox, "Inverting visual representations with convolutional networks", 2016. `front`
    residual is `res_normN8C64` (capacity large; medium N4C64) of Xia et al., "CEM", 2025.

    Differs from the papers: AdamW on one cycle of the learning rate with standardised features, and
    the slice that stops training is never the victims.
    """

    front: Literal["auto", "conv", "dense", "residual"] = "auto"
    capacity: Capacity = "medium"
    loss: Literal["mse", "l1", "ssim", "perceptual"] = "mse"
    weights: str | None = None  # of the perceptual loss: lpips-alexnet-v0.1.safetensors
    steps: int = 400
    batch: int = 16
    learning_rate: float = 5e-3
    weight_decay: float = 1e-4
    validation: float = 0.1
    patience: int = 4

    needs: ClassVar[frozenset[Access]] = frozenset({Access.FEATURES, Access.QUERY})
    averages_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 0 or self.batch < 1 or self.patience < 1:
            raise ValueError("steps must be 0 or more, batch and patience 1 or more")
        if self.learning_rate <= 0 or self.weight_decay < 0:
            raise ValueError("learning_rate must be positive, weight_decay 0 or more")
        if not 0 < self.validation < 1:
            raise ValueError("validation is the share of public pictures kept for early stopping, such as 0.1")

    def prepare(self, view: View, rng: torch.Generator) -> Prepared:
        loss = LOSSES[self.loss](self.weights, view.device)
        releases = PublicReleases(view, rng)
        if len(releases) < 2:
            return Prepared(notes={"curve": [], "steps": 0, "parameters": 0})
        order = torch.randperm(len(releases), generator=rng, device=rng.device).cpu()
        held = max(1, round(self.validation * len(order)))
        ours, slice_ = order[held:], order[:held][:_CHECKED]

        sample = torch.cat([releases.draw(index) for index in ours[:2048].split(256)])
        decoder = self._build(view, tuple(sample.shape[1:]), *channel_statistics(sample), rng=rng)
        del sample
        judge = _Judge(loss, releases.draw(slice_), releases.images(slice_))
        curve, taken = self._train(decoder, releases, ours, loss, judge, rng)
        tensors = {name: tensor.contiguous() for name, tensor in decoder.state_dict().items()}
        notes: dict[str, Any] = {
            "curve": curve,
            "objective_low_is_good": True,
            "steps": taken,
            "parameters": sum(p.numel() for p in decoder.parameters()),
            "random_release": releases.random,
        }
        return Prepared(tensors, notes)

    def _build(
        self, view: View, shape: tuple[int, ...], mean: Tensor, deviation: Tensor, *, rng: torch.Generator
    ) -> Decoder:
        images = view.public.images
        low, high = (0.0, 1.0) if view.public.pixels else (float(images.min()), float(images.max()))
        seed = int(torch.randint(2**31, (1,), generator=rng, device=rng.device))
        with seeds.ambient(seed, "decoder"):
            body = FRONTS[self.front](shape, view.image_shape, self.capacity)
        decoder = Decoder(body, mean, deviation, torch.tensor([low, high])).to(view.device)
        decoder.body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return decoder

    def _train(
        self,
        decoder: Decoder,
        releases: PublicReleases,
        ours: Tensor,
        loss: Loss,
        judge: _Judge,
        rng: torch.Generator,
    ) -> tuple[list[float], int]:
        """Trains in place, leaving the best weights; gives the validation losses and the steps taken."""
        curve = [judge(decoder)]
        if self.steps == 0:
            return curve, 0
        # Adam moves every weight by the rate, so a neuron with thousands of inputs moves too far.
        wide = [p for p in decoder.parameters() if p.ndim == 2]
        others = [p for p in decoder.parameters() if p.ndim != 2]
        rates = [self.learning_rate, self.learning_rate / 5]
        optimizer = torch.optim.AdamW(
            [{"params": others}, {"params": wide}], weight_decay=self.weight_decay, fused=True
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=self.steps + 1, pct_start=_WARM_UP)
        best, best_state, taken = curve[0], _copied(decoder), 0
        since = 0
        batches = _Batches(ours, self.batch, rng)
        looks = {round(self.steps * (look + 1) / _CHECKS) for look in range(_CHECKS)}
        with progress.stage("decoder", self.steps) as bar:
            for taken in range(1, self.steps + 1):
                index = batches.next()
                decoder.train()
                error = loss(decoder(releases.draw(index)), releases.images(index))
                optimizer.zero_grad()
                error.backward()
                nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                bar.advance()
                if taken in looks:
                    curve.append(judge(decoder))
                    since += 1
                    if curve[-1] < best:
                        best, best_state, since = curve[-1], _copied(decoder), 0
                    if since == self.patience:
                        break
        decoder.load_state_dict(best_state)
        return curve, taken

    @torch.no_grad()
    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        if seen.features is None:
            raise ValueError("decoder rebuilds observed inputs; it was handed no features")
        notes = dict(prepared.notes)
        if not prepared.tensors:
            mean = view.public.images.mean(0).to(view.device)
            return Reconstruction(mean.expand(len(seen), *mean.shape).clone(), notes)
        features = seen.features.to(view.device)
        statistics = (prepared.tensors["mean"], prepared.tensors["deviation"])
        decoder = self._build(view, tuple(features.shape[1:]), *statistics, rng=rng)
        decoder.load_state_dict(prepared.tensors)
        decoder.eval()
        images = torch.cat([decoder(chunk) for chunk in features.split(256)])
        return Reconstruction(images.contiguous(), notes)


class _Judge:
    """The loss on the attacker's own validation slice, under one draw of the release."""

    def __init__(self, loss: Loss, features: Tensor, images: Tensor) -> None:
        self.loss, self.features, self.images = loss, features, images

    @torch.no_grad()
    def __call__(self, decoder: Decoder) -> float:
        decoder.eval()
        return float(self.loss(decoder(self.features), self.images))


class _Batches:
    """Every picture once before any comes again."""

    def __init__(self, index: Tensor, size: int, rng: torch.Generator) -> None:
        self.index, self.size, self.rng = index, min(size, len(index)), rng
        self.left = index[:0]

    def next(self) -> Tensor:
        if len(self.left) < self.size:
            order = torch.randperm(len(self.index), generator=self.rng, device=self.rng.device).cpu()
            self.left = self.index[order]
        batch, self.left = self.left[: self.size], self.left[self.size :]
        return batch


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}
