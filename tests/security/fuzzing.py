"""How many examples the fuzzers try: 2,000 in all by default, the same every time; `LEAKSCOPE_FUZZ=20000` (`make fuzz`)
tries so many, others every time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

USUAL = 2000
TOTAL = int(os.environ.get("LEAKSCOPE_FUZZ", USUAL))
#: Of 2,000, the share of each of the ten readers of files and text, and of each of the three commands, which take
#: longer for one example.
READERS, COMMANDS = 194, 20
assert 10 * READERS + 3 * COMMANDS == USUAL


def examples(share: int) -> settings:
    """As many of all examples as `share` is of 2,000."""
    return settings(
        max_examples=max(1, round(share * TOTAL / USUAL)),
        deadline=None,
        derandomize=TOTAL == USUAL,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )
