"""What a study leaves behind as JSON; every page and table of claims is drawn from these alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from leakscope.core.results import Method, Spread
from leakscope.core.spec import Plain
from leakscope.core.words import Ruled
from leakscope.stats.claims import Examined, Ruling, rule
from leakscope.stats.intervals import Estimate

SCHEMA: Literal["leakscope/study/2"] = "leakscope/study/2"


@dataclass(frozen=True)
class Number:
    """A mean over seeds and victims with its 95 % interval; None: the data say nothing about the spread."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, estimate: Estimate, shift: float = 0.0, times: float = 1.0) -> Number:
        ends = [times * (end + shift) for end in (estimate.low, estimate.high)]
        low, high = (end if math.isfinite(end) else None for end in ends)
        return cls(times * (estimate.value + shift), low, high)


@dataclass(frozen=True)
class AttackRow:
    """One attack on one configuration of a target, over seeds."""

    attack: Method
    metrics: Mapping[str, Number]
    deviations: Mapping[str, float]  # over victims, mean of the seeds
    worst: Mapping[str, float]  # the most exposed victim of all seeds
    flags: tuple[str, ...]
    cpu_seconds: float  # per victim


@dataclass(frozen=True)
class Row:
    """One configuration of a target, over seeds."""

    variant: str
    model: Method
    defense: Method
    cut: str
    seeds: tuple[int, ...]
    victims: int
    trained: bool
    accuracies: tuple[float, ...]  # by seed
    accuracy: Number | None
    separability: Spread
    features: float  # released numbers per input number
    strongest: tuple[str, ...]  # kinds of the attacks that rebuilt most, by seed
    worst_case: Mapping[str, Number]  # for each victim the attack that did best on it
    most_exposed: float  # largest leak of any victim
    attacks: tuple[AttackRow, ...]
    doubts: tuple[str, ...]  # flags that block on the strongest attack
    notes: Plain
    stop: int | None = None  # the epoch after which training was stopped; None: the last


@dataclass(frozen=True)
class Decided:
    """A claim and its verdict. `examined` is what it rests on, so that a page can rule on all its parts together."""

    id: str
    statement: str
    source: str
    verdict: Ruled
    reason: str
    p: float
    effect: Number | None
    simultaneous: Number | None
    doubts: tuple[str, ...]
    seeds_needed: int | None
    victims_needed: int | None
    examined: Examined | None = None  # None: written before pages were one family

    @classmethod
    def of(cls, ruling: Ruling, examined: Examined) -> Decided:
        effect, together = (
            None if estimate is None else Number.of(estimate) for estimate in (ruling.effect, ruling.simultaneous)
        )
        return cls(
            ruling.claim.id, ruling.claim.statement, ruling.claim.source, ruling.verdict, ruling.reason, ruling.p,
            effect, together, tuple(doubt.kind.value for doubt in ruling.doubts), ruling.seeds_needed,
            ruling.victims_needed, examined,
        )  # fmt: skip


@dataclass(frozen=True)
class Beside:
    """A published figure and what came out here."""

    table: str
    row: str
    metric: str
    published: float
    obtained: Number | None  # None: not run
    verdict: str  # of "equal to what was published", or why there is none
    deviation: float | None = None  # published, where it was


Cell = str | float | None


@dataclass(frozen=True)
class Table:
    """Further figures, folded on the page."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Drawn:
    """A picture beside the JSON, `PART-NAME`."""

    name: str
    caption: str


@dataclass(frozen=True)
class Origin:
    """How the figures came about; printed under every page."""

    command: str
    created: str
    versions: Mapping[str, str]
    data: str
    seeds: tuple[int, ...]
    victims: int
    cpu_hours: float  # of the attacks
    training_hours: float
    controls: Mapping[str, Mapping[str, bool | None]]  # by variant and kind
    verdicts: Mapping[str, str]  # by variant
    floors: Mapping[str, float]  # leak of somebody who observed nothing
    left_out: tuple[str, ...]
    unusual: tuple[str, ...]  # every setting that differs from its default, of everything that ran


@dataclass(frozen=True)
class Part:
    """One configuration's figures among those that share a page."""

    study: str
    part: str
    origin: Origin
    setup: tuple[str, ...]  # at most four lines
    rows: tuple[Row, ...]
    claims: tuple[Decided, ...]
    not_asked: tuple[str, ...]  # claims of which this configuration runs no side or one side
    published: tuple[Beside, ...]
    tables: tuple[Table, ...] = ()
    pictures: tuple[Drawn, ...] = ()
    note: str = ""
    limits: tuple[str, ...] = ()
    schema: Literal["leakscope/study/2"] = field(default=SCHEMA)


def decided(family: Sequence[Examined]) -> tuple[Decided, ...]:
    """The verdicts on one family of claims."""
    return tuple(Decided.of(ruling, one) for ruling, one in zip(rule(family), family, strict=True))


def decided_together(parts: Sequence[Part]) -> list[Part]:
    """The parts of one page with verdicts from one family: Holm's correction counts every claim of the page."""
    family = [claim.examined for part in parts for claim in part.claims if claim.examined is not None]
    ruled = iter(decided(family))
    return [
        replace(part, claims=tuple(claim if claim.examined is None else next(ruled) for claim in part.claims))
        for part in parts
    ]
