"""Every study on small audits that are run for real: measured, written as JSON, and drawn from it alone."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from leakscope.core.words import Ruled
from leakscope.studies.cut_defences import CutDefencesStudy
from leakscope.studies.faces import FacesStudy
from leakscope.studies.mixcon import MixConStudy
from leakscope.studies.page import draw
from leakscope.studies.peel import PeelStudy
from leakscope.studies.records import Part
from leakscope.studies.sparse_coding import SparseCodingStudy
from leakscope.studies.study import Runs, Study, draw_page, part_name, read_page, read_part, write_study
from leakscope.studies.summary import claims_table, results_index

from .samples import runs_of


def written(study: Study, runs: Runs, folder: Path) -> tuple[Part, str]:
    """The part as it is read back, and the page; drawing it again from the JSON gives the same page."""
    page = write_study(study, runs, folder)
    text = page.read_text()
    assert draw_page(study, folder).read_text() == text
    return read_part(folder / study.kind_name / f"{part_name(study, runs.first.plan)}.json"), text


SCA = {
    "data": "digits", "resize": 16, "model": {"kind": "sca-conv-net", "channels": [2, 3, 4], "hidden": 8},
    "cuts": ["norm2"], "splits": {"private": 40, "heldout": 40, "public": 40}, "threat": {"knows_defense": False},
    "attacks": ["ridge"], "metrics": ["leak", "mse", "psnr", "ssim", {"kind": "fid", "network": "random-conv"}],
    "training": {"epochs": 1, "batch": 20}, "seeds": [0], "victims": 6,
}  # fmt: skip


def test_the_sparse_study_reads_colour_configurations(tmp_path: Path) -> None:
    """`sca-conv` where grey pictures have `sca` (it ended in a KeyError), and kernel 7 beside kernel 5."""
    defenses = ["none", "sca-conv:sparsity=0.1", "sca-conv", "sca-conv:sparsity=0.5"]
    forms = ["sca-conv:sparsity=0.1,kernel=7"]
    runs = runs_of(tmp_path, SCA, {"split": {"defenses": defenses}, "split-forms": {"defenses": forms}})
    study = SparseCodingStudy()
    part, text = written(study, runs, tmp_path)
    assert part.part == "digits"
    assert [row.defense.settings["kernel"] for row in part.rows[1:]] == [None, None, None, 7]
    told = {claim.id: claim for claim in part.claims}
    assert {"split-twin", "split-strength", "split-kernel", "split-destroyed", "split-accuracy-0.25"} <= set(told)
    assert "scatter-two convolutions" in told
    assert {claim.verdict for claim in part.claims} == {Ruled.CANNOT_TELL}  # one seed
    assert "split: SCA (λ 0.5) leaks less than BiDO" in part.not_asked
    assert "time-bido-hsic" not in told  # timed at the published width only
    # Six pictures say nothing about a Fréchet distance in 224 dimensions.
    assert not any("fid" in name for row in part.rows for name in row.worst_case)
    assert "| split: sca-conv:sparsity=0.5 |" in text
    assert "`sca-conv:sparsity=0.1,kernel=7`" in text
    assert "Seeds 0; 6 victims; attacks 0.00 CPU hours" in text
    # A target that forgot its task is no lower bound of what attacks find; one whose attack had not converged is.
    first, second, *rest = part.rows
    rows = [replace(first, doubts=("accuracy-collapsed",)), replace(second, doubts=("not-converged",))]
    rows += [replace(row, doubts=()) for row in rest]
    limits = draw("", "", study.columns, [replace(part, rows=tuple(rows))], [])
    assert f"in doubt on 1 of {len(part.rows)} targets; what it rebuilt there is a lower bound" in limits
    assert f"1 of {len(part.rows)} targets are much less accurate than the undefended one" in limits
    # Figures of the rows are those of the audit.
    result = runs["split"].report.results[0]
    assert part.rows[0].worst_case["psnr"].value == pytest.approx(result.metrics["psnr"].mean, rel=1e-5)


def test_the_part_is_named_after_the_data(tmp_path: Path) -> None:
    common = {
        "splits": {"private": 40, "heldout": 40, "public": 40}, "model": {"kind": "mlp", "widths": [4, 4]},
        "cuts": ["relu2"], "attacks": ["ridge"], "metrics": ["leak", "ssim"], "victims": 4,
        "threat": {"knows_defense": False},
        "defenses": ["none", "mixcon:weight=1,beta=0.0001"], "training": {"epochs": 1}, "seeds": [0],
    }  # fmt: skip
    study = MixConStudy()
    for data in ("digits", "mnist5k"):
        runs = runs_of(tmp_path, {**common, "data": data, "resize": 8}, {"table": {}, "grid": {}})
        part, text = written(study, runs, tmp_path)
        assert part.part == data
    assert {path.name for path in (tmp_path / "mixcon").glob("*.json")} == {"digits.json", "mnist5k.json"}
    assert "## digits" in text
    assert "## mnist5k" in text
    assert {drawn.name for drawn in part.pictures} == {"attacks.png", "plot.png", "grid.png"}
    assert "mixcon/mnist5k-plot.png" in text
    published = {(row.table, row.row, row.metric): row for row in part.published}
    vanilla = published["Table 3", "vanilla", "accuracy"]
    assert vanilla.published == 0.991
    assert vanilla.obtained is not None
    assert vanilla.verdict == "other data"  # 5,000 digits are not MNIST
    assert published["Table 3", "vanilla", "ssim"].verdict == "not run"  # no search
    assert "| MixCon | 0" not in claims_table(tmp_path)
    assert "2 data sets, 1 seed, 4 victims" in claims_table(tmp_path)
    index = results_index(tmp_path)
    assert "**How sure:** 2 data sets, 1 seed, 4 victims" in index
    picture = re.findall(r"!\[.+\]\((.+)\)", index)
    assert len(picture) == 1, "one picture for the one paper that has been run"
    assert (tmp_path / picture[0]).is_file()
    verdicts = Counter(claim.verdict for part in read_page(tmp_path / "mixcon") for claim in part.claims)
    assert f"**Held: {verdicts[Ruled.HOLDS]}**" in index
    assert f"**Did not hold: {verdicts[Ruled.DOES_NOT_HOLD]}**" in index
    assert f"**Cannot tell: {verdicts[Ruled.CANNOT_TELL]}**" in index


def test_points_drawn_anew_for_each_seed_are_one_row(tmp_path: Path) -> None:
    common = {
        "data": {"kind": "gaussians", "count": 240}, "splits": {"private": 80, "heldout": 80, "public": 80},
        "model": {"kind": "mlp", "widths": [20, 2, 10]}, "cuts": ["relu2"], "attacks": ["ridge"], "victims": 20,
        "metrics": ["leak", "mse", "cosine"], "training": {"epochs": 3}, "threat": {"knows_defense": False},
        "defenses": ["none", {"kind": "mixcon", "weight": 0.1, "beta": 0.01, "epsilon": 0.01}],
    }  # fmt: skip
    runs = runs_of(tmp_path, common, {str(n): {"data.seed": n, "seeds": [n]} for n in range(3)})
    part, _ = written(MixConStudy(), runs, tmp_path)
    assert part.part == "gaussians"
    assert [(row.variant, row.seeds) for row in part.rows] == [("draws", (0, 1, 2))] * 2
    told = {claim.id: claim for claim in part.claims}
    targets = [target for run in runs.runs.values() for target in run.targets.values()]
    accuracy = [target.accuracy for target in targets if target.undefended and target.accuracy is not None]
    assert len(accuracy) == 3
    assert told["synthetic-vanilla"].effect is not None
    assert told["synthetic-vanilla"].effect.value == pytest.approx(sum(accuracy) / 3 - 0.915)
    assert "synthetic-MixCon (0.1, 0.01)-the strongest attack" in told
    assert "synthetic-MixCon (0.1, 0.01)-the published search" not in told  # no search was run


def test_defences_at_the_cut(tmp_path: Path) -> None:
    common = {
        "data": "digits", "splits": {"private": 100, "heldout": 60, "public": 60}, "model": "convnet",
        "attacks": ["ridge"], "metrics": ["leak", "mse", "psnr", "ssim"], "victims": 8, "seeds": [0, 1],
        "threat": {"knows_defense": False}, "training": {"epochs": 1},
        "defenses": ["none", "gaussian:sigma=0.2", ["gaussian", "cem-gated:warmup=0,form=published"],
                     ["gaussian", "nopeek:weight=2"]],
    }  # fmt: skip
    runs = runs_of(tmp_path, common, {"": {}})
    part, text = written(CutDefencesStudy(note="Chosen on seed 9."), runs, tmp_path)
    assert {claim.id for claim in part.claims} == {"cem-gatedpublished-noise", "nopeek-noise"}
    assert "Chosen on seed 9." in text
    assert "Do the surrogates game themselves?" in text
    assert "The undefended network gets" in text


def test_peeling(tmp_path: Path) -> None:
    common = {
        "data": "digits", "model": {"kind": "preact-resnet", "depth": 18, "width": 1, "growth": [1, 1, 1],
                                    "strided": False},
        "cuts": ["layer4.1"], "threat": {"access": ["features", "encoder"], "public_data": False},
        "splits": {"private": 40, "heldout": 40, "public": 40},
        "attacks": [{"kind": "peel", "steps": 2}, {"kind": "embedding", "steps": 2}],
        "metrics": ["leak", "mse", "psnr", "ssim"], "victims": 3, "seeds": [0], "training": {"epochs": 0},
    }  # fmt: skip
    runs = runs_of(tmp_path, common, {"U": {}, "no-skip": {
        "model.skip": False, "attacks": [{"kind": "peel", "steps": 2, "plain_layers": True}]}})  # fmt: skip
    part, text = written(PeelStudy(trial="demo"), runs, tmp_path)
    assert part.part == "digits-demo"
    told = {claim.id: claim for claim in part.claims}
    # `plain_layers` follows from the network: it is the same attack, and both sides met it.
    assert told["U-no-skip-under PEEL"].effect is not None
    assert "embedding-U" in told
    assert "Block by block, U" in text
    assert "untrained" in text
    assert "demo-U.png" in text


def test_faces(tmp_path: Path) -> None:
    common = {
        "data": "toyfaces:identities=16,images=24,size=16,grey=true",
        "splits": {"private": 0.3, "heldout": 0.1, "public": 0.6, "by_identity": True},
        "model": "convnet", "cuts": ["features.2"], "training": {"epochs": 2},
        "pretraining": {"training": {"epochs": 1}}, "victims": 6, "seeds": [0],
        "evaluator": {"model": "preact-resnet:width=8,batch_norm=true", "training": {"epochs": 20, "batch": 16}},
        "attacks": [{"kind": "gmi", "steps": steps, "images": 1, "prior": {"kind": "linear", "components": 4}}
                    for steps in (2, 6)],
    }  # fmt: skip
    runs = runs_of(tmp_path, common, {"main": {}})
    part, text = written(FacesStudy(sheet=True, pictures_per_profile=8), runs, tmp_path)
    assert part.part == "toyfaces"
    told = {claim.id: claim for claim in part.claims}
    assert {"fisher", "fisher-early"} <= set(told)
    assert told["fisher"].effect is not None, told["fisher"].reason
    assert -1 <= told["fisher"].effect.value + 0.5 <= 1
    assert "inversion after 2 steps" in text  # the profile over iterations
    assert "control: random weights" in text
    assert "faces/toyfaces-faces.png" in text
    assert "No identity is shown" not in text
