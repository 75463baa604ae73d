"""Published figures are whole and laid beside ours; every table and figure of the papers is accounted for."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from leakscope.cli import app, run
from leakscope.core.attack import ATTACKS
from leakscope.core.defense import DEFENSES
from leakscope.core.words import Ruled
from leakscope.studies.cut_defences import CLAIMS as CUT
from leakscope.studies.faces import ALL_DEPTHS, NONE, STOPPED, claims_by
from leakscope.studies.faces import CLAIMS as FACES
from leakscope.studies.mixcon import CLAIMS as MIXCON
from leakscope.studies.mixcon import sweet_spot
from leakscope.studies.peel import CLAIMS as PEEL
from leakscope.studies.picks import Pick
from leakscope.studies.published import PAPERS, PublishedTable, beside, paper
from leakscope.studies.reproductions import configs, configured, coverage, listed, reproduction
from leakscope.studies.sparse_coding import CLAIMS as SCA
from leakscope.studies.study import STUDIES, read_page
from leakscope.studies.summary import claims_table, results_index

from .world import World, target

ALL = {"sparse-coding": SCA, "cut-defences": CUT, "mixcon": MIXCON, "faces": FACES, "peel": PEEL}


def table(name: str, number: str, data: str = "") -> PublishedTable:
    return next(own for own in paper(name).tables if own.id == number and (not data or data in own.data))


def value(own: PublishedTable, row: str, metric: str) -> float:
    return next(each.values[metric] for each in own.rows if each.name == row)


def exists(kind: str) -> bool:
    """Whether a defence, or every part of a stack, is registered."""
    known = set(DEFENSES)
    return kind in known or all(part in known for part in kind.split("+"))


def test_figures_read_off_the_papers() -> None:
    assert value(table("sca", "Table 2"), "SCA λ 0.5", "psnr") == 12.04
    assert value(table("sca", "Table 9", "mnist"), "No defence", "psnr") == 31.21
    assert value(table("sca", "Table 7", "fashion-mnist"), "Wang et al. (MID)", "accuracy") == 0.880
    assert value(table("sca", "Table 15"), "end-to-end, kernel 7", "accuracy") == 0.996
    assert value(table("sca", "Table 6"), "SCA λ 0.75", "psnr") == 14.65
    assert value(table("mixcon", "Table 3", "svhn"), "MixCon", "ssim") == 0.61
    assert value(table("mixcon", "Table 4", "fashion-mnist"), "UniCon", "psim[alexnet]") == 0.45
    assert value(table("mixcon", "Table 5"), "vanilla", "accuracy") == 0.9203
    assert value(table("tldmi", "Table 10", "lfw"), "BiDO, kedmi", "attack-accuracy") == 39.77
    assert value(table("peel", "Table II"), "U", "psnr") == 20.12
    assert value(table("cem", "Table 1"), "cem-gated (published)", "mse") == 0.0473


def test_peels_figures_agree_with_each_other() -> None:
    """PSNR is 10·log₁₀(255²/MSE) up to Jensen's gap: averaging logarithms gives no less."""
    for number in ("Table II", "Table III"):
        for row in table("peel", number).rows:
            pooled = 10 * math.log10(255**2 / row.values["mse"])
            assert pooled - 0.05 <= row.values["psnr"] < pooled + 1.5


@pytest.mark.parametrize("name", PAPERS)
def test_every_row_names_methods_that_exist(name: str) -> None:
    found = paper(name)
    assert found.study in set(STUDIES)
    for own in found.tables:
        for pick in (row.pick for row in own.rows if row.pick is not None):
            assert all(exists(kind) for kind in pick.kinds)
            assert set(pick.attacks) <= set(ATTACKS)


@pytest.mark.parametrize("name", ALL)
def test_claims_are_whole(name: str) -> None:
    claims = ALL[name]
    assert len({claim.id for claim in claims}) == len(claims)
    for claim in claims:
        assert claim.statement
        assert claim.source
        assert claim.judged.left != claim.judged.right or claim.other_metric
        for pick, _ in claim.sides:
            assert all(exists(kind) for kind in pick.kinds)
            assert set(pick.attacks) <= set(ATTACKS)


def test_the_main_test_of_faces_has_every_depth_and_every_stop_and_no_other_training() -> None:
    for depth in ("block1", "block5"):
        assert ALL_DEPTHS.fits("main", target(f"tl-dmi:layer={depth}", 0))
    assert not ALL_DEPTHS.fits("main", target("tl-dmi:layer=block1,tuned=first", 0))
    assert not ALL_DEPTHS.fits("main", target("tl-dmi:layer=block1,bn=train", 0))
    assert not ALL_DEPTHS.fits("other", target("tl-dmi:layer=block1", 0))
    assert [STOPPED.fits(name, target("none", 0)) for name in ("main", "early-3", "other")] == [True, True, False]
    early = replace(target("none", 0), stop=3)
    assert STOPPED.fits("main", early)
    assert not NONE.fits("main", early)
    assert NONE.fits("main", target("none", 0))


def test_the_embedder_judges_the_same_claims_of_faces() -> None:
    """Only whose word an attack accuracy is changes; false positives and Fisher profiles are nobody's opinion."""
    network, embedder = claims_by("network"), claims_by("embedder")
    assert network == FACES
    assert [claim.id for claim in embedder] == [claim.id for claim in network]
    pairs = {(one.metric, other.metric) for one, other in zip(network, embedder, strict=True)}
    assert ("attack-accuracy", "attack-accuracy:embedder") in pairs
    assert all(one == other for one, other in pairs if one != "attack-accuracy")


def test_the_sweet_spot_is_the_closest_that_still_works() -> None:
    found = {0.1: (0.98, 9.0), 1.0: (0.975, 4.0), 10.0: (0.5, 0.1)}
    cells = {(weight, 1e-2): {"accuracy": a, "mean distance": d} for weight, (a, d) in found.items()}
    assert sweet_spot(cells, 0.98) == (1.0, 1e-2)
    assert sweet_spot(cells, 1.0) is None


def test_a_published_figure_is_judged_for_equality_where_data_and_scale_are_the_same() -> None:
    world = (
        World()
        .add("sca:sparsity=0.5", 0.5, variant="split", accuracy=0.977)
        .add("sca:sparsity=0.1", 0.5, variant="split", accuracy=0.7)
    )
    rows = {(row.table, row.row, row.metric): row for row in beside(paper("sca"), "mnist", world, {})}
    same = rows["Table 12", "SCA λ 0.5", "accuracy"]
    assert same.published == pytest.approx(0.98, abs=0.02)
    assert same.verdict == "holds"
    assert same.obtained is not None
    assert same.obtained.value == pytest.approx(0.978, abs=1e-6)
    assert rows["Table 12", "SCA λ 0.1", "accuracy"].verdict == "does not hold"
    assert rows["Table 12", "SCA λ 0.5", "psnr"].verdict == "other scale"
    assert rows["Table 9", "No defence", "accuracy"].verdict == "not run"
    assert not list(beside(paper("sca"), "lfw", world, {}))


def test_units_of_the_paper() -> None:
    world = World().add("none", 0.9, variant="U", attacks=("peel",))
    rows = {(row.row, row.metric): row for row in beside(paper("peel"), "lfw", world, {}) if row.table == "Table II"}
    found = rows["U", "mse"].obtained
    assert found is not None
    assert found.value == pytest.approx(0.1 * 255**2, rel=0.2)
    assert rows["U", "mse"].verdict == "other data"


@pytest.mark.parametrize("name", PAPERS)
def test_every_table_and_figure_is_accounted_for_once(name: str) -> None:
    own = listed().coverage[name]
    numbers = set(own.numbers)
    filed = {each.id for each in paper(name).tables}
    assert set(own.elsewhere) | set(own.reasons) <= numbers
    assert not set(own.elsewhere) & set(own.reasons)
    assert numbers - set(own.elsewhere) - set(own.reasons) <= filed
    found = list(coverage(name))
    assert [each.number for each in found] == own.numbers
    assert all(each.told for each in found)


def test_the_counts_are_those_of_the_papers() -> None:
    assert {name: len(listed().coverage[name].numbers) for name in PAPERS} == {
        "sca": 25, "mixcon": 11, "tldmi": 28, "peel": 31, "cem": 9,
    }  # fmt: skip


@pytest.mark.parametrize("name", listed().reproductions)
def test_reproductions_are_whole(name: str) -> None:
    entry = reproduction(name)
    assert "small" in entry.scales
    for wanted in entry.scales:
        path, scale = entry.protocol(name, wanted)
        tree = yaml.safe_load(path.read_text())
        assert scale is None or scale in tree["scales"]
        assert tree["study"]["kind"] == paper(entry.paper).study
    assert set(entry.tables) <= {own.id for own in paper(entry.paper).tables}


def test_without_a_scale_a_reproduction_runs_what_the_page_shows() -> None:
    assert reproduction("mixcon-table3").usual_scale == "trial"
    assert reproduction("peel-table2").usual_scale == "small"


@pytest.mark.parametrize(
    ("name", "number", "file"),
    [("sca", "Table 2", "sca_medical.yaml"), ("sca", "Table 9", "sca_cifar10.yaml"),
     ("sca", "Table 15", "sca_medical.yaml"), ("mixcon", "Table 3", "mixcon_mnist.yaml"),
     ("tldmi", "Table 3", "faces_lfw.yaml"),
     ("peel", "Table II", "peel_faces.yaml"), ("cem", "Table 1", "cem_cifar10.yaml")],
)  # fmt: skip
def test_the_configurations_run_the_rows_of_the_tables(name: str, number: str, file: str) -> None:
    assert file in configured(name, number)
    assert (configs() / file).is_file()


def test_coverage_and_names_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["reproduce", "--list"]) == 0
    told = capsys.readouterr().out
    assert "Table 4      not covered  hardware of the cluster" in told
    assert "sca-table15 (by sca_medical.yaml)" in told
    assert run(app, ["reproduce"]) == 0
    assert "cem-table1" in capsys.readouterr().out
    assert run(app, ["reproduce", "table9"]) == 2
    assert "reproduction" in capsys.readouterr().err
    assert run(app, ["reproduce", "mixcon-table1", "--scale", "nonsense"]) == 2


def test_the_index_tells_of_each_paper_what_held_how_sure_and_shows_one_picture() -> None:
    results = Path(__file__).parents[2] / "docs" / "results"
    sections = dict(part.split("\n", 1) for part in results_index(results).removeprefix("## ").split("\n\n## "))
    assert list(sections) == [paper(name).short for name in PAPERS]
    for name in PAPERS:
        found = paper(name)
        told, claims = sections[found.short], [own for part in read_page(results / found.study) for own in part.claims]
        assert f"({found.study}.md)" in told
        pictures = re.findall(r"!\[.+\]\((.+)\)", told)
        assert [(results / picture).is_file() for picture in pictures] == ([True] if claims else [])
        for verdict, words in zip(Ruled, ("Held", "Did not hold", "Cannot tell"), strict=True):
            count = sum(claim.verdict is verdict for claim in claims)
            assert not claims or f"**{words}: {count}**" in told
        assert not claims or "**How sure:** " in told


def test_a_paper_without_figures_says_so(tmp_path: Path) -> None:
    lines = claims_table(tmp_path).splitlines()
    assert len(lines) == 2 + len(PAPERS)
    assert all("to be run again" in line for line in lines[2:])
    assert results_index(tmp_path).count("Not run under the present rules") == len(PAPERS)
    assert Pick().title == "none"
