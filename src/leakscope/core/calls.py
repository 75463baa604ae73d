"""How long a call into somebody else's code has lasted, for a process that looks from outside.

A forward pass may never return, and may never let another thread of its process run either. So each process keeps
the moment at which its present call began in a small file that is mapped into memory; whoever started the run
(`--isolate`) reads those files and ends what takes too long.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

#: The environment variable with the folder of those files; nothing is kept where it is not set.
VARIABLE = "LEAKSCOPE_WATCH"
_MOMENT = struct.Struct("d")


class _Call:
    """`with calling:` around whatever runs the user's code; only the outermost counts."""

    def __init__(self) -> None:
        self._depth = 0
        self._process = 0
        self._memory: mmap.mmap | None = None

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1 and VARIABLE in os.environ:
            self._keep(time.monotonic())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0 and self._memory is not None:
            self._keep(0.0)

    def _keep(self, moment: float) -> None:
        if self._process != os.getpid():  # the first call, or a process that was forked off
            self._process, self._memory = os.getpid(), None
            with suppress(OSError):  # the folder is gone: nobody looks any more
                path = Path(os.environ[VARIABLE]) / str(self._process)
                path.write_bytes(bytes(_MOMENT.size))
                with path.open("r+b") as file:
                    self._memory = mmap.mmap(file.fileno(), _MOMENT.size)
        if self._memory is not None:
            _MOMENT.pack_into(self._memory, 0, moment)


calling = _Call()


def longest(folder: Path) -> float:
    """Seconds that the longest of the present calls has lasted; 0 when there is none."""
    began = []
    for path in folder.glob("[0-9]*"):
        with suppress(OSError, struct.error):
            began.append(_MOMENT.unpack(path.read_bytes()[: _MOMENT.size])[0])
    moments = [moment for moment in began if moment > 0]
    return max(0.0, time.monotonic() - min(moments)) if moments else 0.0
