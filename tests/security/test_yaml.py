"""YAML that somebody else wrote: plain data, or one line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from leakscope.core.errors import UsageError
from leakscope.core.spec import Kind, parse
from leakscope.core.yaml_text import parse_yaml, read_yaml

ROOT = Path(__file__).parents[2]
ALIASES = "- &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"- &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(9)
)
MERGES = "- &a {x: 1}\n" + "".join(
    f"- &{chr(98 + n)} {{<<: [{', '.join([f'*{chr(97 + n)}'] * 10)}]}}\n" for n in range(9)
)


@pytest.mark.parametrize(
    ("text", "word"),
    [("a: &a [*a]", "inside its own value"), ("&a {b: {c: *a}}", "inside its own value"), ("[" * 3000, "deep"),
     ("- " * 3000, "deep"), ("{a: " * 3000, "deep"), ("a:\n" + "".join(" " * n + "a:\n" for n in range(1, 99)), "deep"),
     (ALIASES, "unfolds"), (MERGES, "unfolds"), ("a: .nan", "finite"), ("b: [1, {c: -.inf}]", "b.1.c is -inf"),
     ("1: 2", "quotes"), ("? [1]\n: 2", "not YAML"), ("d: 2001-99-99", "quotes"), ("d: 2001-01-01", "quotes"),
     ("a: " + "9" * 5000, "quotes"), ("a: 0x" + "f" * 9000, "too large"), ("a: " + "1:" * 3000 + "1", "too large"),
     ("x: !!binary aGk=", "quotes"), ("!!set {a}", "quotes"), ("a: !!int ''", "quotes"), ("!!timestamp x", "quotes"),
     ("!!python/object/apply:os.system ['echo']", "not YAML"), ("\x00", "not YAML"), ("a: b: c", "not YAML"),
     ("x" * 300_000, "shorter")],
)  # fmt: skip
def test_one_line(text: str, word: str) -> None:
    start = time.monotonic()
    with pytest.raises(UsageError, match=word) as caught:
        parse_yaml(text, "some.yaml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("some.yaml")
    assert time.monotonic() - start < 5


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    for content, word in ((b"a: \xff\xfe", "UTF-8"), (b"a: 1\n" * 400_000, "larger"), (b"\x80" * 2_000_000, "larger")):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=word) as caught:
            read_yaml(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(b"\xef\xbb\xbfa: 1")  # as Windows saves it
    assert read_yaml(path) == {"a": 1}
    path.write_bytes(b"")
    assert read_yaml(path) is None
    with pytest.raises(UsageError, match="cannot read"):
        read_yaml(tmp_path)
    with pytest.raises(UsageError, match="cannot read"):
        read_yaml(tmp_path / "absent")


def test_what_is_written_today_reads_the_same() -> None:
    files = [*ROOT.glob("configs/**/*.yaml"), *ROOT.glob("src/leakscope/configs/*.yaml")]
    assert files
    for path in files:
        assert read_yaml(path) == yaml.safe_load(path.read_text())


def test_anchors_in_reason_are_fine() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}", "t") == {
        "a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2},
    }  # fmt: skip


@pytest.mark.parametrize("value", ["[" * 5000, "0x" + "f" * 9000, "9" * 5000, "&a [*a]", "2001-99-99"])
def test_settings_on_a_command_line(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(f"gaussian:sigma={value}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan", "-inf", 10**400])
def test_numbers_that_are_none_are_refused_in_any_field(value: object) -> None:
    from dataclasses import dataclass

    kind: Kind[object] = Kind("thing", "leakscope.data")

    @kind.register("thing")
    @dataclass(frozen=True)
    class Thing:
        rate: float = 0.1
        rates: tuple[float, ...] = ()

    for fields in ({"rate": value}, {"rates": [0.5, value]}):
        with pytest.raises(UsageError, match=r"finite|valid number") as caught:
            kind.build({"kind": "thing", **fields})
        assert "\n" not in str(caught.value)
