"""What an attacker wants to rebuild. A goal owns victims, observation, scoring, floors, controls and wording."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from leakscope.core.attack import Attack, Observed
from leakscope.core.data import ImageSet, Splits
from leakscope.core.metric import Scored
from leakscope.core.model import SplitModel
from leakscope.core.reports import ControlReport
from leakscope.core.results import AttackResult, ControlResult, Flag, Summary
from leakscope.core.spec import Kind
from leakscope.core.words import Control
from leakscope.experiments.usefulness import Usefulness
from leakscope.metrics.utility import accuracy, calibration

if TYPE_CHECKING:
    from leakscope.experiments.config import AuditConfig
    from leakscope.experiments.experiment import TargetSpec
    from leakscope.experiments.scene import Scene
    from leakscope.experiments.stages import Case
    from leakscope.experiments.workplace import Workplace
    from leakscope.store import Store


@dataclass(frozen=True)
class Scores:
    """Every metric, one value per victim, and the scores of the same reconstructions against other victims."""

    values: dict[str, Tensor]
    mismatched: float  # leak against other victims than those observed
    label_floor: float | None = None  # leak of the class mean of the label that the head reads
    observed_accuracy: float | None = None  # of the head on the features that were observed
    scale: Tensor | None = None  # for each victim what a leak of its own is measured against: ‖x − x̄‖²
    exposed: int = 0


@dataclass(frozen=True)
class Use:
    """What a network is good for; `utility` is what `accuracy` is called where it is something else."""

    accuracy: float | None = None
    calibration: float | None = None
    utility: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """As a target's record has them."""
        return asdict(self)


class Goal(ABC):
    """A frozen dataclass without fields, registered by name; attacks name the goal that they serve."""

    kind_name: ClassVar[str]
    revision: ClassVar[int]
    #: What the attacker wants, as half a sentence.
    what: ClassVar[str]
    #: Its jobs are long and share little, so that workers pay even unasked.
    long_jobs: ClassVar[bool] = False
    #: Pictures have labels, and networks as many scores as there are classes.
    labelled: ClassVar[bool] = True
    #: The goal of attacks that serve this one, where it is not its own.
    served_by: ClassVar[str | None] = None
    #: The finding in one sentence, with room for {share}, {target} and {twin}.
    found: ClassVar[str]
    #: What the controls of each kind test, for people.
    control_words: ClassVar[Mapping[Control, str]]

    @property
    def attacks_for(self) -> str:
        """The goal that its attacks name."""
        return self.served_by or self.kind_name

    def divided(self, splits: Splits) -> Splits:
        """The pictures as this goal sees them."""
        return splits

    def use(self, outputs: Tensor, heldout: ImageSet, utility: Usefulness | None) -> Use:
        """What a network is good for."""
        del utility
        return Use(accuracy(outputs, heldout.labels), calibration(outputs, heldout.labels))

    @abstractmethod
    def victims(
        self, splits: Splits, count: int, seed: int, source: Literal["heldout", "private", "both"] = "heldout"
    ) -> ImageSet:
        """Whom to attack, drawn anew for every seed; of `both`, half (rounded down) are private, and come first."""

    def require(self, attacks: Sequence[Attack], config: AuditConfig, splits: Splits) -> None:
        """Refuse attacks that make no sense for this goal, before anything is trained."""
        del attacks, config, splits

    @abstractmethod
    def metrics(self, asked: Sequence[Scored]) -> list[Scored]:
        """The metrics of this goal among those asked for, or all of its own."""

    @abstractmethod
    def observe(self, split: SplitModel, victims: ImageSet, rng: torch.Generator) -> Observed:
        """What the target gives away about the victims; the attack never sees the victims themselves."""

    def read(self, split: SplitModel, victims: ImageSet, seen: Observed) -> Tensor | None:
        """The labels that the server reads from what was observed; None where nothing of one picture was."""
        return None

    @abstractmethod
    def score(self, case: Case, guess: Tensor, place: Workplace, read: Tensor | None = None) -> Scores:
        """The only place where truth and guess meet. `read` are the labels that `read` found."""

    def judged_by(self, scene: Scene) -> str | None:
        """What identifies whatever the metrics read beside the pictures; None: nothing."""
        return None

    def prepare_judge(self, scene: Scene, place: Workplace) -> None:
        """Make whatever the metrics read beside the pictures, before anything is attacked."""
        del scene, place

    def ceiling(self, scene: Scene, store: Store) -> float | None:
        """The best that a perfect reconstruction could score, where a judge is not perfect; None: there is no judge."""
        return None

    def ceilings(self, scene: Scene, store: Store) -> dict[str, float]:
        """The same of every judge, by its name."""
        return {}

    def judge_work(self, scene: Scene) -> float:
        """How much there is to do for `prepare_judge`: epochs × pictures; 0: nothing."""
        return 0.0

    @abstractmethod
    def floors(self, scene: Scene, attacks: Sequence[Attack], place: Workplace) -> dict[str, dict[str, Summary]]:
        """What somebody scores who observed nothing, by the name of the guess."""

    def flags(self, scene: Scene) -> list[Flag]:
        """Doubts about the pictures themselves, whatever the attack."""
        return []

    @abstractmethod
    def control(self, scene: Scene, target: TargetSpec, attack: Attack, place: Workplace) -> list[ControlResult]:
        """One attack where the answer is known."""

    @abstractmethod
    def checks(
        self, scene: Scene, target: TargetSpec, attack: Attack, result: AttackResult, place: Workplace
    ) -> list[ControlResult]:
        """Evidence E2: what else the strongest attack on a target must pass there."""

    def control_reports(
        self, results: Sequence[AttackResult], controls: Sequence[ControlResult]
    ) -> tuple[ControlReport, ...]:
        """All controls of each kind, folded."""
        reports = []
        for kind, what in self.control_words.items():
            own = tuple(control for control in controls if control.kind == kind)
            own += self.negative_controls(results) if kind is Control.NEGATIVE else ()
            reports.append(
                ControlReport(
                    kind,
                    what,
                    all(control.passed for control in own) if own else None,
                    own[0].required if own else None,
                    own,
                )
            )
        return tuple(reports)

    @abstractmethod
    def negative_controls(self, results: Sequence[AttackResult]) -> tuple[ControlResult, ...]:
        """What every result shows against other victims."""


GOALS: Kind[Goal] = Kind("goal", "leakscope.experiments.goals")
