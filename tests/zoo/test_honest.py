"""Honest defences pass: what is hidden is hidden, and the audit can say so."""

from __future__ import annotations

import pytest
from torch import nn

import leakscope
from leakscope.core.data import Splits
from leakscope.core.words import FlagId
from leakscope.experiments.finished import Audit
from leakscope.testing import zoo

SPLITS = {"private": 800, "heldout": 390, "public": 600}


def _audited(name: str, base: nn.Module) -> Audit:
    return leakscope.audit(
        base, "digits", cut=zoo.CUT, defenses=["none", name], gate="leak<=0.1", victims=390, attacks="quick",
        splits=SPLITS, metrics=["leak"],
    )  # fmt: skip


@pytest.mark.parametrize("name", zoo.HONEST_DEFENCES)
def test_an_honest_defence_that_keeps_its_use_passes(name: str, parts: Splits, bases: dict[int, nn.Sequential]) -> None:
    found = _audited(name, bases.setdefault(0, zoo.network(parts.private)))
    assert found.verdict == "pass", found
    assert not [flag for flag in found.report.flags if flag.blocks]
    twin = next(group for group in found.report.groups if group.undefended)
    assert twin.leak.mean > 0.9


@pytest.mark.parametrize("name", zoo.USELESS_DEFENCES)
def test_a_useless_defence_is_not_private(name: str, parts: Splits, bases: dict[int, nn.Sequential]) -> None:
    found = _audited(name, bases.setdefault(0, zoo.network(parts.private)))
    assert found.verdict == "inconclusive"
    assert FlagId.ACCURACY_COLLAPSED in {flag.id for flag in found.report.flags}
