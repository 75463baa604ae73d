"""Files of JSON lines that tell when they are not as they were written: each line ends with a proof of the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leakscope.store.sealing import proof

#: Bytes of the proof at the end of a line.
_LENGTH = len(', "proof": "') + 64 + len('"}')


def proven(fields: Mapping[str, Any], key: bytes | None = None) -> bytes:
    """One line: `fields`, which are not empty, and the hash of their text, or with `key` its HMAC."""
    body = json.dumps(fields).encode()
    return body[:-1] + _end(body, key) + b"\n"


def read_proven(content: bytes, key: bytes | None = None) -> Iterator[dict[str, Any] | None]:
    """What each line says; None where it is not as it was written."""
    for line in content.splitlines(keepends=True):
        yield _opened(line, key)


def _opened(line: bytes, key: bytes | None) -> dict[str, Any] | None:
    body = line[: -_LENGTH - 1] + b"}"
    if line != body[:-1] + _end(body, key) + b"\n":
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):  # somebody's own text, and the proof of it
        return None
    return found if isinstance(found, dict) else None


def wrong_lines(path: Path, key: bytes | None = None) -> str | None:
    """Which lines of a file are not as they were written, in words; None when all are."""
    try:
        wrong = [number for number, found in enumerate(read_proven(path.read_bytes(), key), 1) if found is None]
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return f"{len(wrong)} of its lines changed since they were written, first line {wrong[0]}" if wrong else None


def _end(body: bytes, key: bytes | None) -> bytes:
    return f', "proof": "{proof(body, key)}"}}'.encode()
