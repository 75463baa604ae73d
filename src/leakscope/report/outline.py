"""Plain data as indented text that YAML reads back, without a YAML writer in the report's imports."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z_/][\w./+=@:-]*", re.ASCII)
_RESERVED = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def outline(value: Any) -> str:
    return "\n".join(_lines(value))


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping) and value:
        return [line for key, item in value.items() for line in _entry(f"{_scalar(str(key))}:", item)]
    if _is_list(value) and value:
        return [line for item in value for line in _entry("-", item)]
    return [_scalar(value)]


def _entry(head: str, item: Any) -> list[str]:
    if isinstance(item, Mapping | list | tuple) and item:
        if _is_list(item) and not any(isinstance(part, Mapping | list | tuple) for part in item):
            return [f"{head} [{', '.join(_scalar(part) for part in item)}]"]
        return [head, *("  " + line for line in _lines(item))]
    return [f"{head} {_scalar(item)}"]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        bare = _BARE.fullmatch(value) and value.lower() not in _RESERVED and not value.endswith(":")
        return value if bare else json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return _real(value)
    if isinstance(value, Mapping | list | tuple):
        return "{}" if isinstance(value, Mapping) else "[]"
    return json.dumps(value)


def _real(value: float) -> str:
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    text = repr(value)
    # YAML 1.1 reads 1e-05 as a word; it asks for a point before the exponent.
    return text.replace("e", ".0e") if "e" in text and "." not in text else text
