"""Memory is checked before it is allocated: too large a size gives a one-line error, not a killed process."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leakscope.core.errors import UsageError, said_by

#: Where the memory limit of a container stands, and what it uses (cgroup 2, cgroup 1).
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
#: Assumed where nothing tells.
_UNKNOWN = 1 << 40


def available() -> int:
    """Bytes that this process can still allocate: free memory, within its limits (cgroup, ulimit)."""
    rooms = [_UNKNOWN]
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        rooms.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    for most, used in _GROUPS:
        with suppress(OSError, ValueError):  # "max" is no number: no limit
            rooms.append(int(Path(most).read_text()) - int(Path(used).read_text()))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        with suppress(OSError, ValueError):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            rooms.append(limit - pages * resource.getpagesize())
    return max(0, min(rooms))


def require_room(size: int, what: str, remedy: str) -> None:
    """Refuse to begin what needs more than `size` bytes when there are fewer."""
    there = available()
    if size > there:
        raise UsageError(f"{what} needs {said(size)} of memory and {said(there)} are free; {remedy}")


@contextmanager
def allocating(what: str, remedy: str) -> Iterator[None]:
    """Turns a failed allocation inside this block into a one-line error."""
    try:
        yield
    except (MemoryError, RuntimeError, OverflowError, TypeError) as error:
        if not is_shortage(error):
            raise
        raise UsageError(f"{what} does not fit into memory; {remedy}") from None


def is_shortage(error: BaseException) -> bool:
    """Whether memory is what was wanting; torch has no error of its own for that of the processor."""
    text = said_by(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | OverflowError | TypeError)
        and any(sign in text for sign in ("allocate memory", "out of memory", "overflow"))
    )


def said(size: int) -> str:
    """Bytes as people read them."""
    number = float(size)
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} EB"
