"""Claims about class attacks: what decides them, and the page that tells them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from leakscope.core import seeds
from leakscope.studies import _faces_claims as claimed
from leakscope.studies._faces_grid import Grid, Key
from leakscope.studies.faces import FacesStudy, _delta
from leakscope.studies.study import Run, Runs, published

NONE, SHALLOW, DEEP, FIRST = "none", "tl-dmi:layer=block1", "tl-dmi:layer=block4", "tl-dmi:layer=block4,tuned=first"


def _measures(recognised: float, accepted: float = 1.0, *, seeds_: int = 3, identities: int = 60) -> dict[str, Tensor]:
    """Identities are recognised at this rate, and the target accepts this share."""
    rng = seeds.generator(0, "faces", str(recognised))
    hits = (torch.rand(seeds_, identities, generator=rng) < recognised).float()
    believed = torch.full_like(hits, accepted)
    return {"attack-accuracy": hits, "target-accuracy": believed, "false-positive": (believed - hits).clamp(min=0)}


def _grid(rates: dict[Key, dict[str, float]], accuracy: dict[Key, float], accepted: float = 1.0) -> Grid:
    tables = {key: {a: _measures(rate, accepted) for a, rate in own.items()} for key, own in rates.items()}
    return Grid(tables, {key: [value] * 3 for key, value in accuracy.items()})


def test_variants_of_the_main_comparison_are_one_and_have_shared_attacks_once() -> None:
    def run(attacks: dict[str, int]) -> Run:
        rows = [
            {"defense": NONE, "attack": attack, "seed": seed, "value": float(seed + number)}
            for attack, number in attacks.items()
            for seed in (1, 0)
        ]
        targets = [{"defense": NONE, "seed": seed, "accuracy": 0.5 + seed} for seed in (1, 0)]
        fid = {"fid:evaluator": torch.tensor(1.0)}
        values = lambda row: {"attack-accuracy": torch.full((4,), row["value"]), **fid}  # noqa: E731
        return cast("Run", SimpleNamespace(rows=rows, targets=targets, values=values))

    runs = {
        "main": run({"gmi:steps=3": 0}),
        "main-attacks": run({"gmi:steps=3": 0, "kedmi": 5}),
        "early-1": run({"gmi:steps=3": 7}),
    }
    grid = Grid.of(Runs(runs))
    assert list(grid.tables) == [("main", NONE), ("early-1", NONE)]
    assert grid.accuracy["main", NONE] == [0.5, 1.5]
    main = grid.tables["main", NONE]
    assert list(main) == ["gmi", "kedmi"]
    assert list(main["gmi"]) == ["attack-accuracy"]  # one number for the whole set has no place among identities
    assert main["gmi"]["attack-accuracy"].tolist() == [[0.0] * 4, [1.0] * 4]
    assert main["kedmi"]["attack-accuracy"].tolist() == [[5.0] * 4, [6.0] * 4]


def test_the_strongest_attack_is_one_that_all_have_met() -> None:
    grid = _grid({("main", NONE): {"gmi": 0.2, "kedmi": 0.9}, ("main", DEEP): {"gmi": 0.1}}, {})
    assert grid.strongest(("main", NONE)) == "kedmi"
    assert grid.strongest(("main", NONE), ("main", DEEP)) == "gmi"
    # Strongest on both together, not the one that was lucky on the first.
    both = _grid({("main", NONE): {"gmi": 0.9, "kedmi": 0.8}, ("main", DEEP): {"gmi": 0.1, "kedmi": 0.7}}, {})
    assert both.strongest(("main", NONE)) == "gmi"
    assert both.strongest(("main", NONE), ("main", DEEP)) == "kedmi"


@pytest.mark.parametrize(
    ("leak", "accuracy", "outcome"),
    [
        (0.2, 0.88, "holds"),  # less is recognised, and accuracy hardly falls
        (0.2, 0.1, "does not hold"),  # so useless that the lower leak is no merit
        (0.8, 0.9, "cannot tell"),
        (1.0, 0.9, "does not hold"),
    ],
)
def test_transfer_learning_must_lower_the_leak_by_more_than_the_accuracy(
    leak: float, accuracy: float, outcome: str
) -> None:
    rates = {("main", NONE): {"gmi": 0.8}, ("main", DEEP): {"gmi": leak}}
    [claim] = claimed.defended(_grid(rates, {("main", NONE): 0.9, ("main", DEEP): accuracy}))
    assert claim.outcome == outcome
    assert DEEP in claim.text


def test_a_defence_is_not_credited_with_a_search_that_got_stuck() -> None:
    """Nobody is recognised, but neither did the target accept what was rebuilt."""
    rates = {("main", NONE): {"gmi": 0.8}, ("main", DEEP): {"gmi": 0.1}}
    accuracy = {("main", NONE): 0.9, ("main", DEEP): 0.88}
    assert [claim.outcome for claim in claimed.defended(_grid(rates, accuracy, accepted=0.95))] == ["holds"]
    assert [claim.outcome for claim in claimed.defended(_grid(rates, accuracy, accepted=0.8))] == ["cannot tell"]


def test_nothing_is_claimed_from_fewer_than_three_trainings() -> None:
    clear = {"mean": 0.5, "low": 0.4, "high": 0.6, "seeds": 3}
    assert claimed._outcome(clear) == "holds"
    assert claimed._outcome({**clear, "low": -0.6, "high": -0.4}) == "does not hold"
    assert claimed._outcome({**clear, "seeds": 2}) == "cannot tell"


def test_depth_and_the_control_of_first_layers() -> None:
    rates = {
        ("main", NONE): {"gmi": 0.9}, ("main", SHALLOW): {"gmi": 0.8},
        ("main", DEEP): {"gmi": 0.2}, ("main", FIRST): {"gmi": 0.7},
    }  # fmt: skip
    grid = _grid(rates, dict.fromkeys(rates, 0.8))
    [depth] = claimed.depth(grid)
    assert depth.outcome == "holds"
    assert FIRST not in depth.because
    [first] = claimed.last_layers(grid)
    assert first.outcome == "holds"
    backwards = {**rates, ("main", SHALLOW): {"gmi": 0.1}, ("main", DEEP): {"gmi": 0.8}}
    assert claimed.depth(_grid(backwards, dict.fromkeys(rates, 0.8)))[0].outcome == "does not hold"


def test_matched_accuracy_and_another_kind_of_pictures() -> None:
    rates = {
        ("main", NONE): {"gmi": 0.9}, ("main", DEEP): {"gmi": 0.4},
        ("early-5", NONE): {"gmi": 0.8}, ("early-9", NONE): {"gmi": 0.9}, ("other", DEEP): {"gmi": 0.1},
    }  # fmt: skip
    accuracy = dict(zip(rates, (0.9, 0.7, 0.69, 0.8, 0.4), strict=True))
    grid = _grid(rates, accuracy)
    [matched] = claimed.matched(grid)
    assert matched.outcome == "holds"
    assert "between early-5 (69.0%) and early-9 (80.0%)" in matched.because
    # One eleventh of the way up, worked out by hand.
    hits = [grid.tables[key]["gmi"]["attack-accuracy"].mean().item() for key in rates]
    assert f"gmi: {(10 * hits[2] + hits[3]) / 11 - hits[1]:+.1%} " in matched.because
    assert claimed.matched(_grid(rates, {**accuracy, ("main", DEEP): 0.5})) == []  # below every stop
    [other] = claimed.domains(grid)
    # It gives less away, but it also recognises 40 % where the undefended target recognises 90 %.
    assert (other.outcome, "collapsed to 40.0%" in other.because) == ("cannot tell", True)
    [other] = claimed.domains(_grid(rates, {**accuracy, ("other", DEEP): 0.85}))
    assert other.outcome == "holds"


def test_rivals_are_met_at_no_less_accuracy() -> None:
    rates = {
        ("main", NONE): {"gmi": 0.9}, ("main", SHALLOW): {"gmi": 0.6}, ("main", DEEP): {"gmi": 0.1},
        ("main", "mid"): {"gmi": 0.9}, ("main", "bido-hsic"): {"gmi": 0.3}, ("main", "label-smoothing"): {"gmi": 0.5},
    }  # fmt: skip
    accuracy = dict(zip(rates, (0.9, 0.8, 0.5, 0.7, 0.75, 0.85), strict=True))
    claims = {claim.text.split()[5]: claim for claim in claimed.rivals(_grid(rates, accuracy))}
    # The deepest leaks least, but cannot be compared: its accuracy is lower than anybody's.
    assert claims["mid"].outcome == "holds"
    assert SHALLOW in claims["mid"].because
    assert claims["bido-hsic"].outcome == "does not hold"
    assert claims["label-smoothing"].outcome == "cannot tell"


def test_false_positives_count_only_where_the_target_is_convinced() -> None:
    rates = {("main", NONE): {"gmi": 0.9}, ("main", DEEP): {"gmi": 0.2}}
    accuracy = dict.fromkeys(rates, 0.9)
    assert claimed.false_positives(_grid(rates, accuracy))[0].outcome == "holds"
    assert claimed.false_positives(_grid(rates, accuracy, accepted=0.8))[0].outcome == "cannot tell"


def test_the_ordering_of_attacks_is_paired() -> None:
    grid = _grid({("main", NONE): {"gmi": 0.2, "kedmi": 0.8, "lomma-kedmi": 0.8}}, {("main", NONE): 0.9})
    outcomes = [claim.outcome for claim in claimed.ordering(grid)]
    assert outcomes == ["holds", "cannot tell"]  # the same identities: not a difference at all


def test_delta_is_undefined_where_accuracy_did_not_drop() -> None:
    rates = {("main", NONE): {"gmi": 0.8}, ("main", DEEP): {"gmi": 0.3}}
    grid = _grid(rates, {("main", NONE): 0.9, ("main", DEEP): 0.8})
    drop = grid.difference(("main", NONE), ("main", DEEP), "gmi")["mean"]
    assert _delta(grid, ("main", DEEP), "gmi") == pytest.approx(drop / 0.1)
    grid = _grid(rates, {("main", NONE): 0.9, ("main", DEEP): 0.9})
    assert _delta(grid, ("main", DEEP), "gmi") is None


def _figures(*, sheet: bool, low: float = -0.01) -> dict[str, Any]:
    summary = {"mean": 0.5, "std": 0.1, "low": 0.4, "high": 0.6, "images": 60, "seeds": 3}
    names = ("attack-accuracy", "attack-accuracy-5", "target-accuracy", "false-positive", "knn")
    attack = {**dict.fromkeys(names, summary), "less than undefended": summary, "delta": None}
    return {
        "origin": {"command": "leakscope audit", "created": "now", "versions": {}, "seconds": 60.0, "flags": []},
        "identities": 60, "seeds": 3, "chance": 1 / 60, "ceiling": 0.9, "floors": {"mean": 0.016},
        "targets": [{"variant": "main", "defense": DEEP, "accuracy": [0.7], "strongest": "gmi",
                     "attacks": {"gmi": attack}}],
        "controls": {"main": {"positive": {"passed": True, "attacks": {"gmi:steps=3": 0.99}},
                              "negative": {"passed": True, "targets": {"gmi:steps=3, random weights": low}}}},
        "claims": [{"text": "Depth helps", "outcome": "holds", "because": "gmi"}],
        "fisher": {"attack": "kedmi:steps=3", "layers": [], "profiles": {}},
        "sheet": sheet,
    }  # fmt: skip


def test_the_page_is_drawn_from_json_alone_and_shows_nobody_unless_told() -> None:
    figures = json.loads(json.dumps(_figures(sheet=False)))
    text = FacesStudy().page({"lfw": figures})
    for wanted in (
        "Labeled Faces in the Wild",
        "Depth helps",
        DEEP,
        "undefined",
        "90.90",
        "0.990 | -0.010 | – | – | yes",
    ):
        assert wanted in text
    assert "lfw-faces.png" not in text
    assert "toy-faces.png" in FacesStudy().page({"toy": _figures(sheet=True)})
    assert FacesStudy().sheet is False
    assert "0.990 | 0.020 | – | – | no" in FacesStudy().page({"toy": _figures(sheet=True, low=0.02)})


def test_published_figures_have_a_source_and_the_paper_s_order() -> None:
    paper = published("faces")
    assert "CVPR" in paper["source"]
    undefended = next(row for row in paper["rows"] if row["defense"] == NONE)["attacks"]
    series = [undefended[attack] for attack in claimed.ORDER]
    assert series == sorted(series)
