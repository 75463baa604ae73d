"""Comparisons at matched accuracy on made-up targets whose answers are known, and the page drawn from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leakscope.core.defense import build_defense
from leakscope.studies._cut_figures import DOUBTED, NOISE, Comparison, _doubts, family, shots
from leakscope.studies._cut_page import page
from leakscope.studies.cut_defences import _claims, _gaming, _matched, _plot, _target
from leakscope.studies.study import published

#: (defence, family, accuracy, leak): noise lies on leak = 2·(accuracy − 0.1), `good` below it, `bad` above.
TARGETS = [
    ("none", NOISE, 0.5, 0.8),
    ("gaussian", NOISE, 0.4, 0.6),
    ("gaussian:sigma=0.4", NOISE, 0.3, 0.4),
    ("gaussian+good:weight=1", "good", 0.44, 0.38),
    ("gaussian+good:weight=9", "good", 0.32, 0.1),
    ("gaussian+bad", "bad", 0.35, 0.7),
]


def _audit(seeds: int = 3) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    targets, rows = [], []
    for seed in range(seeds):
        for defense, _, accuracy, leak in TARGETS:
            key, shift = f"{defense}/{seed}", 0.01 * seed
            for attack, value in (("ridge", leak - 0.2), ("decoder:steps=9", leak + shift)):
                metrics = {"leak": value, "mse": 0.1 * (1 - value), "psnr": 15.0, "ssim": 0.5, "ssim-padded": 0.6}
                summary = {name: {"mean": mean} for name, mean in metrics.items()}
                rows.append({"target": key, "attack": attack, "metrics": summary, "flags": ["zero-gradient"]})
            targets.append(
                {
                    "key": key, "defense": defense, "seed": seed, "accuracy": accuracy + shift,
                    "worst_case": {"leak": {"mean": leak + 0.05, "worst": 0.95}},
                    "notes": {"good": {"effective_sample_share": {"first": 1.0, "last": 0.5},
                                       "penalty": {"first": 2.0, "last": 0.1},
                                       "within_class_variance": {"first": 0.1, "last": 0.1}}},
                }
            )  # fmt: skip
    return targets, rows


@pytest.fixture
def compared() -> Comparison:
    families = {defense: name for defense, name, *_ in TARGETS}
    return Comparison(shots(*_audit(), families), chance=0.1)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("none", NOISE),
        ("gaussian:sigma=0.3", NOISE),
        ("gaussian+cem:weight=4", "cem"),
        ("gaussian+cem-gated:form=published", "cem-gated (published)"),
        ("gaussian+cem-gated", "cem-gated"),
        ("tied-sparse+gaussian+cem", "tied-sparse + cem"),
    ],
)
def test_a_family_is_the_defence_without_its_noise(spec: str, name: str) -> None:
    assert family(build_defense(spec)) == name


def test_the_strongest_attack_speaks_for_a_target(compared: Comparison) -> None:
    first = compared.shots[0]
    assert first.attack == "decoder:steps=9"
    assert first.metrics["leak"] == pytest.approx(0.8)
    assert first.metrics["psnr-pooled"] == pytest.approx(16.9897, abs=1e-3)  # −10 log₁₀ 0.02


def test_the_gain_is_the_height_below_the_noise_line(compared: Comparison) -> None:
    # On seed s noise runs from (0.1, 0) through targets shifted by (0.01 s, 0.01 s): seed 0 lies on a straight line.
    own = compared.by_seed()[0]
    single = Comparison(own, 0.1)
    assert single.gain("gaussian+good:weight=1").mean == pytest.approx(2 * 0.34 - 0.38)
    assert single.gain("gaussian+bad").mean == pytest.approx(2 * 0.25 - 0.7)


def test_matched_leak_is_on_the_frontier(compared: Comparison) -> None:
    single = Comparison(compared.by_seed()[0], 0.1)
    leak, gain = single.matched("good", 0.06)  # accuracy 0.44: the first good target itself
    assert leak.mean == pytest.approx(0.38)
    assert gain.mean == pytest.approx(0.68 - 0.38)
    leak, _ = single.matched(NOISE, 0.1)
    assert leak.mean == pytest.approx(0.6)


def test_verdicts(compared: Comparison) -> None:
    assert compared.verdict("good") == "beats noise alone"
    assert compared.verdict("bad") == "leaks more than noise alone at its own accuracy"
    assert compared.against("good", "bad").sign == 1
    assert compared.against("bad", "good").sign == -1
    best = {"flags": ["accuracy-collapsed", "not-converged", "zero-gradient"]}
    weak, strong = {"flags": ["linear-beats-strong"]}, {"flags": ["black-box-beats-white-box"]}
    assert _doubts(best, [best]) == ("not-converged",)
    assert _doubts(best, [weak, best]) == ("linear-beats-strong", "not-converged")  # nothing beats the linear attack
    assert _doubts(best, [weak, strong, best]) == ("not-converged",)  # one that was weak does not matter
    # A leak that an attack in doubt left low is not held to the defence's credit.
    doubted = Comparison(
        [replace(s, doubts=("not-converged",)) if s.family == "good" else s for s in compared.shots], 0.1
    )
    assert compared.doubts("good") == []  # a flag that only warns is no doubt
    assert doubted.verdict("good") == DOUBTED
    [claim] = _claims(
        Comparison([replace(s, family=s.family.replace("good", "cem")) for s in doubted.shots], 0.1), ["cem"]
    )
    assert (claim.outcome, "`not-converged`" in claim.because) == ("cannot tell", True)
    lone = Comparison(compared.by_seed()[0], 0.1)
    assert lone.verdict("good").startswith("no better")  # one seed shows nothing


def test_a_published_claim_is_decided_by_the_interval(compared: Comparison) -> None:
    renamed = Comparison(
        [
            type(s)(**{**vars(s), "family": {"good": "cem", "bad": "mixcon"}.get(s.family, s.family)})
            for s in compared.shots
        ],
        0.1,
    )
    outcomes = {claim.text.split()[0]: claim.outcome for claim in _claims(renamed, ["cem", "mixcon"])}
    assert outcomes["CEM"] == "holds"
    assert outcomes["MixCon"] == "does not hold"  # it leaks more at its own accuracy, on every seed


def test_the_page_and_the_plot(compared: Comparison) -> None:
    names = [NOISE, "good", "bad"]
    figures = {
        "origin": {"versions": {}, "flags": [], "command": "c", "created": "now", "seconds": 60.0},
        "setting": {
            "model": "m", "features": [8, 8, 8], "private": 1, "heldout": 2, "public": 3, "victims": 4, "epochs": 5,
            "seeds": [0, 1, 2], "attacks": ["ridge"], "training_seconds": 90.0, "note": "Chosen on seed 0.",
        },
        "targets": [_target(compared, defense) for defense, *_ in TARGETS],
        "matched": {name: _matched(compared, name) for name in names},
        "verdicts": {
            name: {"verdict": compared.verdict(name), "gain": compared.against(name, NOISE).as_dict()}
            for name in names[1:]
        },
        "gaming": _gaming(compared.shots),
        "published": published("cut_defences"),
        "claims": [],
    }  # fmt: skip
    text = page({"here": figures})
    assert "- **Beats noise alone**: `good`." in text
    assert "- **Leaks more than noise alone at its own accuracy**: `bad`." in text
    assert "2.000 → 0.100" in text
    assert "gets 51 % right" in text
    assert "Chosen on seed 0." in text
    assert "took 1.5 minutes" in text
    picture = _plot(compared)
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 400_000
