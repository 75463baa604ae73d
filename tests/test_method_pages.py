"""Every method has its page, every page is current, and a defence's page holds what a reader must know."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from leakscope.core.attack import ATTACKS
from leakscope.core.defense import DEFENSES

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    made: dict[Path, str] = runpy.run_path(str(DOCS / "method_pages.py"))["pages"]()
    return made


def test_pages_are_current(pages: dict[Path, str]) -> None:
    stale = [path.name for path, text in pages.items() if not path.exists() or path.read_text() != text]
    folders = {path.parent for path in pages} - {DOCS}
    gone = [path.name for folder in folders for path in folder.glob("*.md") if path not in pages]
    assert not stale + gone, "run: make methods"


def test_every_method_has_a_page(pages: dict[Path, str]) -> None:
    names = {(path.parent.name, path.stem) for path in pages}
    for folder, kind in (("attacks", ATTACKS), ("defenses", DEFENSES)):
        assert {(folder, name) for name in kind if kind[name].__module__.startswith("leakscope.")} <= names


def _ours(kind: Any) -> list[str]:
    return [name for name in kind if kind[name].__module__.startswith("leakscope.")]


@pytest.mark.parametrize("name", [name for name in _ours(DEFENSES) if name != "none"])
def test_a_defence_gives_its_equation_and_its_source(name: str) -> None:
    text = inspect.getdoc(DEFENSES[name]) or ""
    assert re.search(r"^    \S.*[=∝≤→↦]", text, re.MULTILINE), "no equation: a block indented by four spaces"
    assert re.search(r"\b(19|20)\d\d\b", text), "no source: author, title, year"


@pytest.mark.parametrize("name", _ours(ATTACKS))
def test_an_attack_gives_its_source(name: str) -> None:
    assert re.search(r"\b(19|20)\d\d\b", inspect.getdoc(ATTACKS[name]) or ""), "no source: author, title, year"


def test_settings_tables_are_whole(pages: dict[Path, str]) -> None:
    for path, text in pages.items():
        tables = [line for line in text.splitlines() if line.startswith("|")]
        assert all(len(re.findall(r"(?<!\\)\|", line)) == 5 for line in tables), path.name


def test_a_page_shows_fields_defaults_and_remarks(pages: dict[Path, str]) -> None:
    page = pages[DOCS / "defenses" / "cem-slot.md"]
    assert "| `weight` | `float` | `16.0` |" in page
    assert "| `slots` | `int` | `8` |" in page  # of the nested settings
    assert "p: slots weigh by their mass to this power" in page
    assert "**Differs from the paper:**" in page
    assert "Attacks made against it, which an audit adds: `auto`." in page
