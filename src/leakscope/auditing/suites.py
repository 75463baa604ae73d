"""Fixed suites of attacks, so that nobody tunes an attack down."""

from __future__ import annotations

from leakscope.core.errors import unknown
from leakscope.core.spec import Plain

#: `quick` looks; `full` is what evidence level E1 asks for. An attack that needs a structure which a
#: target does not have (residual blocks, sparse layers) drops out there.
SUITES: dict[str, list[str | Plain]] = {
    "quick": ["ridge", "decoder", "search", "peel-exact", "analytic-sparse"],
    "full": [
        "ridge",
        {"kind": "decoder", "capacity": "small"},
        {"kind": "decoder", "capacity": "medium"},
        {"kind": "decoder", "capacity": "large"},
        {"kind": "decoder", "front": "dense"},
        {"kind": "decoder", "front": "residual"},
        {"kind": "decoder", "loss": "random-conv"},
        "decoder-gan",
        "search",
        {"kind": "search", "tv": 1e-2},
        "peel-exact",
        "e2e-lbfgs",
        "analytic-sparse",
    ],
}


def suite(name: str) -> list[str | Plain]:
    """The attacks of a suite."""
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    return SUITES[name]
