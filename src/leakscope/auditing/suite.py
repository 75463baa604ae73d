"""Fixed suites of attacks, so that nobody tunes an attack down."""

from __future__ import annotations

from leakscope.core.errors import unknown
from leakscope.core.spec import Plain

#: `quick` looks; `full` is what evidence level E1 asks for.
SUITES: dict[str, list[str | Plain]] = {
    "quick": ["ridge", "decoder", "search"],
    "full": [
        "ridge",
        {"kind": "decoder", "capacity": "small"},
        {"kind": "decoder", "capacity": "medium"},
        {"kind": "decoder", "capacity": "large"},
        {"kind": "decoder", "front": "dense"},
        {"kind": "decoder", "front": "residual"},
        "search",
        {"kind": "search", "tv": 1e-2},
    ],
}


def suite(name: str) -> list[str | Plain]:
    """The attacks of a suite."""
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    return SUITES[name]
