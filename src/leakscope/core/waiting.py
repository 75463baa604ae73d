"""How threads of OpenMP wait for each other: it is read from the environment when torch is imported."""

from __future__ import annotations

import os

#: Turns of an empty loop (about 0.1 µs each) before a thread that waits goes to sleep. GNU's own 300,000 (tens of
#: milliseconds) hold a core that another process could use; none at all makes each of a network's many small
#: operations wait for the scheduler.
SPINS = "10000"
#: Whoever set one of these knows better.
_SAID = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def spin_briefly() -> None:
    """Before torch is imported: wait in a short loop, then sleep. Processes that are started inherit it."""
    if not any(name in os.environ for name in _SAID):
        os.environ["GOMP_SPINCOUNT"] = SPINS  # torch's wheels for Linux bring GNU's OpenMP
        os.environ["KMP_BLOCKTIME"] = "1"  # milliseconds; Intel's and LLVM's, in other builds
