"""Python files of the user's, run once for each content: `my.py:MyAttack`."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from leakscope.core.errors import UsageError

_NAMED = re.compile(r"^(?P<path>.+\.py):(?P<name>[A-Za-z_]\w*)(?::(?P<rest>.*))?$", re.DOTALL)


def parted(text: str) -> tuple[str, str] | None:
    """`my.py:MyAttack:steps=3` as `my.py:MyAttack` and `steps=3`; None where no file is named."""
    match = _NAMED.match(text)
    return None if match is None else (f"{match['path']}:{match['name']}", match["rest"] or "")


def names_code(plain: Any) -> bool:
    """Whether a description would run a Python file if it were built."""
    if isinstance(plain, dict):
        kind = plain.get("kind")
        return (isinstance(kind, str) and ".py:" in kind) or any(names_code(value) for value in plain.values())
    if isinstance(plain, list | tuple):
        return any(names_code(value) for value in plain)
    return isinstance(plain, str) and parted(plain) is not None


def class_from(text: str) -> type[Any]:
    """The class that `my.py:MyAttack` names; the file is run."""
    path, _, name = text.rpartition(":")
    module = _module(Path(path))
    found = getattr(module, name, None)
    if not isinstance(found, type):
        classes = sorted(key for key, value in vars(module).items() if isinstance(value, type))
        raise UsageError(f"{path} has no class {name!r}; its classes: {', '.join(classes) or 'none'}")
    return found


def _module(path: Path) -> ModuleType:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}); write FILE.py:CLASS") from None
    name = f"leakscope_own_{hashlib.sha256(str(path.resolve()).encode() + content).hexdigest()[:24]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        text = " ".join(str(error).split())
        remedy = "put its folder on PYTHONPATH" if isinstance(error, ImportError) else "mend the file"
        raise UsageError(f"{path} cannot be imported: {type(error).__name__}: {text}; {remedy}") from None
    return module
