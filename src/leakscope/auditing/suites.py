"""Fixed suites of attacks, so that no attack can be weakened by its settings."""

from __future__ import annotations

from leakscope.core.attack import ATTACKS
from leakscope.core.errors import unknown
from leakscope.core.spec import Plain

#: By goal and name. `quick` looks; `full` is what evidence level E1 asks for: few attacks of different ideas, each run
#: until it converges, rather than many settings of one. An attack that needs a structure which
#: a target does not have (residual blocks, sparse layers) drops out there, and one that
#: guesses drops out where the threat model grants what it would guess.
SUITES: dict[str, dict[str, list[str | Plain]]] = {
    "pictures": {
        "quick": ["ridge", "auto", "peel-exact", "analytic-sparse", "pseudo-client"],
        "full": [
            "ridge",
            {"kind": "auto", "effort": "full"},
            "decoder",
            "search",
            "latent",
            "peel-exact",
            "e2e-lbfgs",
            "analytic-sparse",
            "pseudo-client",
        ],
    },
    "identities": {
        "quick": ["class-map"],
        "full": ["class-map", "gmi", "kedmi", "lomma-gmi", "lomma-kedmi", "brepmi"],
    },
}


def suite(name: str, goal: str = "pictures") -> list[str | Plain]:
    """The attacks of a suite, with those of other packages that join it."""
    own = SUITES.get(goal, {})
    if name not in own:
        raise unknown("suite", name, own)
    joined = [kind for kind in ATTACKS if name in ATTACKS[kind].suites and ATTACKS[kind].goal == goal]
    return [*own[name], *joined]
