"""Files that somebody else made, looked at before they are read."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from leakscope.core.errors import UsageError

#: Bytes of a JSON file that is read whole; the largest audit of ours has some million.
LARGEST_JSON = 1 << 28


def require_file(path: Path | str) -> Path:
    """Refuse what is no file: a device is read, and a pipe waited for, without end. What is not there, `open` tells."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 (Path.stat has no words for a name with a zero in it)
    except ValueError:
        raise UsageError(f"{str(path)!r} is no path; check it") from None
    except OSError:
        return Path(path)
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise UsageError(f"{path} is {kind}, not a file; check the path")
    return Path(path)


def read_json(path: Path, remedy: str) -> Any:
    """What a JSON file holds; `FileNotFoundError` where there is none, one line for all else."""
    require_file(path)
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise UsageError(f"{path} has more than {LARGEST_JSON >> 20} MB; {remedy}")
        return json.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise
    except RecursionError:
        raise UsageError(f"cannot read {path}: it is nested too deep; {remedy}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; {remedy}") from None
    except ValueError as error:
        raise UsageError(f"cannot read {path}: {' '.join(str(error).split())[:200]}; {remedy}") from None
