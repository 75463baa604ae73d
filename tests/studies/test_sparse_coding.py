"""The trial of sparse coding: published figures are whole, claims follow the figures, the page shows both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from leakscope.core import seeds
from leakscope.core.defense import build_defense
from leakscope.core.spec import label
from leakscope.studies._sparse_claims import SPARSE, Trial, claims, known_as
from leakscope.studies._sparse_page import page
from leakscope.studies._sparse_pictures import sweep_plot, umap_plot
from leakscope.studies.study import published

RIVALS = ("gaussian:sigma=0.5", "laplace:scale=0.5", "gan-augment", "gong", "gong++", "dp-sgd", "bido-hsic", "mid")


def test_published_tables_name_every_defence_under_both_threats() -> None:
    paper = published("sparse_coding")
    for part in ("mnist", "fashion", "cifar10", "medical"):
        for threat in ("split", "end-to-end"):
            rows = paper["threats"][part][threat]
            assert {"none", *SPARSE, *RIVALS} <= set(rows)
            assert all(0 < row["ssim"] < 1 and 0 < row["accuracy"] <= 1 and row["psnr"] > 0 for row in rows.values())
    # Table 2, Medical MNIST, SCA 0.5, and table 9, MNIST, no defence, read off the paper.
    assert paper["threats"]["medical"]["end-to-end"]["sca:sparsity=0.5"]["psnr"] == 12.04
    assert paper["threats"]["mnist"]["split"]["none"]["psnr"] == 31.21
    assert paper["stability"]["sca:sparsity=0.5"] == {"psnr": 11.19, "std": 0.11}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sca", "sca"),
        ("sca:sparsity=0.5", "sca:sparsity=0.5"),
        ("gaussian:sigma=0.5", "gaussian:sigma=0.5"),
        ({"kind": "gong++", "gan_steps": 7}, "gong++"),
        ("sca:sparsity=0.1,kernel=7", "sca:sparsity=0.1"),
    ],
)
def test_defences_are_called_as_the_published_figures_call_them(spec: Any, expected: str) -> None:
    assert known_as(label(build_defense(spec))) == expected


def table(level: float, seed_count: int = 3, pictures: int = 30) -> Tensor:
    rng = seeds.generator(0, "trial", str(level))
    return level + 0.01 * torch.randn(seed_count, pictures, generator=rng)


def trial(levels: dict[str, float], accuracy: dict[str, float] | None = None, seed_count: int = 3) -> Trial:
    names = ("none", *RIVALS, *SPARSE)
    leak = {name: table(levels.get(name, 0.9), seed_count) for name in names}
    return Trial(
        leak,
        {name: 20 + 10 * value for name, value in leak.items()},
        {name: [(accuracy or {}).get(name, 0.95)] * seed_count for name in names},
    )


def outcomes(found: Trial, **figures: Any) -> dict[str, str]:
    return {claim.text.partition(": ")[2]: claim.outcome for claim in claims({"split": found}, figures)}


def test_a_world_as_the_paper_tells_it_is_recognised() -> None:
    levels = {"sparse-standard": 0.3, "sca:sparsity=0.1": 0.2, "sca": 0.1, "sca:sparsity=0.5": 0.02}
    found = outcomes(trial(levels))
    decided = {text: outcome for text, outcome in found.items() if "stable" not in text}
    assert len(decided) == 6
    assert set(decided.values()) == {"holds"}


def test_a_world_in_which_sparsity_hides_nothing_is_recognised() -> None:
    levels = {"none": 0.8, **dict.fromkeys(SPARSE, 0.85), "sca:sparsity=0.5": 0.95, "mid": 0.5}
    found = outcomes(trial(levels, {"sca": 0.9}))
    assert {outcome for text, outcome in found.items() if "stable" not in text} == {"does not hold"}


def test_a_rival_that_is_useless_is_no_rival() -> None:
    levels = {"dp-sgd": 0.0, "sca:sparsity=0.5": 0.5}
    text = "SCA (λ 0.5) beats all rival defences"
    assert outcomes(trial(levels))[text] == "does not hold"
    assert outcomes(trial(levels, {"dp-sgd": 0.4}))[text] == "holds"


def test_one_seed_decides_nothing_that_chance_could() -> None:
    assert set(outcomes(trial({"sca:sparsity=0.5": 0.02}, seed_count=1)).values()) == {"cannot tell"}
    rebuilt = outcomes(trial({"sca:sparsity=0.5": 0.6}, seed_count=1))
    assert rebuilt["reconstructions under SCA (λ 0.5) are destroyed"] == "does not hold"  # one example refutes


def test_scatter_and_time_are_judged_from_their_figures() -> None:
    behind = {"linear": 0.2, "convolutional": 0.1, "sparse": 0.0}
    separability = {name: [{"silhouette": value, "neighbours": 0.9}] * 3 for name, value in behind.items()}
    seconds = {"none": 1.0, "sca": 2.0, "bido-hsic": 3.0, "mid": 1.5}
    figures = {
        "separability": separability,
        "seconds": {name: {"epoch": s, "before": 0} for name, s in seconds.items()},
    }
    assert [claim.outcome for claim in claims({}, figures)] == ["holds", "holds"]
    separability["sparse"] = [{"silhouette": 0.3, "neighbours": 0.9}] * 3
    figures["seconds"]["bido-hsic"] = {"epoch": 1.2, "before": 0}
    assert [claim.outcome for claim in claims({}, figures)] == ["does not hold", "does not hold"]


def interval(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.01, "high": mean + 0.01}


def figures() -> dict[str, Any]:
    attack = {"leak": 0.5, "psnr": 20.0, "ssim": 0.7, "fid": 12.3, "fid_network": "fid[alexnet]"}
    own = {
        "accuracy": {"mean": 0.9, "std": 0.01, "seeds": 3},
        "leak": interval(0.8), "psnr": interval(21.0), "psnr_by_seed": [20.0, 21.0, 22.0], "ssim": 0.8,
        "worst_picture": 0.97, "attacks": {"decoder": attack}, "strongest": ["decoder"], "flags": [],
        "notes": {"sparse_layers": {"conv1": {"density": 0.05, "objective": 9.0}}},
    }  # fmt: skip
    threat = {
        "model": "sca-net", "cut": "relu1", "features": [14, 28, 16], "seeds": [0, 1, 2], "victims": 32,
        "private": 10, "public": 10, "epochs": 4, "floor": {"mean_picture_psnr": 11.5}, "verdict": "no gate",
        "defenses": {"none": own, "sca": own},
    }  # fmt: skip
    origin = {
        "command": "leakscope audit x", "created": "now", "versions": {"torch": "2"}, "data": "mnist", "seconds": 60.0,
        "flags": [], "controls": {},
    }  # fmt: skip
    return {
        "origin": origin, "data": "mnist", "published": published("sparse_coding")["threats"]["mnist"],
        "threats": {"split": threat}, "separability": {"sparse": [{"silhouette": 0.1, "neighbours": 0.9}]},
        "umap": True, "seconds": {"none": {"epoch": 1.0, "before": 0.0}, "sca": {"epoch": 3.0, "before": 0.0}},
        "claims": [{"text": "SCA hides", "outcome": "does not hold", "because": "it leaks"}],
    }  # fmt: skip


def test_the_page_sets_ours_beside_theirs() -> None:
    text = page({"mnist": figures()}, published("sparse_coding"))
    row = next(line for line in text.splitlines() if line.startswith("| sca | 0.900"))
    assert "0.800 [0.790, 0.810]" in row
    assert row.endswith("| 17.40 | 0.058 | 301.6 | 0.980 |")  # table 9
    assert "**does not hold**" in text
    assert "conv1 0.050" in text
    assert "17181.2" in text  # table 16
    assert "mnist-umap.png" in text


def test_pictures_are_png() -> None:
    assert sweep_plot({"split": trial({})}).startswith(b"\x89PNG")
    rng = seeds.generator(0, "umap")
    points = torch.randn(20, 2, generator=rng).numpy()
    assert umap_plot({"sparse": (points, torch.arange(20).numpy() % 3)}).startswith(b"\x89PNG")
