"""The bound of an audit: for noise at release only, below what any attack reached, kept apart from measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from leakscope.core.defense import build_defense
from leakscope.core.reports import AuditReport
from leakscope.experiments.bounds import released_noise
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.plan import make_plan
from leakscope.experiments.workplace import Workplace
from leakscope.metrics.entropy import information_bound
from leakscope.report.summary import markdown
from leakscope.runners.audit import run_audits
from leakscope.store import Store

DEFENSES = ["none", "gaussian:sigma=0.05", "gaussian:sigma=1.0", "topk:keep=0.1+gaussian:sigma=1.0+dropout:p=0.3"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    config = AuditConfig.checked({
        "data": "digits", "model": "convnet:widths=[4,8]", "cuts": ["features.2"], "victims": 16,
        "attacks": ["ridge", "decoder:steps=5"], "training": {"epochs": 0}, "defenses": DEFENSES,
        "metrics": ["leak", "mse"],
    })  # fmt: skip
    store = Store(tmp_path_factory.mktemp("bounds") / "store")
    return run_audits([make_plan(config)], Workplace(store, torch.device("cpu")), command="test")[0].report


def test_targets_with_noise_have_a_bound_and_no_others(report: AuditReport) -> None:
    assert [target.bound is None for target in report.targets] == [True, False, False, False]


def test_no_attack_beats_it_and_more_noise_raises_it(report: AuditReport) -> None:
    rates = []
    for target in report.targets[1:]:
        bound, measured = target.bound, target.worst_case["mse"].mean
        assert bound is not None
        assert 0 < bound.entropy <= bound.rate <= measured
        assert 0 <= bound.fisher <= measured
        assert bound.fisher <= bound.unbiased
        assert bound.assumptions
        rates.append((bound.rate, bound.blind))
    (little, _), (much, blind), _ = rates
    assert much > little
    assert much > 0.02 * blind


def test_it_stands_apart_from_what_was_measured(report: AuditReport) -> None:
    assert "bound" not in {metric.name for metric in report.metrics}
    assert all("bound" not in result.metrics for result in report.results)
    text = markdown(report)
    assert "Computed, not measured" in text
    assert "It assumes that pictures are Gaussian" in text
    assert "MSE at least (Fisher)" in text


def test_fisher_information_is_used_where_features_do_not_jump(report: AuditReport) -> None:
    _, little, much, pruned = (target.bound for target in report.targets)
    assert little is not None
    assert much is not None
    assert pruned is not None
    assert 0 < little.fisher < much.fisher
    assert much.unbiased == pytest.approx(400 * little.unbiased, rel=1e-5)  # twenty times the noise
    assert 0 < much.fisher <= much.blind
    assert pruned.fisher == pruned.unbiased == 0  # what is kept of the features changes at once


@pytest.mark.parametrize(
    ("defense", "sigma"),
    [
        ("gaussian:sigma=0.2", 0.2),
        ("gaussian:sigma=0", None),
        ("gaussian:sigma=0.2,at_release=false", None),
        ("laplace:scale=0.2", None),
        ("gaussian:sigma=0.2,layers=dense,in_training=false", None),
        ("fisher-noise:bound=0.01", 1.0),
        ("fisher-noise:bound=0", None),
        ("cem-logdet+gaussian:sigma=0.3+gaussian:sigma=0.1", 0.3),
    ],
)
def test_only_gaussian_noise_that_is_there_when_features_leave_counts(defense: str, sigma: float | None) -> None:
    assert released_noise(build_defense(defense)) == sigma


def test_a_page_shows_it_in_a_section_of_its_own(report: AuditReport, tmp_path: Path) -> None:
    from leakscope.report.page import render_html

    page = render_html(replace(report, pictures={}), {})
    assert 'id="bound"' in page
    assert "enters neither leak nor verdict" in page
    targets = tuple(replace(target, bound=None) for target in report.targets)
    without = replace(report, pictures={}, targets=targets)
    assert 'id="bound"' not in render_html(without, {})


def test_the_bound_of_an_identity_encoder_is_that_of_the_channel() -> None:
    """z = x ~ N(0, s²I): ½ d log(1 + s²/σ²) nats, found within a tenth from 2,000 samples."""
    z = 0.5 * torch.randn(2000, 20, generator=torch.Generator().manual_seed(0))
    groups = torch.zeros(1000, dtype=torch.int64)
    exact = 20 * 0.5 * float(torch.tensor(1 + 0.25 / 0.04).log())
    assert exact < information_bound(z[:1000], groups, z[1000:], groups, 0.2) < 1.1 * exact
