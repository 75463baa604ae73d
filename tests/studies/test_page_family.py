"""All claims of a page are one family, however many data sets it has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from leakscope.stats import Claim, Evidence, Examined, Tables, examine
from leakscope.studies.records import Decided, Part, decided, decided_together

CLAIM = Claim("a", "The defence leaks less.", "Somebody 2024", "defence", "none")


class _Part:
    """`decided_together` reads nothing but claims; the rest of a part is long."""

    __slots__ = ()

    @staticmethod
    def of(claims: tuple[Decided, ...]) -> Part:
        part = object.__new__(Part)
        for name in Part.__dataclass_fields__:
            object.__setattr__(part, name, ())
        object.__setattr__(part, "claims", claims)
        object.__setattr__(part, "schema", "leakscope/study/2")
        return part


def _examined(count: int, seed: int) -> list[Examined]:
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        right = 0.5 + 0.1 * rng.normal(size=(4, 40))
        left = right - 0.07 + 0.01 * rng.normal(size=(4, 1)) + 0.05 * rng.normal(size=(4, 40))
        found.append(examine(replace(CLAIM, id=f"{seed}-{number}"), Evidence(Tables(left, right))))
    return found


def test_holm_counts_every_claim_of_the_page() -> None:
    first, second = _examined(3, 0), _examined(5, 1)
    alone = [_Part.of(decided(own)) for own in (first, second)]
    page = decided_together(alone)
    whole = decided([*first, *second])
    assert tuple(claim for part in page for claim in part.claims) == whole
    assert [claim.id for claim in page[1].claims] == [one.claim.id for one in second]
    before = [claim.p for part in alone for claim in part.claims]
    after = [claim.p for claim in whole]
    assert all(a <= b for a, b in zip(before, after, strict=True))
    assert sum(a < b for a, b in zip(before, after, strict=True)) >= 3


def test_parts_of_an_older_version_keep_their_verdicts() -> None:
    old = tuple(replace(claim, examined=None) for claim in decided(_examined(2, 0)))
    page = decided_together([_Part.of(old), _Part.of(decided(_examined(2, 1)))])
    assert page[0].claims == old
