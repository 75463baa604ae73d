"""Figures of MixCon's study on made-up targets, and the pages drawn from them."""

from __future__ import annotations

from typing import Any

import pytest

from leakscope.core.defense import build_defense
from leakscope.studies._mixcon_figures import Cell, Seen, by_setting, paired, setting, sweet_spot
from leakscope.studies._mixcon_page import page
from leakscope.studies.mixcon import MIXED, VANILLA, _grid_plot, _point_row, _spreads, _synthetic_claims, _twin
from leakscope.studies.study import published


def _seen(name: str, seed: int, test: float, mse: float) -> Seen:
    def metrics(value: float) -> dict[str, dict[str, float]]:
        summary = {"std": 0.1, "worst": 0.9}
        return {
            "mse": {"mean": value, **summary}, "cosine": {"mean": 0.2, **summary},
            "leak": {"mean": 1 - value, **summary},
            "ssim": {"mean": 0.3, **summary},
        }  # fmt: skip

    distances = {"min": 0.1, "mean": 1.0 + seed, "max": 3.0}
    return Seen(name, seed, test + 0.01, test, distances, {"search": metrics(mse), "ridge": metrics(mse - 0.1)})


@pytest.fixture
def groups() -> dict[str, list[Seen]]:
    seeds = range(5)
    return by_setting(
        [_seen(VANILLA, seed, 0.91 + 0.001 * seed, 1.0 + 0.01 * seed) for seed in seeds]
        + [_seen(MIXED, seed, 0.80, 1.1 + 0.012 * seed) for seed in seeds]
    )


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("none", VANILLA),
        ("unicon", "UniCon"),
        ("mixcon:weight=0.1,beta=0.01", MIXED),
        ("mixcon:weight=1,beta=0,unit_norm=false", "MixCon (1, 0), raw"),
    ],
)
def test_settings_are_called_as_in_the_paper(spec: str, name: str) -> None:
    assert setting(build_defense(spec)) == name


def test_differences_are_taken_seed_by_seed(groups: dict[str, list[Seen]]) -> None:
    gap = paired(groups[MIXED], groups[VANILLA], lambda item: item.published("mse"))
    assert gap.mean == pytest.approx(0.1 + 0.002 * 2)
    assert gap.n == 5
    assert gap.sign == 1


def test_claims_say_what_the_figures_say(groups: dict[str, list[Seen]]) -> None:
    outcomes = [(claim.text.split(":")[0].split(" is ")[0], claim.outcome) for claim in _synthetic_claims(groups)]
    assert outcomes[:2] == [(VANILLA, "holds"), (MIXED, "does not hold")]  # 80 % is eight points from 88 %
    assert [outcome for _, outcome in outcomes[2:]] == ["holds", "holds"]


def test_a_gentle_setting_has_a_gentle_twin() -> None:
    assert _twin("MixCon (1, 0), raw, gentle") == "vanilla, gentle"
    assert _twin(MIXED) == VANILLA
    assert _twin(VANILLA) is None
    assert _twin(f"{MIXED}, deeper") is None


def test_the_sweet_spot_is_the_closest_that_still_works() -> None:
    cells = [Cell(0.1, 1e-2, 0.98, 9.0), Cell(1, 1e-2, 0.975, 4.0), Cell(10, 1e-2, 0.5, 0.1)]
    assert sweet_spot(cells, 0.98) == cells[1]
    assert sweet_spot(cells, 1.0) is None
    assert _grid_plot(cells, Cell(0, 0, 0.98, 10.0)).startswith(b"\x89PNG")


def test_the_page(groups: dict[str, list[Seen]]) -> None:
    origin: dict[str, Any] = {"versions": {}, "flags": [], "command": "c", "created": "now", "seconds": 60.0}
    rows = {name: _point_row(group) for name, group in groups.items()}
    spread = {"mean": 0.1, "low": None, "high": None}
    synthetic = {
        "origin": origin, "note": "Picked on one draw.",
        "published": published("mixcon")["synthetic"],
        "settings": rows, "claims": [],
        "paired": {MIXED: {"mse": spread, "mcs": spread, "strongest_mse": spread}}, "published_init": [0.5, 0.51],
    }  # fmt: skip
    attacks = {"search": _spreads([item.attacks["search"] for item in groups[VANILLA]])}
    row = {"accuracy": spread, "distances": {"min": 1.0, "mean": 2.0, "max": 3.0}, "attacks": attacks}
    grid = {"vanilla": {"accuracy": 0.9, "distance": 5.0}, "cells": [], "sweet_spot": None}
    pictures = {"origin": origin, "note": "", "published": published("mixcon")["mnist"],
                "settings": {VANILLA: row}, "claims": [],
                "grid": grid}  # fmt: skip
    text = page({"mnist": pictures, "synthetic": synthetic})
    assert "50.0 %, 51.0 %" in text
    assert "Picked on one draw." in text
    assert "| vanilla | 0.922" in text
    assert "0.300 ± 0.100 (0.900)" in text
    assert "no sweet spot" in text


def test_the_published_figures_are_those_of_tables_3_to_5() -> None:
    """Read from the paper's text; every vanilla row leaks more than its MixCon row, at nearly the same accuracy."""
    paper = published("mixcon")
    for part, accuracy, ssim in (
        ("mnist", (0.991, 0.986), (0.64, 0.14)),
        ("fashion-mnist", (0.898, 0.889), (0.43, 0.17)),
        ("svhn", (0.884, 0.882), (0.76, 0.61)),
        ("cifar10-gan", (0.9203, 0.9170), (0.53, 0.33)),
    ):
        rows = [paper[part][name] for name in ("vanilla", "MixCon")]
        assert tuple(row["accuracy"] for row in rows) == accuracy
        assert tuple(row["ssim"][0] for row in rows) == ssim
        assert all(row[m][0] <= row[m][2] <= 1 for row in paper[part].values() for m in ("ssim", "psim"))
        assert ("UniCon" in paper[part]) == (part != "cifar10-gan")
