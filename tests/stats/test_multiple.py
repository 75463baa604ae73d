"""Holm and Clopper–Pearson against their definitions."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped,unused-ignore]

from leakscope.stats import Effect, holm, holm_levels, share_bound, simultaneous_intervals

p_values = st.lists(st.floats(0, 1), min_size=1, max_size=7)


@given(p_values)
@settings(max_examples=60, deadline=None)
def test_holm_is_the_closed_test_of_bonferroni(p: list[float]) -> None:
    """By brute force: a hypothesis falls when Bonferroni rejects every intersection that contains it."""
    everyone = range(len(p))
    expected = [
        max(
            min(1.0, len(group) * min(p[j] for j in group))
            for size in range(1, len(p) + 1)
            for group in combinations(everyone, size)
            if i in group
        )
        for i in everyone
    ]
    assert holm(p) == pytest.approx(expected)


@given(p_values, st.floats(0.001, 0.2))
@settings(max_examples=60, deadline=None)
def test_holm_steps_down(p: list[float], level: float) -> None:
    """Adjusted values decide as the step-down procedure does, which stops at the first p above its level."""
    levels, order = holm_levels(p, level), np.argsort(p, kind="stable")
    rejected = set()
    for i in order:
        if p[i] > levels[i]:
            break
        rejected.add(int(i))
    clear = [i for i in range(len(p)) if abs(holm(p)[i] - level) > 1e-12]
    assert {i for i in clear if holm(p)[i] <= level} == {i for i in rejected if i in clear}


def test_p_values_outside_0_and_1_are_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([0.1, 1.5])


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
@settings(max_examples=80, deadline=None)
def test_share_bound_is_clopper_pearson(counts: tuple[int, int], level: float) -> None:
    count, n = counts
    exact = stats.binomtest(count, n, alternative="less").proportion_ci(level, method="exact").high
    assert share_bound(count, n, level) == pytest.approx(exact, abs=1e-9)


def test_simultaneous_intervals_hold_together() -> None:
    rng = np.random.default_rng(0)
    held = []
    for _ in range(1_000):
        effects = [Effect(float(value), 1.0, 200.0) for value in rng.normal(size=5)]
        held.append(all(e.low <= 0 <= e.high for e in simultaneous_intervals(effects)))
    assert 0.93 <= np.mean(held) <= 0.97
