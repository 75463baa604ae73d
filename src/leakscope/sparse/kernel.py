"""A compiled sweep for `abcd` on a CPU: optional, with the torch path as its truth.

`LEAKSCOPE_COMPILED=1` asks for it. It is built with g++ (or what `CXX` names) when first used, and kept in the user's
cache folder. Without a compiler, or in float64, sparse coding runs in torch and says so once. Codes agree with
torch's up to rounding, which is why it is not the default: a key does not tell which one computed a result.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakscope.core import progress

if TYPE_CHECKING:
    from leakscope.sparse.abcd import Block, Color, Lattice
    from leakscope.sparse.problem import Problem

SWITCH = "LEAKSCOPE_COMPILED"
SOURCE = Path(__file__).with_name("kernel.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fPIC", "-shared")

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int


def wanted(problem_dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the compiled sweep was asked for, fits the problem and is there."""
    if os.environ.get(SWITCH, "") not in ("1", "true", "yes") or device.type != "cpu":
        return False
    return problem_dtype == torch.float32 and library() is not None


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel; None, with a word, where it cannot be built."""
    try:
        found = ctypes.CDLL(str(_built()))
    except OSError as error:
        progress.say(f"sparse coding runs in torch: {error}")
        return None
    found.leakscope_abcd_sweep.restype = None
    for name in ("lanes", "together", "scratch"):
        getattr(found, f"leakscope_abcd_{name}").restype = _INT
    return found


def _built() -> Path:
    tool = next(filter(None, map(shutil.which, filter(None, (os.environ.get("CXX"), "g++", "clang++")))), None)
    if tool is None:
        raise OSError("no C++ compiler; install g++, or name one in CXX")
    parts = [SOURCE.read_bytes(), " ".join((tool, *FLAGS)).encode(), _machine()]
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "leakscope" / "sparse"
    kept = folder / f"{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so"
    if kept.exists():
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            unfinished = kept.with_suffix(".part")
            command = [tool, *FLAGS, str(SOURCE), "-o", str(unfinished)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
            if done.returncode:
                first = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
                raise OSError(f"{Path(tool).name} cannot compile the kernel ({first})")
            unfinished.replace(kept)
    return kept


def _machine() -> bytes:
    """What `-march=native` depends on: a cache folder may be shared by machines of several kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return b""
    return next((line for line in lines if line.startswith("flags")), "").encode()


def _padded(rows: Tensor, together: int) -> Tensor:
    """With rows of zeros up to a multiple of `together`."""
    return torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % together))


def _packed(forward: Tensor, together: int) -> Tensor:
    """F×(d + 1) as groups×(d + 1)×together: what one step of the kernel reads lies together."""
    rows = _padded(forward, together)
    return rows.view(-1, together, rows.shape[1]).transpose(1, 2).contiguous()


class CompiledDescent:
    """As `abcd.Descent`, but a sweep is one call. Samples lie in groups as wide as a vector register.

    Codes are kept colour by colour as groups×positions×F×lanes, and the residual as groups×C×H×W×lanes: what a
    position needs lies together.
    """

    def __init__(self, problem: Problem, start: Tensor | None, lattice: Lattice, blocks: Sequence[Block]) -> None:
        found = library()
        assert found is not None
        self.library, self.lattice, self.grid = found, lattice, problem.grid
        self.penalty, self.nonneg = problem.penalty, problem.nonneg
        self.lanes, together = int(found.leakscope_abcd_lanes()), int(found.leakscope_abcd_together())
        self.forward = [_packed(block.forward, together) for block in blocks]
        self.atoms = [_padded(block.backward.T, together).contiguous() for block in blocks]
        count, rows = len(blocks), [len(block.forward) for block in blocks]
        self.features = sum(rows)
        self.rows, self.thresholds = (_INT * count)(*rows), (ctypes.c_float * count)(*(b.threshold for b in blocks))
        self.weights = [(_POINTER * count)(*(part.data_ptr() for part in own)) for own in (self.forward, self.atoms)]
        (kh, kw), (sh, sw), (ph, pw) = lattice.kernel, lattice.stride, lattice.period
        corners = [(c.top * sh, c.left * sw, c.down, c.across) for c in lattice.colors]
        self.colors = (_INT * (4 * len(corners)))(*(number for corner in corners for number in corner))
        shape = (count, *problem.canvas.shape[1:], kh, kw, ph * sh, pw * sw, int(self.nonneg))
        self.shape = (_INT * len(shape))(*shape)
        self.scratch = torch.empty(int(found.leakscope_abcd_scratch(problem.atoms[0].numel(), max(rows))))
        codes = [self._colored(start, color, problem) for color in lattice.colors]
        canvas = problem.canvas if start is None else problem.residual(start)
        self._hold(canvas, canvas, codes, codes)
        self.norm = torch.stack([part.abs().sum((1, 2)) for part in codes]).sum(0)

    def _colored(self, start: Tensor | None, color: Color, problem: Problem) -> Tensor:
        """Codes of one colour, N×positions×F."""
        if start is None:
            return problem.canvas.new_zeros(len(problem), color.down * color.across, self.features)
        ph, pw = self.lattice.period
        return start[:, :, color.top :: ph, color.left :: pw].flatten(2).transpose(1, 2)

    def _hold(self, error: Tensor, error_before: Tensor, now: list[Tensor], before: list[Tensor]) -> None:
        """Take these as the state, one sample per row."""
        self.samples = len(error)
        self.error, self.error_before = self._grouped(error), self._grouped(error_before)
        self.now, self.before = ([self._grouped(part) for part in parts] for parts in (now, before))
        # Features of a position that have a code other than zero in any lane: others are not even read.
        self.now_marks, self.before_marks = (
            [(part != 0).any(-1).to(torch.uint8) for part in parts] for parts in (self.now, self.before)
        )

    def _grouped(self, rows: Tensor) -> Tensor:
        """N×… as groups×…×lanes, zeros filling the last group; never the same memory."""
        missing = -len(rows) % self.lanes
        if missing:
            rows = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
        grouped = rows.view(-1, self.lanes, *rows.shape[1:]).movedim(1, -1)
        return grouped.clone(memory_format=torch.contiguous_format)

    def _rows(self, grouped: Tensor) -> Tensor:
        """The inverse of `_grouped`."""
        return grouped.movedim(-1, 1).flatten(0, 1)[: self.samples]

    def sweep(self, beta: Tensor) -> None:
        """All colours once, from the point extrapolated by β (one per sample)."""
        ahead = self._grouped(1 + beta)
        self.error_before.lerp_(self.error, ahead.view(len(ahead), 1, 1, 1, self.lanes))
        self.error, self.error_before = self.error_before, self.error
        norm = torch.empty_like(ahead)
        count = len(self.now)
        state = [
            (_POINTER * count)(*(part.data_ptr() for part in parts))
            for parts in (self.now, self.before, self.now_marks, self.before_marks)
        ]
        self.library.leakscope_abcd_sweep(
            _POINTER(self.error.data_ptr()), *state, _POINTER(ahead.data_ptr()), _POINTER(norm.data_ptr()),
            *self.weights, self.rows, self.thresholds, self.colors, _INT(count), _INT(len(ahead)), self.shape,
            _POINTER(self.scratch.data_ptr()),
        )  # fmt: skip
        self.now, self.before = self.before, self.now
        self.now_marks, self.before_marks = self.before_marks, self.now_marks
        self.norm = self._rows(norm)

    def objective(self) -> Tensor:
        squares = torch.linalg.vecdot(self.error.flatten(1, 3), self.error.flatten(1, 3), dim=1)
        return 0.5 * self._rows(squares) + self.penalty * self.norm

    def codes(self, columns: Tensor) -> Tensor:
        """The codes of some samples, N×F×down×across."""
        out = self.error.new_empty(len(columns), self.features, *self.grid)
        ph, pw = self.lattice.period
        for part, color in zip(self.now, self.lattice.colors, strict=True):
            by_place = self._chosen(part, columns).transpose(1, 2).unflatten(2, (color.down, color.across))
            out[:, :, color.top :: ph, color.left :: pw] = by_place
        return out

    def keep(self, columns: Tensor) -> None:
        """Go on with some samples only."""
        error, error_before = (self._chosen(part, columns) for part in (self.error, self.error_before))
        now, before = ([self._chosen(part, columns) for part in parts] for parts in (self.now, self.before))
        self._hold(error, error_before, now, before)

    def _chosen(self, grouped: Tensor, columns: Tensor) -> Tensor:
        """Some samples of a state, one per row."""
        return grouped.movedim(-1, 1)[columns // self.lanes, columns % self.lanes]
