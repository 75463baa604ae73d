"""Rebuild the picture a user sent, where no picture has a label: a detector, an embedder, an autoencoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from leakscope.core.attack import Attack
from leakscope.core.data import ImageSet, Splits, without_labels
from leakscope.core.errors import UsageError
from leakscope.core.words import Control
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.goal import GOALS, Scores, Use
from leakscope.experiments.goals.pictures import Pictures
from leakscope.experiments.stages import Case
from leakscope.experiments.usefulness import Usefulness
from leakscope.experiments.workplace import Workplace


@GOALS.register("unlabelled")
@dataclass(frozen=True)
class Unlabelled(Pictures):
    """As `pictures`, with one class that holds all of them: leak is measured against the mean public picture."""

    what: ClassVar[str] = (
        "rebuild the picture a user sent; pictures have no labels, so leak is measured against the mean picture"
    )
    found: ClassVar[str] = (
        "An attacker rebuilt {share} of what distinguishes a picture from the average picture, "
        "from what {target} gives away{twin}"
    )
    labelled: ClassVar[bool] = False
    served_by: ClassVar[str] = "pictures"
    control_words: ClassVar[Mapping[Control, str]] = Pictures.control_words

    def divided(self, splits: Splits) -> Splits:
        parts: list[ImageSet] = [without_labels(part) for part in (splits.private, splits.heldout, splits.public)]
        return Splits(*parts)

    def require(self, attacks: Sequence[Attack], config: AuditConfig, splits: Splits) -> None:
        if config.training.epochs or config.pretraining is not None:
            raise UsageError(
                "pictures without labels train no network here; train it yourself (leakscope.Defended) and give it "
                "with its weights, or --epochs 0"
            )

    def use(self, outputs: Tensor, heldout: ImageSet, utility: Usefulness | None) -> Use:
        if utility is None:
            return Use(utility="not measured")
        return Use(utility(outputs, heldout.images), utility=utility.name)

    def score(self, case: Case, guess: Tensor, place: Workplace, read: Tensor | None = None) -> Scores:
        # What the server reads are no labels; the floor that remains is the mean picture.
        return replace(super().score(case, guess, place, read), observed_accuracy=None)
