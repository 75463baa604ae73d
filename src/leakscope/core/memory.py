"""Memory planned before it is taken: a size that cannot fit is one line, not a killed process."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leakscope.core.errors import UsageError

#: Where the memory limit of a container stands, and what it uses (cgroup 2, cgroup 1).
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
#: Assumed where nothing tells.
_UNKNOWN = 1 << 40


def available() -> int:
    """Bytes that this process can still take: what is free here, within the limits it runs under."""
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
        raise UsageError(f"{what} needs {_said(size)} of memory and {_said(there)} are free; {remedy}")


@contextmanager
def allocating(what: str, remedy: str) -> Iterator[None]:
    """An allocation that fails inside becomes one line."""
    try:
        yield
    except MemoryError:
        raise UsageError(f"{what} does not fit into memory; {remedy}") from None
    except (RuntimeError, OverflowError, TypeError) as error:
        # torch has no error of its own for memory of the processor, nor for sizes that overflow
        text = str(error).lower()
        if not any(sign in text for sign in ("allocate memory", "out of memory", "overflow")):
            raise
        raise UsageError(f"{what} does not fit into memory; {remedy}") from None


def _said(size: int) -> str:
    number = float(size)
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} EB"
