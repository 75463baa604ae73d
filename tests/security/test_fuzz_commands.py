"""Hostile options, grids and reports: no traceback, no exit code but 0 to 4, and no store made by a usage error."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from leakscope.cli import app, run
from leakscope.core.results import to_json
from tests.report.sample import sample

from .fuzzing import COMMANDS, examples

#: Seconds that one command may take.
PATIENCE = 30


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def survives(words: list[str], store: Path | None = None, *, again: bool = True) -> int:
    """The exit code of a command that ended as commands may end."""
    start, told = time.monotonic(), io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told):
        code = run(app, words)
    said = told.getvalue()
    assert code in range(5), words
    assert "Traceback" not in said, (words, said[-2000:])
    if again and time.monotonic() - start > PATIENCE:  # a busy machine stalls once; a hang comes again
        return survives(words, store, again=False)
    assert time.monotonic() - start < PATIENCE, words
    if code == 2:
        assert said.count("\n") == 1, (words, said)
        assert store is None or not store.exists() or not list(store.glob("entries/*/*/*")), words
    return code


odd = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.integers(), st.floats(), st.text(max_size=12),
    st.sampled_from(["none", "ridge", "mlp", "digits", "gaussian:0.1", "E1", "x.py:y", "../..", "/dev/zero", "."]),
)  # fmt: skip
trees = st.recursive(
    odd, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.just("kind"), inner,
                                                                     max_size=3), max_leaves=6,
)  # fmt: skip
SETTINGS = [
    "data", "model", "cuts", "defenses", "attacks", "metrics", "threat", "training", "seeds", "victims", "stops",
    "goal", "evidence", "gate", "scales", "variants", "study", "results", "resize", "splits", "private", "public",
    "heldout", "split_index", "weights", "normalize", "pretraining", "evaluator", "data_root", "training.epochs",
    "training.batch", "threat.access", "threat.queries", "splits.private",
]  # fmt: skip
OPTIONS = [
    "--data", "--model", "--cut", "--defense", "--attack", "--victims", "--seed", "--epochs", "--resize", "--gate",
    "--evidence", "--scale", "--set", "--weights", "--normalize", "--threads", "--workers", "--device",
]  # fmt: skip


def plain(text: str) -> str:
    """What a shell can hand over: no zero byte, no half characters."""
    return "".join(sign for sign in text if sign != "\0" and not 0xD800 <= ord(sign) < 0xE000)


@examples(COMMANDS)
@given(
    settings=st.dictionaries(st.sampled_from(SETTINGS), trees, max_size=2),
    options=st.lists(st.tuples(st.sampled_from(OPTIONS), odd.map(str).map(plain)), max_size=2),
)
def test_options(place: Path, settings: dict[str, Any], options: list[tuple[str, str]]) -> None:
    words = ["audit", "--data", "digits", "--dry-run", "--no-isolate", "--store", str(place / "absent")]
    for name, value in settings.items():
        words += ["--set", f"{name}={plain(json.dumps(value))}"]
    survives([*words, *(word for pair in options for word in pair)], place / "absent")
    assert not (place / "absent").exists()


@examples(COMMANDS)
@given(
    changes=st.dictionaries(
        st.sampled_from(["data", "models", "base", "threats", "defenses", "attacks", "seeds", "exclude", "include",
                         "budgets", "controls", "scales", "base.training", "x"]),
        trees, min_size=1, max_size=3,
    )
)  # fmt: skip
def test_grids(place: Path, changes: dict[str, Any]) -> None:
    grid = {"data": ["digits"], "models": ["mlp"], "attacks": ["ridge"], "defenses": ["none"], "base": {"victims": 4}}
    path, store = place / "grid.yaml", place / "grids"
    try:
        path.write_text(yaml.safe_dump({**grid, **changes}, allow_unicode=True), encoding="utf-8")
    except (yaml.YAMLError, UnicodeEncodeError):
        return
    shutil.rmtree(store, ignore_errors=True)
    survives(["bench", str(path), "--dry-run", "--store", str(store)], store)


AUDIT = json.loads(json.dumps(to_json(sample()[0])))


def places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where anything stands in a JSON document."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, value in items:
        yield (*at, name)
        yield from places(value, (*at, name))


PLACES = list(places(AUDIT))


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """The report with a few values changed, taken out, doubled or moved."""
    tree = copy.deepcopy(AUDIT)
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(PLACES))
        try:
            parent = tree
            for step in way:
                parent = parent[step]
            value = parent[last]
            how = draw(st.sampled_from(["put", "put", "take", "copy", "negate"]))
            if how == "take":
                del parent[last]
            elif how == "copy":
                parent[last] = [value, value]
            elif how == "negate" and isinstance(value, int | float):
                parent[last] = draw(st.sampled_from([-value, 0, 1e308, -1, 10**30, value + 1]))
            else:
                parent[last] = draw(trees)
        except (KeyError, IndexError, TypeError):
            continue
    return tree


@examples(COMMANDS)
@given(tree=mutated())
def test_reports(place: Path, tree: Any) -> None:
    folder = place / "report"
    folder.mkdir(exist_ok=True)
    (folder / "audit.json").write_text(json.dumps(tree), encoding="utf-8")
    survives(["report", str(folder)])
