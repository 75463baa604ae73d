"""A finished audit as it is judged and drawn: what audit.json holds. Readable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from leakscope.core.results import (
    AttackResult,
    ControlResult,
    Finding,
    Flag,
    MetricInfo,
    Summary,
    TargetRecord,
    ThreatRecord,
    adapter,
    to_frame,
)
from leakscope.core.spec import Plain
from leakscope.core.words import Control, Verdict

SCHEMA = "leakscope/audit/2"


@dataclass(frozen=True)
class LeftOut:
    """An attack that did not run, and why."""

    attack: str
    defense: str
    cut: str
    reason: str


@dataclass(frozen=True)
class BlockRow:
    """One residual block: the error of its input as the attack rebuilt it."""

    block: str
    shape: tuple[int, ...]
    error: float | None  # ‖x̂ − x‖ / ‖x‖
    mse: float | None
    lost: int | None  # dimensions the block does not keep


@dataclass(frozen=True)
class BlockTable:
    attack: str
    result: str
    peeled: bool
    rows: tuple[BlockRow, ...]


@dataclass(frozen=True)
class Blocks:
    """Which residual blocks of a target leak."""

    victims: int
    attacks: tuple[BlockTable, ...]


@dataclass(frozen=True)
class Bound:
    """A computed lower bound on the error of every attack on one noisy release."""

    sigma: float
    entropy: float
    rate: float
    blind: float
    nats: float
    dimensions: int
    pictures: int
    assumptions: tuple[str, ...]
    fisher: float = 0.0  # by Fisher information, with a Gaussian prior; 0: not known
    unbiased: float = 0.0  # 1/dFIL: for attacks without bias alone; 0: not known


@dataclass(frozen=True)
class ExposedShare:
    """How many victims were rebuilt almost completely by any attack, and the upper bound on that share."""

    count: int
    victims: int
    upper: float  # exact 95 % upper bound on the share of victims with an own leak above 0.9


@dataclass(frozen=True)
class TargetReport:
    """A target with what the audit found of it."""

    record: TargetRecord
    strongest: str | None  # key of the result that rebuilt most
    worst_case: Mapping[str, Summary]  # the strongest attack, corrected for having been chosen
    exposed: ExposedShare | None = None
    bound: Bound | None = None
    blocks: Blocks | None = None


@dataclass(frozen=True)
class GroupReport:
    """All seeds of one network with one defence at one cut: what a statement about the defence rests on."""

    name: str
    targets: tuple[str, ...]  # keys, one per seed
    undefended: bool
    leak: Summary  # the strongest attack; over several seeds, with seeds as a random effect
    exposed: ExposedShare


@dataclass(frozen=True)
class ControlReport:
    """All controls of one kind."""

    kind: Control
    what: str
    passed: bool | None  # None: not run
    required: float | None = None
    results: tuple[ControlResult, ...] = ()
    ceiling: float | None = None  # how often the evaluation network recognises real pictures
    ceilings: Mapping[str, float] = field(default_factory=dict)  # the same of each judge: network, embedder


@dataclass(frozen=True)
class GateReport:
    text: str
    metric: str
    limit: float
    level: str | None
    value: float  # the cautious end of the interval
    held: bool
    where: str
    victims_needed: int | None = None  # that would decide it, where too few were attacked


@dataclass(frozen=True)
class EvidenceReport:
    level: str
    met: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class PartRecord:
    images: int
    digest: str


@dataclass(frozen=True)
class DataRecord:
    name: str
    shape: tuple[int, ...]
    classes: int
    private: PartRecord
    heldout: PartRecord
    public: PartRecord
    victims: int
    trained_on: str = "private"  # `private`; `unknown`: weights were given and nobody said; `nothing`: not trained
    victims_from: str = "heldout"  # or private, or both: half (rounded down) private, then held out


@dataclass(frozen=True)
class ShownPictures:
    """Which victims of a result are shown: by rule, at the most leaked decile, the median and the least leaked."""

    groups: tuple[str, ...]
    leak: tuple[float, ...]
    victims: tuple[int, ...]


@dataclass(frozen=True)
class Provenance:
    """Where the results come from: this run, or a store that others may have written to."""

    results: int
    found: int  # those that were in the store before this run
    rescored: bool  # the scores of those were computed again from the stored reconstructions
    signed: bool  # what was found is signed with the key of whoever runs this


@dataclass(frozen=True)
class AuditReport:
    """A finished audit: what audit.json holds."""

    verdict: Verdict
    sentence: str
    reasons: tuple[str, ...]
    gate: GateReport | None
    exit_code: int
    evidence: EvidenceReport
    seconds: float
    command: str
    created: str
    goal: str
    goal_what: str
    threat: ThreatRecord
    data: DataRecord
    config: Plain
    versions: Mapping[str, str]
    targets: tuple[TargetReport, ...]
    groups: tuple[GroupReport, ...]
    results: tuple[AttackResult, ...]
    left_out: tuple[LeftOut, ...]
    metrics: tuple[MetricInfo, ...]
    floors: Mapping[str, Mapping[str, Summary]]
    controls: tuple[ControlReport, ...]
    flags: tuple[Flag, ...]
    pictures: Mapping[str, ShownPictures]
    provenance: Provenance | None = None  # None: not kept by the version that wrote it
    schema: Literal["leakscope/audit/2"] = "leakscope/audit/2"

    def control(self, kind: Control) -> ControlReport:
        """All controls of a kind."""
        return next(control for control in self.controls if control.kind == kind)

    def target(self, key: str) -> TargetReport:
        return next(target for target in self.targets if target.record.key == key)

    def of_target(self, key: str) -> tuple[AttackResult, ...]:
        """The results of one target."""
        return tuple(result for result in self.results if result.target == key)

    def result(self, key: str) -> AttackResult:
        return next(result for result in self.results if result.key == key)

    def to_frame(self) -> Any:
        """One row per attack on a target, as a pandas DataFrame."""
        return to_frame([Finding(self.target(result.target).record, result) for result in self.results])


def audit_schema() -> Plain:
    """JSON Schema of audit.json."""
    schema: Plain = adapter(AuditReport).json_schema()
    return schema
