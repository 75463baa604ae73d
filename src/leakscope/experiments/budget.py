"""Budget checks: the strongest trained attack again, longer, from another start, and on half the data."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from leakscope.auditing.flags import TIE
from leakscope.core.attack import Attack
from leakscope.core.results import AttackResult, ControlResult
from leakscope.core.spec import label
from leakscope.core.words import Control, FlagId
from leakscope.experiments.scene import Scene
from leakscope.experiments.stages import Case, Target, run_case
from leakscope.experiments.workplace import Workplace

#: Seeds of another start lie this far from those of targets.
_OTHER = 100_003


def budget_checks(
    scene: Scene, target: Target, attack: Attack, result: AttackResult, place: Workplace
) -> list[ControlResult]:
    """The gain of each larger budget. For data: the loss with half of it, because twice the data does not exist."""
    return [
        ControlResult(
            Control.BUDGET, label(attack), gained, TIE, gained <= TIE, FlagId.MORE_BUDGET_HELPS, result.key,
            f"{kind}, {target.record.name}",
        )
        for kind, gained in _gains(scene, target, attack, result, place)
    ]  # fmt: skip


def _gains(
    scene: Scene, target: Target, attack: Attack, result: AttackResult, place: Workplace
) -> Iterator[tuple[str, float]]:
    usual = Case.of(scene, target, attack, kind="checked")
    longer = attack.longer()
    if longer is not None:
        yield "a larger budget", run_case(Case.of(scene, target, longer, kind="checked"), place).leak - result.leak
    other = Case.of(scene, target, attack, kind="checked", seed=usual.seed + _OTHER, observed=usual.seed)
    yield "another start", run_case(other, place).leak - result.leak
    half = usual.public.take(torch.arange(0, len(usual.public), 2))
    fewer = Case.of(scene, target, attack, kind="checked", public=half)
    yield "twice the data", result.leak - run_case(fewer, place).leak
