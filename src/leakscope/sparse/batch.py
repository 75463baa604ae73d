"""From a batch to its codes: choose a solver by shape, cut the batch to fit the caches, use every thread."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

from leakscope.core.errors import UsageError
from leakscope.sparse.abcd import Abcd, Lattice
from leakscope.sparse.fista import Fista
from leakscope.sparse.lca import Lca
from leakscope.sparse.problem import Diverged, Problem, as_images, like, pose
from leakscope.sparse.progress import Solution

Solver = Lca | Fista | Abcd
SOLVERS: dict[str, type[Lca] | type[Fista] | type[Abcd]] = {"lca": Lca, "fista": Fista, "abcd": Abcd}

#: Colours above which an accelerator spends longer launching the sweeps of `abcd` than running `fista`.
MOST_COLORS = 8
#: float32 numbers in the widest vector register.
LANES = 16


def choose(problem: Problem) -> Solver:
    """`abcd` on a CPU and wherever colours are few (dense, or strides near the kernel), else `fista`.

    On a CPU `abcd` was as fast or faster for every shape tried (C 1–64, k 1–15, stride 1–5, 1-d, dense).
    A sweep launches about eight operations a colour and saves four to five steps of `fista`, which
    launches about fifteen each. The batch size has no say: a code must not depend on its neighbours.
    """
    if problem.canvas.device.type == "cpu" or len(Lattice(problem).colors) <= MOST_COLORS:
        return Abcd()
    return Fista()


def solve(
    x: Tensor,
    dictionary: Tensor,
    *,
    penalty: float,
    stride: int | tuple[int, ...] = 1,
    nonneg: bool = True,
    solver: Solver | None = None,
    start: Tensor | None = None,
) -> Solution:
    """Sparse codes of a batch, without gradients; `start` is a warm start, `solver` None chooses.

    Shapes as in `pose`; codes are N×F for vectors, N×F×length or N×F×down×across otherwise.
    """
    problem = pose(x.detach(), dictionary.detach(), penalty=penalty, stride=stride, nonneg=nonneg)
    begin = None if start is None else _checked_start(start.detach(), problem, x.ndim)
    found = solve_posed(problem, solver or choose(problem), begin)
    return Solution(like(found.codes, x.ndim), found.objective, found.iterations, found.converged)


def _checked_start(start: Tensor, problem: Problem, ndim: int) -> Tensor:
    codes = as_images(start)
    if start.ndim != ndim or codes.shape != problem.codes_shape:
        raise UsageError(f"a warm start needs the codes' shape {problem.codes_shape}, not {tuple(start.shape)}")
    if codes.dtype != problem.canvas.dtype or codes.device != problem.canvas.device:
        raise UsageError("a warm start needs the input's dtype and device; move it with .to(x)")
    if not torch.isfinite(codes).all():
        raise UsageError("the warm start holds NaN or infinite values; start from None")
    return codes.clamp_min(0) if problem.nonneg else codes


def solve_posed(problem: Problem, solver: Solver, start: Tensor | None) -> Solution:
    """Solve in pieces: each small enough for a core's cache, at least one a thread, one thread each.

    The operations are too small to share between threads (they would wait at barriers, spec/sca.md
    §7.1), but images are independent, so threads take images instead.
    """
    device = problem.canvas.device
    if len(problem) == 0:
        nothing = problem.canvas.new_zeros(0)
        return Solution(problem.canvas.new_zeros(problem.codes_shape), nothing, nothing.long(), nothing.bool())
    threads = 1 if device.type != "cpu" or isinstance(solver, Lca) else torch.get_num_threads()
    size = min(solver.chunk(problem), -(-len(problem) // threads))
    if size > LANES:
        size -= size % LANES  # whole vector registers; copies of ragged rows are half as fast
    parts = [slice(begin, begin + size) for begin in range(0, len(problem), size)]

    def work(part: slice) -> Solution:
        try:
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                return solver.run(problem.take(part), None if start is None else start[part])
        except Diverged as error:
            raise Diverged(part.start + error.sample) from None

    if threads == 1:
        found = [work(part) for part in parts]
    else:
        with one_thread_each(), ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            found = list(pool.map(work, parts))
    if len(found) == 1:
        return found[0]
    return Solution(
        torch.cat([part.codes for part in found]),
        torch.cat([part.objective for part in found]),
        torch.cat([part.iterations for part in found]),
        torch.cat([part.converged for part in found]),
    )


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Operations inside run on the thread that calls them; the setting before is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
