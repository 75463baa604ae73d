"""Reads untrusted YAML: plain data of bounded size and depth, or a one-line error."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

from leakscope.core.errors import UsageError

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where PyYAML has it
#: Characters of a file; the largest grid of this repository has some thousand.
LONGEST = 1 << 18
#: Lists and tables inside each other.
DEEPEST = 40
#: Values, counted as often as aliases repeat them.
MOST = 100_000
#: Whole numbers: 64 bits.
LARGEST = 2**63 - 1


def read_yaml(path: Path | str) -> Any:
    """The content of a YAML file: tables with text as keys, lists, text, finite numbers, true, false and null."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(4 * LONGEST + 1)
    except ValueError:
        raise UsageError(f"{str(path)!r} is no path; check it") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; check the path") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(raw) <= 4 * LONGEST:
            raise UsageError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
        text = ""
    if len(raw) > 4 * LONGEST:
        raise UsageError(f"{path} is larger than {LONGEST} characters, which is no configuration; check the path")
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str, *, finite: bool = True) -> Any:
    """As `read_yaml`, for text; `name` is what an error calls it. `finite=False` accepts NaN."""
    if len(text) > LONGEST:
        raise UsageError(f"{name} has {len(text)} characters and may have {LONGEST}; make it shorter")
    try:
        _require_small(text, name)
        tree = yaml.load(text, Loader=_LOADER)  # noqa: S506 (safe, in C or in Python)
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is not YAML: {' '.join(str(error).split())[:300]}") from None
    except RecursionError:
        raise _too_deep(name) from None
    except UsageError:
        raise
    except Exception as error:  # PyYAML lets through whatever Python says of dates and numbers that do not exist
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{name} has a value that cannot be read ({reason}); put text into quotes") from None
    _require_plain(tree, name, finite)
    return tree


def _too_deep(name: str) -> UsageError:
    return UsageError(f"{name} is nested more than {DEEPEST} deep; make it flatter")


def _require_small(text: str, name: str) -> None:
    """Refuse, while parsing, what would be too deep or too large with aliases and merges expanded."""
    sizes: dict[str, int] = {}
    open_: list[tuple[str | None, int]] = [(None, 0)]  # the anchor of each collection we are in, and its size so far
    for event in yaml.parse(text, Loader=_LOADER):
        size = 1
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, 1))
            if len(open_) > DEEPEST + 1:
                raise _too_deep(name)
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_.pop()
            if anchor is not None:
                sizes[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            alias = str(event.anchor)
            if any(anchor == alias for anchor, _ in open_):
                raise UsageError(f"{name}: the anchor {alias[:40]!r} is inside its own value; write it out")
            size = sizes.get(alias, 1)
        above, counted = open_.pop()
        if counted + size > MOST:
            raise UsageError(f"{name} unfolds to more than {MOST} values (aliases of aliases); write less")
        open_.append((above, counted + size))


def _require_plain(value: Any, name: str, finite: bool, where: tuple[str, ...] = ()) -> None:
    """Refuse everything but plain data."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{name}: {_place(where)} has the key {_said(key)}; put it into quotes")
            _require_plain(item, name, finite, (*where, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _require_plain(item, name, finite, (*where, str(number)))
    else:
        _require_value(value, where, name, finite)


def _require_value(value: Any, where: tuple[str, ...], name: str, finite: bool) -> None:
    if isinstance(value, int) and abs(value) > LARGEST:
        raise UsageError(f"{name}: {_place(where)} is a number too large to count with; give a smaller one")
    if finite and isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{name}: {_place(where)} is {value}; give a finite number")
    if not (value is None or isinstance(value, str | bool | int | float)):
        raise UsageError(
            f"{name}: {_place(where)} is a {type(value).__name__}, not text or a number; put it into quotes"
        )


def _said(key: Any) -> str:
    return "of a number with too many digits" if isinstance(key, int) and abs(key) > LARGEST else repr(key)[:60]


def _place(where: tuple[str, ...]) -> str:
    return ".".join(part[:40] for part in where)[:200] or "its value"
