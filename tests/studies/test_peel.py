"""Intervals over pictures and seeds, claims, and the page of the study."""

from __future__ import annotations

import json
import math

import pytest
import torch

from leakscope.core import seeds
from leakscope.studies._crossed import crossed_interval
from leakscope.studies.peel import Comparison, PeelStudy, judged, outcome
from leakscope.studies.study import published


def test_the_crossed_interval_is_that_of_a_plain_resampling() -> None:
    rng = seeds.generator(0, "table")
    # A seed's network shifts all of its pictures.
    table = torch.randn(5, 30, generator=rng) + 3 * torch.randn(5, 1, generator=rng)
    found = crossed_interval(table)
    means = []
    for _ in range(4000):
        rows, columns = torch.randint(5, (5,), generator=rng), torch.randint(30, (30,), generator=rng)
        means.append(float(table[rows][:, columns].mean()))
    low, high = torch.tensor(means).quantile(torch.tensor((0.025, 0.975))).tolist()
    assert found["mean"] == pytest.approx(float(table.mean()))
    # Two bootstraps of 2,000 and 4,000 rounds; quantiles err by some hundredths of the width.
    assert found["low"] == pytest.approx(low, abs=0.1 * (high - low))
    assert found["high"] == pytest.approx(high, abs=0.1 * (high - low))
    # Pictures alone would claim far more.
    alone = crossed_interval(table.mean(0, keepdim=True))
    assert alone["high"] - alone["low"] < 0.5 * (found["high"] - found["low"])


@pytest.mark.parametrize(
    ("low", "high", "wanted", "expected"),
    [
        (0.5, 2.0, "more", "holds"),
        (-2.0, -0.5, "more", "does not hold"),
        (-0.5, 2.0, "more", "cannot tell"),
        (-0.5, 0.3, "no less", "holds"),
        (-3.0, -2.0, "no less", "does not hold"),
        (-3.0, 1.0, "no less", "cannot tell"),
    ],
)
def test_outcomes_follow_the_interval(low: float, high: float, wanted: str, expected: str) -> None:
    measured = {"low": low, "high": high, "images": 20, "seeds": 3}
    assert outcome(measured, wanted) == expected  # type: ignore[arg-type]
    assert outcome(measured | {"seeds": 2}, wanted) == "cannot tell"  # type: ignore[arg-type]
    assert outcome(measured | {"images": 19}, wanted) == "cannot tell"  # type: ignore[arg-type]


def test_a_claim_is_judged_picture_by_picture() -> None:
    rng = seeds.generator(0, "claims")
    base = 10 * torch.randn(3, 20, generator=rng)
    tables = {"U": {"peel": base + 1}, "P": {"peel": base}}
    claim = judged(Comparison("Random is easier", "U", "P"), tables)
    assert claim is not None
    assert claim.outcome == "holds"
    assert "+1.0 dB" in claim.because
    assert judged(Comparison("Pooling hurts", "U", "MU"), tables) is None


def test_published_figures_agree_with_each_other() -> None:
    """PSNR is 10·log₁₀(255²/MSE) up to Jensen's gap: averaging logarithms gives no less."""
    paper = published("peel")
    for table in ("II", "III"):
        for entry in paper["faces"][table].values():
            pooled = 10 * math.log10(255**2 / entry["mse"][0])
            assert pooled - 0.05 <= entry["psnr"][0] < pooled + 1.5
    assert "source" in paper


def test_the_page_is_drawn_from_json_alone() -> None:
    summary = {"mean": 1.0, "std": 0.1, "low": 0.9, "high": 1.1, "images": 20, "seeds": 3}
    attack = {"name": "peel", "mse": summary, "psnr": summary, "leak": summary, "cpu_seconds": 2.0, "unexplained": 0.0,
              "flags": ["not-converged"]}  # fmt: skip
    configuration = {"name": "U", "model": "preact-resnet", "trained": False, "accuracy": {"none": 0.1}, "ratio": 2.67,
                     "side": 24, "attacks": [attack]}  # fmt: skip
    origin = {"command": "leakscope audit", "created": "now", "versions": {"torch": "2"}, "seconds": 60.0, "flags": []}
    figures = {
        "origin": origin,
        "configurations": [configuration],
        "layers": [{"name": "U", "rows": [{"block": "layer1.1", "errors": {"peel": 0.2}}]}],
        "claims": [{"text": "Pooling hurts", "outcome": "holds", "because": "U less MU"}],
        "strongest": [],
    }
    text = PeelStudy().page({"faces": json.loads(json.dumps(figures, sort_keys=True))})
    for wanted in ("Pooling hurts", "774 ± 508", "3.5e-05", "0.35 h", "Not measured here", "`not-converged`", "2.000"):
        assert wanted in text
