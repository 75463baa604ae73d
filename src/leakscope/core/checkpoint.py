"""Checkpoints of running stages: whole or absent, and never code.

The file is what `torch.save` writes, with a line `\\nleakscope-sha256 <64 digits>\\n` behind it; zip readers
skip what follows an archive's end only within limits, so it is cut off before reading.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

from leakscope.core import progress
from leakscope.core.durable import make_folders, replace_durably

_MARK = b"\nleakscope-sha256 "
_TAIL = len(_MARK) + 64 + 1


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write `state` (tensors, numbers, text, lists and tables of them); the file is replaced atomically."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    make_folders(path.parent)
    replace_durably(path, content + _MARK + hashlib.sha256(content).hexdigest().encode() + b"\n")


def load_checkpoint(path: Path, device: Any = "cpu") -> dict[str, Any] | None:
    """What `save_checkpoint` wrote; None if there is no file. A damaged one is deleted with a warning."""
    import torch

    try:
        content = _content(path)
        if content is None:
            return None
        state = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
        if not isinstance(state, dict):
            raise ValueError("it holds no table")
    except PermissionError:
        raise
    except Exception as error:  # torch.load has no one error for a damaged file
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
        progress.say(f"checkpoint {path} is damaged ({reason}); it is thrown away and the stage begins again")
        path.unlink(missing_ok=True)
        return None
    return state


def checkpoint_problem(path: Path) -> str | None:
    """What is wrong with a file in a scratch folder; files that Leakscope did not write are ignored."""
    if path.name.startswith("."):  # being written
        return None
    try:
        _content(path)
    except (OSError, ValueError) as error:
        return f"{error}; delete it"
    return None


def _content(path: Path) -> bytes | None:
    """The archive inside, once its hash is seen to fit."""
    try:
        whole = path.read_bytes()
    except FileNotFoundError:
        return None
    content, tail = whole[:-_TAIL], whole[-_TAIL:]
    if tail != _MARK + hashlib.sha256(content).hexdigest().encode() + b"\n":
        raise ValueError("it is damaged, cut short, or of an older version")
    return content
