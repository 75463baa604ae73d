"""Compiles the simulated device once for each torch and source, into the user's cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch

HERE = Path(__file__).parent
SOURCE = HERE / "simulated.cpp"
#: Optimising would double the time to compile; the CPU kernels it calls are optimised already.
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared")


class Unavailable(RuntimeError):
    """The simulated device cannot be compiled here, and why."""


def compiler() -> str:
    """The C++ compiler: the one `CXX` names, or g++, or clang++."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found is not None:
            return found
    raise Unavailable("no C++ compiler; install g++, or name one in CXX")


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/leakscope/device`, usually under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "leakscope" / "device"


def _key() -> str:
    """What decides the library: the version of torch, the flags and every source file."""
    parts = [torch.__version__.encode(), " ".join(FLAGS).encode()]
    parts += [path.read_bytes() for path in sorted((SOURCE, HERE / "runtime.h"))]
    return f"{torch.__version__}-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}"


def library() -> Path:
    """The compiled library; compiles it when this torch and these sources have not been seen before.

    Processes that ask at the same time (pytest-xdist) wait for the first one's.
    """
    kept = cache_folder() / _key() / "libleakscope_sim.so"
    if kept.exists():
        return kept
    tool = compiler()
    kept.parent.mkdir(parents=True, exist_ok=True)
    with (kept.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            unfinished = kept.with_suffix(".part")
            _compile(tool, unfinished)
            unfinished.replace(kept)
    return kept


def _compile(tool: str, out: Path) -> None:
    root = Path(torch.__file__).parent
    libraries = root / "lib"
    command = [
        tool, *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}", str(SOURCE), "-o", str(out),
        f"-L{libraries}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own command line)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
        raise Unavailable(
            f"{Path(tool).name} cannot compile the simulated device for torch {torch.__version__}: {first}"
        )
