"""The user's own Python files, executed once per content: `my.py:MyAttack`."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from leakscope.core.calls import calling
from leakscope.core.errors import UsageError, ended_by, said_by
from leakscope.core.files import require_file

#: How modules made of users' files are called.
_OWN = "leakscope_own_"
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


#: Text that names a file of code, asks that code which comes with weights be run, or names a service that pictures
#: (and the token of whoever runs this) would be sent to.
_CODE = re.compile(r"\.pyc?(?![\w.])|\.pt2(?!\w)|^\s*file:|https?:/|trust_code\s*=\s*(?!false|0|no\b)", re.IGNORECASE)


def code_in(tree: Any, others: Collection[str] = ()) -> set[str]:
    """What in a configuration reaches out of it: files of code, `trust_code`, services, methods called `others`.

    Rather too much than too little: it decides whether somebody is asked, not what is run.
    """
    if isinstance(tree, Mapping):
        found = set().union(*(code_in(value, others) for value in tree.values()))
        if tree.get("kind") == "file":
            found.add(str(tree.get("path")))
        if tree.get("trust_code"):
            found.add(f"trust_code of {tree.get('path', tree.get('repo', 'a model'))}")
        return found
    if isinstance(tree, list | tuple):
        return set().union(*(code_in(value, others) for value in tree))
    if not isinstance(tree, str):
        return set()
    named = {part.partition(":")[0].strip() for part in tree.split("+")} & set(others)
    return {tree} if named or _CODE.search(tree) else set()


def blamed(error: BaseException) -> str | None:
    """Where in a file of the user's an error came from: `net.py:12`; None where no such file had a part in it."""
    found, trace = None, error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if str(frame.f_globals.get("__name__", "")).startswith(_OWN):
            found = f"{frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def class_from(text: str) -> type[Any]:
    """The class that `my.py:MyAttack` names; the file is run."""
    path, _, name = text.rpartition(":")
    module = _module(Path(path))
    found = getattr(module, name, None)
    if not isinstance(found, type):
        raise UsageError(f"{path} has no class {name!r}; its classes: {', '.join(_classes(module)) or 'none'}")
    return found


def _classes(module: ModuleType) -> list[str]:
    """Those written in the file, not imported there."""
    own = (
        key for key, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__
    )
    return sorted(own)


def function_from(text: str) -> Callable[..., Any]:
    """The function that `my.py:measure` names; the file is run."""
    path, _, name = text.rpartition(":")
    if not path.endswith(".py"):
        raise UsageError(f"{text!r} names no function; write FILE.py:FUNCTION")
    module = _module(Path(path))
    found = getattr(module, name, None)
    if not callable(found) or isinstance(found, type):
        functions = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise UsageError(f"{path} has no function {name!r}; it has: {', '.join(functions) or 'none'}")
    return found  # type: ignore[no-any-return]


def _module(path: Path) -> ModuleType:
    try:
        content = require_file(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}); write FILE.py:CLASS") from None
    name = f"{_OWN}{hashlib.sha256(str(path.resolve()).encode() + content).hexdigest()[:24]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        with calling:
            spec.loader.exec_module(module)
    except SystemExit as error:
        del sys.modules[name]
        raise ended_by(error) from None
    except Exception as error:
        del sys.modules[name]
        text = said_by(error)
        remedy = "put its folder on PYTHONPATH" if isinstance(error, ImportError) else "mend the file"
        raise UsageError(f"{path} cannot be imported: {type(error).__name__}: {text}; {remedy}") from None
    return module
