"""The commands, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from leakscope.cli import app, run

ROOT = Path(__file__).parents[2]
TINY = ["--data", "digits", "--epochs", "2", "--victims", "8", "--quiet"]


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    return ["--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]


def _json(capsys: pytest.CaptureFixture[str]) -> object:
    return json.loads(capsys.readouterr().out)


def test_help_answers_without_torch() -> None:
    code = "import sys; from leakscope.cli import run, app; run(app, ['--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")
    assert "audit" in done.stdout


def test_no_command_is_answered_with_the_help_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, []) == 2
    shown = capsys.readouterr()
    assert "audit" in shown.out
    assert shown.err == ""


def test_a_file_without_the_function_says_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "net.py"
    file.write_text("from torch import nn\nfrom torch.nn import Linear\nclass Net(nn.Flatten):\n    pass\n")
    assert run(app, ["cuts", str(file), "--data", "digits"]) == 2
    assert f"write {file}:NAME, one of: Net\n" in capsys.readouterr().err


def test_help_tells_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """They stand in brackets, which a markup language would swallow."""
    run(app, ["audit", "--help"])
    assert "[mnist5k]" in capsys.readouterr().out
    run(app, ["bench", "--help"])
    assert "[one per core" in capsys.readouterr().out


def test_list_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["list", "--json"]) == 0
    names = _json(capsys)
    assert isinstance(names, dict)
    assert set(names) == {"attacks", "defenses", "datasets", "models", "metrics", "priors", "studies"}
    assert {"ridge", "decoder", "search"} <= set(names["attacks"])
    assert {"none", "gaussian", "laplace", "dropout", "topk", "bottleneck"} <= set(names["defenses"])
    assert run(app, ["list", "attacks"]) == 0
    assert "ridge" in capsys.readouterr().out


def test_cuts_show_shape_and_compute(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["cuts", "torchvision:resnet18", "--data", "digits", "--resize", "32", "--json"]) == 0
    found = _json(capsys)
    assert isinstance(found, list)
    layer1 = next(cut for cut in found if cut["name"] == "layer1")
    assert layer1["shape"] == [64, 8, 8]
    assert 0.2 < layer1["compute"] < 0.4
    assert "layer1.0.conv1" not in {cut["name"] for cut in found}
    assert run(app, ["cuts", "lenet5"]) == 0
    assert "×" in capsys.readouterr().out


def test_audit_writes_a_report_and_show_finds_its_keys(place: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    code = run(app, ["audit", *TINY, *place, "--attack", "ridge", "--json", "--seed", "1"])
    assert code == 0
    document = _json(capfd)
    assert isinstance(document, dict)
    out = Path(place[3])
    assert json.loads((out / "audit.json").read_text()) == document
    assert {"report.html", "summary.md", "junit.xml", "results.sarif"} <= {path.name for path in out.iterdir()}
    assert {row["seed"] for row in document["results"]} == {1}
    key = document["results"][0]["key"]
    assert run(app, ["show", key[:8], *place[:2]]) == 0
    shown = _json(capfd)
    assert isinstance(shown, dict)
    assert shown["summary"]["metrics"] == document["results"][0]["metrics"]
    # The splits it wrote give the same victims, hence the same scores.
    again = ["--set", f"split_index={out}/splits.json", "--out", str(out / "again"), *place[:2]]
    # With a gate, in a child process, and scored again from the stored reconstructions.
    gate = ["--gate", "leak<=1"]
    assert run(app, ["audit", *TINY, *again, "--attack", "ridge", "--json", "--seed", "1", *gate]) == 0
    repeated = _json(capfd)
    assert isinstance(repeated, dict)
    assert repeated["results"] == document["results"]
    assert repeated["verdict"] == "pass"
    assert document["provenance"] == {"results": 2, "found": 0, "rescored": False, "signed": False}
    assert repeated["provenance"] == {"results": 2, "found": 2, "rescored": True, "signed": False}
    (out / "report.html").unlink()
    assert run(app, ["report", str(out)]) == 0
    assert (out / "report.html").exists()


def test_a_dry_run_computes_nothing(place: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("audit", "train", "attack"):
        options = TINY if command != "train" else [option for option in TINY if option not in {"--victims", "8"}]
        assert run(app, [command, *options, *place[: 4 if command != "train" else 2], "--dry-run", "--json"]) == 0
        shown = _json(capsys)
        assert isinstance(shown, dict)
        assert shown["targets"] == 2
    assert not Path(place[1]).exists()


def test_train_then_attack_uses_what_was_trained(
    tmp_path: Path, place: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--data", "digits", "--epochs", "2", "--cut", "features.2", "--json"]
    saved = tmp_path / "net.safetensors"
    assert run(app, ["train", *chosen, *place[:2], "--save", str(saved)]) == 0
    trained = _json(capsys)
    assert isinstance(trained, list)
    assert trained[0]["accuracy"] > 0.5
    store = Path(place[1])
    before = sorted(path.name for path in store.glob("entries/trained/*/*"))
    assert run(app, ["attack", *chosen, *place, "--attack", "ridge", "--victims", "8"]) == 0
    rows = _json(capsys)
    assert isinstance(rows, list)
    assert rows[0]["target"]["key"] == trained[0]["key"]
    assert sorted(path.name for path in store.glob("entries/trained/*/*")) == before
    pictures = load_file(Path(place[3]) / "reconstructions.safetensors")
    assert pictures["truth"].shape == pictures[rows[0]["result"]["key"]].shape == (8, 1, 8, 8)
    assert (Path(place[3]) / "sheet.png").exists()
    # The same weights from a file give the same network, trained or not.
    weights = ["--data", "digits", "--cut", "features.2", "--weights", str(saved), "--json", "--attack", "ridge"]
    assert run(app, ["attack", *weights, *place[:2], "--victims", "8"]) == 0
    again = _json(capsys)
    assert isinstance(again, list)
    assert again[0]["result"]["metrics"] == rows[0]["result"]["metrics"]


def test_own_model_weights_and_pictures(tmp_path: Path, place: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in ("cats", "dogs"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(40):
            pixels = np.kron(rng.integers(0, 255, (4, 4, 3)), np.ones((8, 8, 1))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    sys.path.insert(0, str(ROOT / "examples"))
    from own_model import build

    from leakscope.core.seeds import ambient
    from leakscope.models.own_file import OwnFile

    architecture = OwnFile(str(ROOT / "examples" / "own_model.py"))
    with ambient(0, "own"):
        model = architecture.build((3, 32, 32), 2)
    assert type(model).__name__ == type(build()).__name__
    save_file(model.state_dict(), tmp_path / "own.safetensors")
    code = run(
        app,
        ["audit", "--model", f"{ROOT}/examples/own_model.py:build", "--weights", str(tmp_path / "own.safetensors"),
         "--data", f"folder:{tmp_path}/photos", "--cut", "features.3", "--attack", "ridge", "--victims", "4",
         "--json", *place],
    )  # fmt: skip
    document = _json(capsys)
    assert code in (0, 4)
    assert isinstance(document, dict)
    assert document["targets"][0]["record"]["cut"] == "features.3"
    assert not list((Path(place[1]) / "entries").glob("trained/*"))


@pytest.mark.parametrize(
    ("model", "cut"), [("torchvision:resnet18", "layer1"), ("timm:vit_tiny_patch16_224", "blocks.1")]
)
def test_networks_of_others_with_random_weights(
    model: str, cut: str, place: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", "digits", "--resize", "32", "--epochs", "0", "--victims", "4", "--attack", "ridge", "--json"]
    options += ["--set", "splits.limit=300"]
    code = run(app, ["audit", "--model", model, "--cut", cut, *options, *place])
    assert code in (0, 4)
    document = _json(capsys)
    assert isinstance(document, dict)
    assert document["results"][0]["metrics"]["leak"]["mean"] > 0


def test_the_published_schema_is_current() -> None:
    from leakscope.experiments.config import AuditConfig

    published = json.loads((ROOT / "docs" / "audit-config.schema.json").read_text())
    assert published == AuditConfig.model_json_schema(), "run: leakscope schema > docs/audit-config.schema.json"


CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
EMBEDDED = {
    "demo.yaml",
    "faces_toy.yaml",
    "mixcon_synthetic.yaml",
    "peel_demo.yaml",
    "mixcon_mnist.yaml",
    "bench_smoke.yaml",
}
UNAVAILABLE = {"tldmi_celeba.yaml": "celeba"}  # nobody may pass it on


def _planned(path: Path, *options: str) -> int:
    """Exit code of a dry run; published sizes take minutes to plan, so the small ones are where there are any."""
    from leakscope.experiments.config import AuditConfig, read_yaml

    if path.name.startswith("bench"):
        return run(app, ["bench", str(path), "--dry-run", *options])
    scales = [*read_yaml(path).get("scales", {})]
    for scale in [None, *scales]:
        AuditConfig.read_all(path, {}, scale)
    return run(app, ["audit", str(path), "--dry-run", *(["--scale", "small"] if "small" in scales else []), *options])


@pytest.mark.parametrize("path", [p for p in CONFIGS if p.name in EMBEDDED], ids=lambda path: path.name)
def test_configurations_on_embedded_data_can_be_planned_anywhere(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEAKSCOPE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert _planned(path) == 0


@pytest.mark.parametrize(
    "path", [p for p in CONFIGS if p.name not in EMBEDDED | UNAVAILABLE.keys()], ids=lambda path: path.name
)
def test_configurations_on_real_data_can_be_planned(path: Path, shared_data: Path) -> None:
    assert _planned(path, "--data-root", str(shared_data)) == 0


@pytest.mark.parametrize("path", [p for p in CONFIGS if p.name not in EMBEDDED], ids=lambda path: path.name)
def test_configurations_say_which_data_they_miss(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from leakscope.data import torchvision_sets
    from leakscope.experiments.config import read_yaml

    monkeypatch.delenv("LEAKSCOPE_DATA", raising=False)
    monkeypatch.setattr(torchvision_sets, "DEBIAN_FASHION", tmp_path / "nowhere")  # the package may be installed
    monkeypatch.chdir(tmp_path)
    assert _planned(path, "--data-root", str(tmp_path)) == 2
    data = read_yaml(path)["data"]
    name = data["kind"] if isinstance(data, dict) else data.split(":")[0]
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{name} " in said.replace(":", " ")


def test_runtime_errors_are_three_not_two(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import leakscope.experiments.plan as plan

    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(plan, "make_plan", broken)
    assert run(app, ["audit", "--data", "digits"]) == 3
    assert "ZeroDivisionError" in capsys.readouterr().err
