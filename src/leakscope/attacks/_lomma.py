"""LOMMA's identity term: logits, a pull on the features, and students that must agree with the target.

    L_id(x, y) = (1/M) Σ_m ℓ(T_m(x), y) + λ · mean_j (f_j(x) − f_reg,j)²

T_1 is the target and T_2 … T_M its students, distilled on public pictures; ℓ is minus the logit of y, or
the cross-entropy; f are the target's penultimate features. f_reg is their mean over public pictures
(`mean`, what the published code does) or a draw of N(mean, deviation) for every picture at every step
(`sampled`, what the paper says).

Nguyen et al., "Re-thinking model inversion attacks against deep neural networks", 2023.

Differs from the paper: students are small convolutional networks of the given widths, trained from
scratch (there EfficientNet-B0, B1 and B2 from ImageNet weights).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from leakscope.attacks._draws import ClassDraws, seed_from
from leakscope.attacks._identity_losses import IDENTITY_LOSSES, IdentityLoss
from leakscope.attacks._latent_descent import LatentAttack
from leakscope.attacks._students import Student, distilled
from leakscope.attacks._white_box import WhiteBox
from leakscope.core import progress, seeds
from leakscope.core.attack import Prepared
from leakscope.core.errors import UsageError
from leakscope.core.prior import PRIORS, Prior
from leakscope.core.results import Diagnostics
from leakscope.core.spec import nested
from leakscope.core.threat import View
from leakscope.nn.weights import moved, part, take_over

_FEATURE_PICTURES = 5000  # behind the feature statistics
_CHUNK = 256

Loss = Literal["logit", "cross-entropy"]
FeatureTarget = Literal["mean", "sampled"]


@torch.no_grad()
def _answers(target: WhiteBox, images: Tensor, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of all pictures; mean and standard deviation of the features of the first of them."""
    scores, features = [], []
    for batch in images.split(_CHUNK):
        own, penultimate = target.scores_and_features(batch.to(device))
        scores.append(own)
        features.append(penultimate)
    known = torch.cat(features)[:_FEATURE_PICTURES]
    return torch.cat(scores), known.mean(0), known.std(0, correction=0)


@dataclass(frozen=True)
class LommaTerm:
    """The term above, for one target and what was prepared about it."""

    target: WhiteBox
    students: list[Student]
    mean: Tensor
    deviation: Tensor
    loss: IdentityLoss
    feature_weight: float
    reference: Callable[[LommaTerm, int, ClassDraws], Tensor]

    def drawn(self, each: int) -> tuple[tuple[int, ...], ...]:
        """What every call asks its draws for, with `each` pictures per class."""
        sampled = self.feature_weight > 0 and self.reference is _sampled
        return ((each, len(self.mean)),) if sampled else ()

    def __call__(self, images: Tensor, labels: Tensor, draws: ClassDraws) -> Tensor:
        scores, features = self.target.scores_and_features(images)
        value = self.loss(scores, labels)
        for student in self.students:
            value = value + self.loss(student(images), labels)
        value = value / (1 + len(self.students))
        if self.feature_weight > 0:
            gap = features - self.reference(self, len(images), draws)
            value = value + self.feature_weight * gap.square().mean(1)
        return value


def _sampled(term: LommaTerm, count: int, draws: ClassDraws) -> Tensor:
    noise = draws.normal(count // len(draws), len(term.mean)).flatten(0, 1)
    return term.mean + term.deviation * noise


REFERENCES: dict[str, Callable[[LommaTerm, int, ClassDraws], Tensor]] = {
    "mean": lambda term, count, draws: term.mean,
    "sampled": _sampled,
}


@dataclass(frozen=True)
class Lomma(LatentAttack):
    """A descent in latents towards the term above."""

    prior: Prior = nested(PRIORS, "dcgan")
    images: int = 5
    steps: int = 2400
    learning_rate: float = 0.02
    loss: Loss = "logit"
    students: tuple[int, ...] = (16, 24, 32)  # widths
    epochs: int = 20  # of distillation
    student_rate: float = 0.01  # of distillation, halved every 20 epochs
    feature_weight: float = 1.0
    feature: FeatureTarget = "mean"

    def __post_init__(self) -> None:
        if self.steps < 0 or self.images < 1 or self.learning_rate <= 0:
            raise ValueError("steps must be 0 or more, images 1 or more and learning_rate positive")
        if any(width < 1 for width in self.students) or self.epochs < 0:
            raise ValueError("students are widths of 1 or more, such as [16, 24, 32], and epochs 0 or more")
        if self.feature_weight < 0 or self.student_rate <= 0:
            raise ValueError("feature_weight must be 0 or more, and student_rate positive")

    def prepare(self, view: View, rng: torch.Generator) -> Prepared:
        """Feature statistics of the target on public pictures, and its students."""
        if "public" not in view:
            raise UsageError("LOMMA learns from public pictures; let the threat model grant public_data")
        target, seed = WhiteBox(view, rng), seed_from(rng)
        images = view.public.images
        scores, mean, deviation = _answers(target, images, view.device)
        tensors = {"features.mean": mean, "features.deviation": deviation, "classes": torch.tensor(scores.shape[1])}
        curves: list[list[float]] = []
        pictures = images.to(view.device)
        for number, width in enumerate(self.students):
            progress.say(f"student {number + 1} of {len(self.students)}, width {width}")
            with seeds.ambient(seed, "student", number):
                student = moved(Student(view.image_shape, scores.shape[1], width), view.device)
            taught, curve = distilled(
                student, pictures, scores,
                epochs=self.epochs, rate=self.student_rate, seed=seeds.derive(seed, number),
            )  # fmt: skip
            curves.append(curve)
            tensors.update({f"students.{number}.{name}": t.contiguous() for name, t in taught.state_dict().items()})
        return Prepared(tensors, Diagnostics(details={"distillation": curves}))

    def identity(self, view: View, prepared: Prepared, rng: torch.Generator) -> LommaTerm:
        taught = []
        for number, width in enumerate(self.students):
            with seeds.ambient(0, "student"):  # weights are drawn, then replaced
                student = Student(view.image_shape, int(prepared.tensors["classes"]), width)
            take_over(student, part(prepared.tensors, f"students.{number}"), view.device)
            taught.append(student.to(view.device).eval().requires_grad_(False))
        return LommaTerm(
            WhiteBox(view, rng), taught, prepared.tensors["features.mean"], prepared.tensors["features.deviation"],
            IDENTITY_LOSSES[self.loss], self.feature_weight, REFERENCES[self.feature],
        )  # fmt: skip
