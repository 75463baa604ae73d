"""House rules that a machine can check: short files, short functions, and labels that only people read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from leakscope.core.words import FlagId, Ruled

SOURCE = Path(__file__).parents[1] / "src" / "leakscope"
LONGEST_FILE = 400
LONGEST_FUNCTION = 60
#: Ways to take a text apart.
_PARSING = {
    "partition", "rpartition", "split", "rsplit", "startswith", "endswith", "removeprefix", "removesuffix", "find",
    "index", "replace", "match", "search", "fullmatch", "sub",
}  # fmt: skip
_LABELS = {"label", "title"}


def _sources() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8")


def test_no_file_is_long() -> None:
    assert {name: n for name, text in _sources() if (n := len(text.splitlines())) > LONGEST_FILE} == {}


def test_no_function_is_long() -> None:
    """From the docstring to the end: the signature of a command is its list of options, one per line."""
    found = {
        f"{name}:{node.lineno} {node.name}": length
        for name, text in _sources()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.body[0].lineno + 1) > LONGEST_FUNCTION
    }
    assert found == {}


def _is_label(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _LABELS


def parsed_labels(text: str) -> Iterator[int]:
    """Lines on which a label is taken apart, searched, or compared with a constant."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PARSING:
            regular = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            if _is_label(node.func.value) or (regular and any(map(_is_label, node.args))):
                yield node.lineno
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            constant = any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides)
            if constant and any(map(_is_label, sides)):
                yield node.lineno


def test_no_module_parses_a_label() -> None:
    assert {f"{name}:{line}" for name, text in _sources() for line in parsed_labels(text)} == set()


def test_words_of_doubt_stand_in_one_module() -> None:
    """No other module spells a flag's name, or the judge's words, as a string of its own."""
    spelt = {*FlagId, *Ruled} - {"holds"}  # a plain verb elsewhere
    found = {
        f"{name}:{node.lineno} {node.value!r}"
        for name, text in _sources()
        if name != "core/words.py"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and node.value in spelt
    }
    assert found == set()


def test_parsing_of_labels_is_seen() -> None:
    text = """
record.defense.label.partition("(")
re.match("kernel", row.attack.label)
row.defense.label == "none"
"x" in row.title
print(row.defense.label)
"""
    assert sorted(parsed_labels(text)) == [2, 3, 4, 5]
