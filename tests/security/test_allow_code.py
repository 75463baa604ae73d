"""A configuration file that names code needs the word of who runs it; the command line does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from leakscope.cli import app, run
from leakscope.core.errors import UsageError
from leakscope.core.own_code import code_in
from leakscope.core.spec import digest
from leakscope.core.yaml_text import read_yaml
from leakscope.experiments import permission
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.grid import BenchConfig
from leakscope.runners.bench import plan_bench
from leakscope.store import Store

EVIL = "from pathlib import Path\nPath({mark!r}).touch()\n"


def written(folder: Path, tree: Any) -> Path:
    path = folder / "x.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A Python file that leaves a mark when it is run."""
    path = tmp_path / "evil.py"
    path.write_text(EVIL.format(mark=str(tmp_path / "ran")))
    return path


@pytest.mark.parametrize(
    "tree",
    [
        {"model": "evil.py:build"},
        {"model": "evil.py"},
        {"model": {"kind": "file", "path": "evil.so"}},
        {"model": "file:evil"},
        {"model": "file:path=evil.so,factory=x"},
        {"model": "net.pt2"},
        {"model": "http://127.0.0.1:9"},
        {"model": {"kind": "http", "url": "https://example.invalid/x"}},
        {"model": {"kind": "path", "path": "zoo", "trust_code": True}},
        {"model": "path:zoo,trust_code=true"},
        {"model": "path:zoo,trust_code=yes"},
        {"attacks": ["ridge", "evil.py:Attack:steps=3"]},
        {"attacks": [{"kind": "gmi", "prior": {"kind": "evil.py:Prior"}}]},
        {"attacks": ["gmi:prior={kind: evil.py:Prior}"]},
        {"defenses": [["none", "evil.py:Defense"]]},
        {"defenses": ["dropout:p=0.2+evil.py:Defense"]},
        {"metrics": ["leak", "evil.py:Metric"]},
        {"evaluator": {"model": "evil.py:build"}},
        {"variants": {"a": {"model.kind": "file", "model.path": "evil"}}, "model": {"kind": "mlp"}},
        {"scales": {"small": {"model": "evil.py:build"}}},
    ],
)
def test_every_way_to_name_code_is_asked_about(tmp_path: Path, tree: dict[str, Any]) -> None:
    path = written(tmp_path, tree)
    scale = "small" if "scales" in tree else None
    with pytest.raises(UsageError, match="--allow-code") as caught:
        AuditConfig.read_all(path, {}, scale)
    assert "\n" not in str(caught.value)


def test_what_the_command_line_names_or_replaces_is_not_asked_about(tmp_path: Path) -> None:
    path = written(tmp_path, {"model": "mine.py:build", "data": "digits"})
    with pytest.raises(UsageError, match=r"mine\.py"):
        AuditConfig.read(path, {"training.epochs": 1})
    assert AuditConfig.read(path, {"model": "mine.py:build"}).model == "mine.py:build"
    assert AuditConfig.read(path, {"model": "other.py:build"}).model == "other.py:build"
    assert AuditConfig.read(path, {"model": "mlp"}).model == "mlp"
    assert AuditConfig.read(path, {}, allow_code=True).model == "mine.py:build"
    unused = written(tmp_path, {"data": "digits", "scales": {"other": {"model": "mine.py:build"}}})
    assert AuditConfig.read(unused, {}).data == "digits"


def test_settings_on_the_command_line_do_not_hide_what_the_file_names(tmp_path: Path) -> None:
    path = written(tmp_path, {"model": {"kind": "file", "path": "mine.py"}})
    with pytest.raises(UsageError, match=r"mine\.py"):
        AuditConfig.read(path, {"model.normalize": "none"})


def test_no_shipped_configuration_names_code() -> None:
    root = Path(__file__).parents[2]
    files = [*root.glob("configs/**/*.yaml"), *root.glob("src/leakscope/configs/*.yaml")]
    assert files
    for path in files:
        assert code_in(read_yaml(path)) == set(), path


def test_a_plug_in_in_a_file_is_code_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permission, "brought", lambda: frozenset({"theirs"}))
    for tree in ({"attacks": ["theirs:steps=2"]}, {"defenses": ["none+theirs"]}, {"model": {"kind": "theirs"}}):
        with pytest.raises(UsageError, match="theirs"):
            AuditConfig.read(written(tmp_path, tree), {})
    AuditConfig.read(written(tmp_path, {"attacks": ["ridge"]}), {})


@pytest.mark.parametrize("command", ["audit", "train", "attack", "bench"])
def test_no_command_runs_it_not_even_dry(
    tmp_path: Path, evil: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    key = "models" if command == "bench" else "model"
    named = f"{evil}:build"
    path = written(tmp_path, {"data": ["digits"] if command == "bench" else "digits", key: [named]
                              if command == "bench" else named})  # fmt: skip
    words = [command, str(path), "--store", str(tmp_path / "store"), "--dry-run"]
    assert run(app, words) == 2
    told = capsys.readouterr().err
    assert "--allow-code" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "ran").exists()
    if command == "train":  # it is this file that would have run
        assert run(app, [*words, "--allow-code"]) == 2  # it has no build()
        assert (tmp_path / "ran").exists()


def test_a_planted_grid_does_not_say_what_runs(tmp_path: Path, evil: Path) -> None:
    """Whoever may write to the store, and knows the format, plants a grid of his own behind the plan of a file."""
    grid = {"data": ["digits"], "models": ["mlp"], "attacks": ["ridge"], "base": {"cuts": ["flatten"], "victims": 4}}
    path, store = written(tmp_path, grid), Store(tmp_path / "store")
    honest = plan_bench(path, {}, None, store)
    (question,) = store.keys("plan")
    kept = store.get("grid", honest.key)
    assert kept is not None
    planted = json.loads(json.dumps(kept.record).replace('"kind": "mlp"', f'"kind": "file", "path": "{evil}"'))
    assert code_in(planted)
    store.put("grid", digest(planted), planted)
    store.discard("plan", question)
    store.put("plan", question, {"grid": digest(planted)})
    assert plan_bench(path, {}, None, store).key == honest.key
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("tree", "word"),
    [({"variants": [1]}, "table of names"), ({"variants": {"a": 3}}, "table of settings"),
     ({"variants": "x"}, "table of names"), ({"variants": {"../a": {}}}, "letters"),
     ({"variants": {"a/b": {}}}, "letters"), ({"variants": {".": {}}}, "letters"),
     ({"variants": {"..": {}}}, "letters"),
     ({"variants": {"a\nb": {}}}, "letters"), ({"variants": {"x" * 101: {}}}, "letters"),
     ({"scales": [1]}, "table of names"), ({"scales": {"s": [1]}}, "table of settings"),
     ({"scales": "s"}, "table of names"), ({"scales": {"other": {}}}, "no scale")],
)  # fmt: skip
def test_presets_of_other_types(tmp_path: Path, tree: dict[str, Any], word: str) -> None:
    path = written(tmp_path, tree)
    with pytest.raises(UsageError, match=word) as caught:
        AuditConfig.read_all(path, {}, "s" if "scales" in tree else None)
    assert "\n" not in str(caught.value)
    if "scales" in tree:
        with pytest.raises(UsageError, match=word):
            BenchConfig.read(path, {}, "s")
