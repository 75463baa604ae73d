"""How a Python process of ours starts another."""

from __future__ import annotations

import os
import sys


def module_command(name: str) -> list[str]:
    """`python -m name`, with the working folder on the module path only where it is on ours.

    `python -m` would put it first, so that a `yaml.py` in a folder of pictures would run.
    """
    ours = sys.path[:1] in ([""], [os.getcwd()])  # noqa: PTH109 (compared as text)
    return [sys.executable, *([] if ours else ["-P"]), "-m", name]
