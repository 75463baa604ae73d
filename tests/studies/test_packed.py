"""What folds out of an unpacked store: the same verdicts and pages, with nothing trained or attacked that is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.cli import app, run
from leakscope.core import progress
from leakscope.core.reports import AuditReport, Provenance
from leakscope.core.results import from_json, to_json
from leakscope.core.words import Ruled
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.execution import Executor
from leakscope.experiments.folder import write_folder
from leakscope.experiments.plan import make_plan
from leakscope.experiments.reading import read_trained
from leakscope.experiments.submissions import Card, submit
from leakscope.experiments.workplace import Workplace
from leakscope.runners.audit import run_audits
from leakscope.runners.outlook import outlook
from leakscope.store import Store, verify
from leakscope.studies.faces import FacesStudy
from leakscope.studies.fisher import Comparison
from leakscope.studies.mixcon import MixConStudy
from leakscope.studies.packed import FORMS, pack, require_form, unpack
from leakscope.studies.peel import PeelStudy
from leakscope.studies.records import Part
from leakscope.studies.sparse_coding import SparseCodingStudy
from leakscope.studies.study import Runs, Study, part_name, read_part, write_study

from .samples import runs_of

TINY: dict[str, Any] = {
    "data": "digits", "model": "convnet", "cuts": ["features.2"], "victims": 8, "attacks": ["ridge", "decoder:steps=9"],
    "metrics": ["leak", "mse"], "training": {"epochs": 1}, "splits": {"private": 60, "heldout": 40, "public": 60},
    "defenses": ["none", "gaussian:sigma=0.5"], "seeds": [0, 1],
}  # fmt: skip


def audited(store: Path, **settings: Any) -> AuditReport:
    plan = make_plan(AuditConfig.checked({**TINY, **settings}))
    return run_audits([plan], Workplace(Store(store), torch.device("cpu")), command="test")[0].report


def computed(store: Path) -> dict[str, int]:
    """How many networks were trained there, attacks prepared and pictures rebuilt."""
    kept = Store(store)
    return {kind: len(kept.keys(kind)) for kind in ("trained", "prepared", "attack")}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AuditReport]:
    """A pack of two seeds, and the report of the run that it was made of."""
    folder = tmp_path_factory.mktemp("packed")
    report = audited(folder / "store")
    pack(Store(folder / "store"), folder / "pack")
    return folder / "pack", report


@pytest.fixture
def elsewhere(packed: tuple[Path, AuditReport], tmp_path: Path) -> Path:
    """A store on another machine that has what the pack has."""
    unpack(packed[0], tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called on, nothing may be trained, attacked or kept."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("all of it is there")

    def forbid() -> None:
        for place in ("experiments.stages", "experiments.evaluator", "experiments.goals.identities"):
            monkeypatch.setattr(f"leakscope.{place}.train", refuse)
        monkeypatch.setattr("leakscope.studies.sparse_time.train", refuse)
        monkeypatch.setattr(Executor, "run", refuse)
        monkeypatch.setattr(Store, "put", refuse)

    return forbid


def alike(report: AuditReport) -> AuditReport:
    """A report without when and where it was made, and without its pictures."""
    return replace(report, seconds=0.0, created="", pictures={}, provenance=None)


def test_a_pack_is_small_and_holds_neither_weights_nor_pictures(elsewhere: Path, packed: tuple[Path, Any]) -> None:
    store = Store(elsewhere)
    assert set(store.kinds()) == {"target", "result", "control", "floors", "bound", "blocks", "training"}
    for key in store.keys("result"):
        entry = store.get("result", key)
        assert entry is not None
        assert {tuple(own.shape) for own in entry.tensors().values()} == {(8,)}
    for kind in set(store.kinds()) - {"result"}:
        for key in store.keys(kind):
            other = store.get(kind, key)
            assert other is not None
            assert kind == "blocks" or not (other.folder / "tensors.safetensors").exists()
    assert list(verify(store)) == []
    trained = [read_trained(store, key) for key in store.keys("training")]
    assert all(own is not None and own.seconds > 0 and own.accuracy is not None for own in trained)
    assert packed[0].stat().st_size < 2000 * len(store.keys("result"))


def test_two_hundred_victims_take_less_than_six_kilobytes(tmp_path: Path, packed: tuple[Path, AuditReport]) -> None:
    """Values at random, which nothing makes smaller, of six metrics and their scale."""
    names = ("leak", "mse", "psnr", "ssim", "cosine", "psim[alexnet]")
    store, draw = Store(tmp_path / "store"), torch.Generator().manual_seed(0)
    scale = torch.rand(200, generator=draw)
    for number in range(20):
        own = packed[1].results[number % len(packed[1].results)]
        plain, key = to_json(replace(own, controls=(), flags=())), f"{number:024x}"
        metrics = {name: {**plain["metrics"]["leak"], "n": 200} for name in names}
        plain |= {"key": key, "metrics": metrics, "directions": dict.fromkeys(names, "high")}
        values = {name: torch.rand(200, generator=draw) for name in names}
        store.put("result", key, {"summary": plain}, {**values, "scale": scale})
    written = pack(store, tmp_path / "pack")
    assert written.kinds == {"result": 20}
    assert written.bytes / 20 < 6000


def test_the_same_verdict_without_training_or_attacking(
    elsewhere: Path, packed: tuple[Path, AuditReport], idle: Callable[[], None]
) -> None:
    idle()
    report = audited(elsewhere)
    assert alike(report) == alike(packed[1])
    assert report.pictures == {}
    assert report.provenance == Provenance(8, 8, rescored=False, signed=False)


def test_the_report_says_that_it_has_no_pictures(elsewhere: Path, tmp_path: Path) -> None:
    plan = make_plan(AuditConfig.checked(TINY))
    said = _Said()
    with progress.listening(said):
        (audit,) = run_audits([plan], Workplace(Store(elsewhere), torch.device("cpu")), command="test")
    assert said.lines == [f"the pictures of 8 of 8 results are not in {elsewhere}, and not shown"]
    write_folder(audit, tmp_path / "out")
    assert "A store that a pack was unpacked into has none." in (tmp_path / "out" / "report.html").read_text()
    assert "data:image/png" not in (tmp_path / "out" / "onepage.html").read_text()
    assert audit._repr_html_()


class _Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, name: str, total: int) -> Any:
        return progress.SILENT.stage(name, total)

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_a_new_seed_runs_alone(elsewhere: Path, packed: tuple[Path, AuditReport], tmp_path: Path) -> None:
    plan = make_plan(AuditConfig.checked({**TINY, "seeds": [0, 1, 2]}))
    # Of the third seed two targets, four attacks and two preparations; two tables of facts.
    expected = outlook([plan], elsewhere)
    assert expected.jobs - expected.done == 2 + 4 + 2 + 2
    (audit,) = run_audits([plan], Workplace(Store(elsewhere), torch.device("cpu")), command="test")
    assert computed(elsewhere) == {"trained": 2, "prepared": 2, "attack": 4}
    old = {result.key: result for result in packed[1].results}
    assert {key: own for result in audit.report.results if (key := result.key) in old for own in [result]} == old
    assert {result.seed for result in audit.report.results} == {0, 1, 2}
    assert {audit.report.result(key).seed for key in audit.report.pictures} == {2}
    write_folder(audit, tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text()
    assert "The pictures of 8 of 12 results are not in the store that this report was made from." in text
    # What was unpacked and what was run here go into one pack; a training that was here is told by its weights.
    assert len(Store(elsewhere).keys("training")) == 4
    written = pack(Store(elsewhere), tmp_path / "pack")
    assert written.kinds == {
        "result": 12, "target": 6, "bound": 6, "blocks": 6, "training": 6, "control": 2, "floors": 1,
    }  # fmt: skip


def test_a_new_attack_trains_its_targets_again_and_no_other_attack_runs(elsewhere: Path) -> None:
    report = audited(elsewhere, attacks=[*TINY["attacks"], "search:steps=2"])
    assert len(report.results) == 12
    found = computed(elsewhere)
    # Four networks, the new attack on each, and its control, which is run on easy pictures too where it fails.
    assert found["trained"] == 4
    assert found["attack"] in {4 + 1, 4 + 2}
    assert {result.attack.kind for result in report.results if result.key in report.pictures} == {"search"}


def test_a_gate_believes_no_scores_without_reconstructions(elsewhere: Path) -> None:
    report = audited(elsewhere, gate="leak<=0.01")
    assert report.provenance == Provenance(8, 0, rescored=False, signed=False)
    assert computed(elsewhere)["attack"] >= 8


def test_reconstructions_are_made_when_they_are_asked_for(elsewhere: Path, tmp_path: Path) -> None:
    words = ["--data", "digits", "--model", "convnet", "--cut", "features.2", "--epochs", "1", "--victims", "8"]
    words += ["--attack", "ridge", "--set", "metrics=[leak,mse]", "--quiet", "--store", str(elsewhere)]
    words += [part for name in ("private=60", "heldout=40", "public=60") for part in ("--set", f"splits.{name}")]
    assert run(app, ["attack", *words]) == 0
    assert computed(elsewhere) == {"trained": 0, "prepared": 0, "attack": 0}
    assert run(app, ["attack", *words, "--out", str(tmp_path / "out")]) == 0
    assert computed(elsewhere) == {"trained": 1, "prepared": 0, "attack": 1}
    assert (tmp_path / "out" / "sheet.png").exists()


def test_the_leaderboard_and_show_read_an_unpacked_store(
    elsewhere: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = tmp_path / "board.html"
    assert run(app, ["report", "--group", "defense", "--store", str(elsewhere), "--out", str(board)]) == 0
    assert "gaussian:sigma=0.5" in board.read_text()
    store = Store(elsewhere)
    for kind in store.kinds():
        assert run(app, ["show", min(store.keys(kind)), "--store", str(elsewhere)]) == 0
    key = min(store.keys("result"))
    capsys.readouterr()
    assert run(app, ["show", key, "--store", str(elsewhere), "--pictures", str(tmp_path / "strip.png")]) == 2
    assert "holds no pictures" in capsys.readouterr().err
    assert run(app, ["export", min(store.keys("target")), "--store", str(elsewhere), "--out", str(tmp_path / "e")]) == 2
    assert "no longer in the store" in capsys.readouterr().err


def test_the_commands_say_what_they_did(
    packed: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["store", "unpack", str(packed[0]), "--store", str(tmp_path / "s")]) == 0
    assert capsys.readouterr().out == f"27 entries added to {tmp_path / 's'}, 0 were there\n"
    assert run(app, ["store", "pack", str(tmp_path / "again"), "--store", str(tmp_path / "s")]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{tmp_path / 'again'}: 8 results on 4 targets, 27 entries (")
    assert "kB a result)" in told
    assert (tmp_path / "again").read_bytes() == packed[0].read_bytes()


def test_an_outside_attack_goes_along(tmp_path: Path, idle: Callable[[], None]) -> None:
    from hashlib import sha256

    from safetensors.torch import save_file

    one = {"defenses": ["gaussian:sigma=0.5"], "seeds": [0], "attacks": ["ridge"]}
    plan = make_plan(AuditConfig.checked({**TINY, **one}))
    save_file({"guess": plan.scene.first_victims.images}, tmp_path / "theirs")
    card = Card.model_validate({
        "name": "oracle", "by": "Somebody", "how": "They knew.", "threat": {"access": ["features"]},
        "sha256": sha256((tmp_path / "theirs").read_bytes()).hexdigest(),
    })  # fmt: skip
    submit(plan, Workplace(Store(tmp_path / "store"), torch.device("cpu")), tmp_path / "theirs", card, "submit")
    before = audited(tmp_path / "store", **one)
    pack(Store(tmp_path / "store"), tmp_path / "pack")
    unpack(tmp_path / "pack", tmp_path / "new")
    idle()
    after = audited(tmp_path / "new", **one)
    assert alike(after) == alike(before)
    assert any(result.by == "Somebody" for result in after.results)


def page(study: Study, runs: Runs, results: Path) -> Part:
    write_study(study, runs, results)
    part = read_part(results / study.kind_name / f"{part_name(study, runs.first.plan)}.json")
    return replace(part, origin=replace(part.origin, created=""))


@pytest.fixture
def folded_again(tmp_path: Path, idle: Callable[[], None]) -> Callable[..., tuple[Part, Part]]:
    """The page of a run, and the page that its pack gives elsewhere."""

    def both(study: Study, common: dict[str, Any], variants: dict[str, dict[str, Any]]) -> tuple[Part, Part]:
        before = page(study, runs_of(tmp_path / "here", common, variants), tmp_path / "here")
        pack(Store(tmp_path / "here" / "store"), tmp_path / "pack")
        unpack(tmp_path / "pack", tmp_path / "there" / "store")
        idle()
        return before, page(study, runs_of(tmp_path / "there", common, variants), tmp_path / "there")

    return both


def test_the_page_of_mixcon_is_the_same(folded_again: Callable[..., tuple[Part, Part]]) -> None:
    """With accuracies and hours of training, which were read from entries that hold weights."""
    common = {**TINY, "model": {"kind": "mlp", "widths": [4, 4]}, "cuts": ["relu2"], "attacks": ["ridge"],
              "metrics": ["leak", "ssim"], "threat": {"knows_defense": False}, "victims": 4,
              "defenses": ["none", "mixcon:weight=1,beta=0.0001"]}  # fmt: skip
    before, after = folded_again(MixConStudy(), common, {"table": {}, "grid": {}})
    assert after == before
    assert after.origin.training_hours == before.origin.training_hours
    assert all(row[3] is not None for row in after.tables[0].rows), "accuracy in training"


def test_the_page_of_peeling_is_the_same_but_for_pictures(folded_again: Callable[..., tuple[Part, Part]]) -> None:
    common = {
        "data": "digits", "cuts": ["layer4.1"], "threat": {"access": ["features", "encoder"], "public_data": False},
        "model": {"kind": "preact-resnet", "depth": 18, "width": 1, "growth": [1, 1, 1], "strided": False},
        "splits": {"private": 40, "heldout": 40, "public": 40},
        "attacks": [{"kind": "peel", "steps": 2}, {"kind": "embedding", "steps": 2}],
        "metrics": ["leak", "mse", "psnr", "ssim"], "victims": 3, "seeds": [0], "training": {"epochs": 0},
    }  # fmt: skip
    before, after = folded_again(PeelStudy(trial="demo"), common, {"U": {}})
    assert any(table.title == "Block by block, U" for table in after.tables)
    assert replace(after, pictures=()) == replace(before, pictures=())
    assert {drawn.name for drawn in before.pictures} - {drawn.name for drawn in after.pictures} == {"U.png", "maps.png"}


def test_the_page_of_faces_is_the_same_but_for_pictures(folded_again: Callable[..., tuple[Part, Part]]) -> None:
    """With what the judge recognises and the Fisher profiles, of which the networks are elsewhere."""
    common = {
        "data": "toyfaces:identities=16,images=24,size=16,grey=true",
        "splits": {"private": 0.3, "heldout": 0.1, "public": 0.6, "by_identity": True},
        "model": "convnet", "cuts": ["features.2"], "training": {"epochs": 2}, "victims": 6, "seeds": [0],
        "evaluator": {"model": "preact-resnet:width=8,batch_norm=true", "training": {"epochs": 20, "batch": 16}},
        "attacks": [{"kind": "gmi", "steps": 2, "images": 1, "prior": {"kind": "linear", "components": 4}}],
    }  # fmt: skip
    before, after = folded_again(FacesStudy(sheet=True, pictures_per_profile=8), common, {"main": {}})
    assert any("names " in line for line in after.limits)
    assert any(table.title.startswith("Fisher information by layer") for table in after.tables)
    assert replace(after, pictures=()) == replace(before, pictures=())
    assert {drawn.name for drawn in before.pictures} - {drawn.name for drawn in after.pictures} == {"faces.png"}


SCA: dict[str, Any] = {
    "data": "digits", "resize": 16, "model": {"kind": "sca-conv-net", "channels": [2, 3, 4], "hidden": 8},
    "cuts": ["norm2"], "splits": {"private": 40, "heldout": 40, "public": 40}, "threat": {"knows_defense": False},
    "attacks": ["ridge"], "metrics": ["leak", "mse", "psnr"], "defenses": ["none", "sca-conv"],
    "training": {"epochs": 1, "batch": 20}, "seeds": [0], "victims": 6,
}  # fmt: skip


def test_the_page_of_sparse_coding_is_the_same_but_for_pictures(
    folded_again: Callable[..., tuple[Part, Part]],
) -> None:
    before, after = folded_again(SparseCodingStudy(), SCA, {"split": {}})
    assert "silhouette by target" in {table.title for table in after.tables}
    assert "scatter-two convolutions" in {claim.id for claim in after.claims}
    assert replace(after, pictures=()) == replace(before, pictures=())
    assert {drawn.name for drawn in before.pictures} - {drawn.name for drawn in after.pictures} == {"split.png"}


def test_figures_that_need_the_networks_are_left_out_without_them(tmp_path: Path, idle: Callable[[], None]) -> None:
    """A pack of a store whose page was never drawn: there is no silhouette to take along, and none is made up."""
    runs_of(tmp_path / "here", SCA, {"split": {}})
    pack(Store(tmp_path / "here" / "store"), tmp_path / "pack")
    unpack(tmp_path / "pack", tmp_path / "there" / "store")
    idle()
    runs = runs_of(tmp_path / "there", SCA, {"split": {}})
    target = next(iter(runs.first.targets.values()))
    assert runs.first.network(target) is None
    assert runs.first.guess(runs.first.report.results[0]) is None
    part = page(SparseCodingStudy(), runs, tmp_path / "there")
    assert "silhouette by target" not in {table.title for table in part.tables}
    told = {claim.id: claim for claim in part.claims}["scatter-two convolutions"]
    assert (told.verdict, told.effect) == (Ruled.CANNOT_TELL, None), told.reason


def test_figures_that_studies_keep_have_a_form() -> None:
    from leakscope.store.pack import Packed

    profiles = {"classification": (1.0, 0.5, 0.2), "inversion": (0.3, 0.2, 1.0)}
    records: dict[str, dict[str, Any]] = {
        "fisher": {"fisher": to_json(Comparison(("a", "b", "c"), profiles))},
        "timing": {"epoch_seconds": 0.25, "training": {"epochs": 4}},
        "silhouette": {"silhouette": -0.1},
        "ceiling": {"accuracy": 0.9},
        "training": {"seconds": 12.5, "accuracy": None},
    }
    assert records.keys() < FORMS.keys()
    for kind, record in records.items():
        require_form(Packed(kind, "a" * 24, record, {}))
    assert from_json(Comparison, records["fisher"]["fisher"]).correlation() < 0
