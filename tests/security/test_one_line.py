"""Names that users hand over are quoted in errors; none of them writes a line or steers a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.cli import run
from leakscope.core.data import DATASETS
from leakscope.core.errors import UsageError, one_line
from leakscope.core.yaml_text import parse_yaml
from leakscope.data.folder import Folder


@given(text=st.text(st.characters()))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    shown = one_line(text)
    assert len((shown + "x").splitlines()) == 1
    assert all(sign.isprintable() or sign.isspace() for sign in shown)
    shown.encode()  # half characters too
    assert one_line(shown) == shown


def test_text_that_is_fine_stays_as_it_is() -> None:
    for text in ("Straße 8×8 → 中文, leak ≤ 0.05", "a\u00a0b", ""):
        assert one_line(text) == text


@pytest.mark.parametrize("name", ["a\nb", "\x1b]0;title\x07\x1b[2J", "\u202egnp.x", "half \udcff"])
def test_errors_show_what_is_in_a_name(tmp_path: Path, name: str) -> None:
    for work in (
        lambda: DATASETS.build(name),
        lambda: Folder(str(tmp_path / name)).load(None),
        lambda: parse_yaml(f'"{name}": 2001-01-01', name),
    ):
        with pytest.raises(UsageError) as caught:
            work()
        assert str(caught.value).isprintable()
        assert "\\" in str(caught.value)


def test_a_very_long_error_keeps_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    """An archive of 20,000 other arrays was answered with all their names."""

    def command(args: object, standalone_mode: bool) -> None:
        raise UsageError(f"it has: {'x1, ' * 20_000}; choose another file")

    assert run(command, []) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert len(told) < 2100
    assert told.startswith("leakscope: it has: x1")
    assert told.endswith("; choose another file\n")
