"""What stages leave behind: typed, frozen, JSON in and out, and readable without torch.

Every record in the store, every row of audit.json and every number on a page is one of these. Labels in
them are for people; nothing reads a label to find out what something is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from leakscope.core.errors import UsageError
from leakscope.core.spec import Plain, describe, label, unusual
from leakscope.core.words import FLAGS, Control, FlagId, Severity, Verdict

T = TypeVar("T")
Direction = Literal["high", "low"]
SCHEMA = "leakscope/audit/2"


@dataclass(frozen=True)
class Diagnostics:
    """What an attack says about itself; the flags are raised from it.

    `details` are figures of one method, for people; nothing is decided from them.
    """

    curve: tuple[float, ...] = ()  # objective, or validation error, after growing budgets
    curve_falls: bool = True  # a good run lowers the curve; False: it raises it (BREP-MI's radius)
    converged: bool | None = None  # by the attack's own stopping rule; None: it has none
    objective: float | None = None  # where the search ended
    zero_gradient: float = 0.0  # share of victims without a gradient through the release
    diverged: float = 0.0  # share of victims whose solve left its problem
    unexplained: float | None = None  # share whose reconstruction does not explain the features; None: not checked
    diverged_blocks: tuple[str, ...] = ()
    unexplained_blocks: tuple[str, ...] = ()
    lost_dimensions: Mapping[str, int] = field(default_factory=dict)  # by block: directions that it does not keep
    per_class: int = 1  # pictures for each class
    #: Validation leak against CPU seconds: (seconds, leak), growing budgets.
    anytime: tuple[tuple[float, float], ...] = ()
    queries: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)

    def spent(self, *, queries: int, seconds: float, cpu_seconds: float) -> Diagnostics:
        """The same with its price."""
        return replace(self, queries=queries, seconds=round(seconds, 3), cpu_seconds=round(cpu_seconds, 3))

    def as_json(self) -> Plain:
        return to_json(self)

    @classmethod
    def from_json(cls, plain: Plain) -> Diagnostics:
        return from_json(cls, plain)


@dataclass(frozen=True)
class Summary:
    """A metric over victims; `low` and `high` bound the mean, `worst` leaks most.

    One value (a set metric such as FID, or a single victim) has no spread: n = 1, std = 0 and
    low = high = worst = mean.
    """

    mean: float
    std: float  # of the victims, with n − 1
    low: float
    high: float
    worst: float
    n: int


@dataclass(frozen=True)
class MetricInfo:
    """A metric as reports need it: which end of its scale means more leakage, and what it measures."""

    name: str
    more_leak: Direction
    what: str
    of_set: bool = False
    unavailable: str | None = None  # why it was not computed


@dataclass(frozen=True)
class Method:
    """A method as it was configured; `label` is for people, `kinds` and `settings` are what it is."""

    kinds: tuple[str, ...]  # registered names: one, or those of a stack
    label: str
    settings: Plain  # the full description, from which it can be built again
    unusual: Plain  # settings that differ from their defaults, by kind for a stack

    @classmethod
    def of(cls, method: Any) -> Method:
        parts = getattr(method, "parts", None) or (method,)
        kinds = tuple(part.kind_name for part in parts)
        changed = {part.kind_name: unusual(part) for part in parts} if len(parts) > 1 else unusual(method)
        return cls(kinds, label(method), describe(method), describe(changed))

    @property
    def kind(self) -> str:
        return "+".join(self.kinds)


@dataclass(frozen=True)
class ThreatRecord:
    """What the attacker was handed."""

    access: tuple[str, ...]
    public_data: bool
    knows_defense: bool
    queries: int | None
    label: str


@dataclass(frozen=True)
class Spread:
    min: float
    mean: float
    max: float


@dataclass(frozen=True)
class TargetRecord:
    """A trained network cut at one place, and what is known about it."""

    key: str
    trained: str | None  # key of its weights in the store; None: they were given
    setting: str  # digest of pictures, given weights and training: targets of one setting can be compared
    data: str
    model: Method
    defense: Method
    cut: str
    seed: int
    undefended: bool  # a twin to compare with, not something whose privacy is claimed
    accuracy: float | None
    calibration: float | None
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    feature_shape: tuple[int, ...]
    client_compute: float
    random_release: bool
    batch_dependent: bool  # what is released for a picture depends on the pictures beside it
    separability: Spread
    has_use: bool  # weights were given or trained, so that accuracy means something
    identity: Plain  # the specification it was made from
    notes: Plain = field(default_factory=dict)  # what the defence says about the training

    @property
    def name(self) -> str:
        return f"{self.model.label} ({self.defense.label}) at {self.cut}"


@dataclass(frozen=True)
class Traits:
    """What flags need to know about an attack beside its scores."""

    white_box: bool = False
    linear: bool = False
    averages_noise: bool = False
    outside: bool = False  # somebody else's: only its reconstructions are here


@dataclass(frozen=True)
class ControlResult:
    """How one attack did where the answer is known."""

    kind: Control
    attack: str
    value: float
    required: float
    passed: bool
    flag: FlagId | None = None  # what it raises when it is not passed
    result: str | None = None  # key of the one result it checks; None: every result of the attack
    where: str = ""


@dataclass(frozen=True)
class Flag:
    """One reason to doubt, raised at one place."""

    id: FlagId
    where: str
    result: str | None = None  # key of the result it casts doubt on

    @property
    def severity(self) -> Severity:
        return FLAGS[self.id].severity

    @property
    def explanation(self) -> str:
        return FLAGS[self.id].explanation

    @property
    def blocks(self) -> bool:
        return self.severity == "blocks"


@dataclass(frozen=True)
class AttackResult:
    """One attack on one target, scored; with its flags and its control once they are known."""

    key: str  # of the scores
    reconstruction: str  # key of the pictures
    target: str  # key of the target
    attack: Method
    traits: Traits
    threat: ThreatRecord
    goal: str
    seed: int
    victims: str  # digest of the attacked pictures: results on the same can be paired
    metrics: Mapping[str, Summary]
    directions: Mapping[str, Direction]
    diagnostics: Diagnostics
    control: str  # key of the attack's positive control
    mismatched: float  # leak of the same reconstructions against other victims: the negative control
    label_floor: float | None = None  # leak of the class mean of the label that the head reads; None: no such floor
    observed_accuracy: float | None = None  # of the head on the very features that were observed
    exposed: int = 0  # victims whose own leak passes 0.9
    command: str | None = None  # what repeats it, but for cut, defence, attack and seed
    by: str | None = None  # who attacked, for an outside attack
    controls: tuple[ControlResult, ...] = ()
    flags: tuple[Flag, ...] = ()

    @property
    def leak(self) -> float:
        return self.metrics["leak"].mean

    @property
    def doubtful(self) -> bool:
        return any(flag.blocks for flag in self.flags)


@dataclass(frozen=True)
class Finding:
    """A result with the target it belongs to: one row of every table."""

    target: TargetRecord
    result: AttackResult


@dataclass(frozen=True)
class LeftOut:
    """An attack that did not run, and why."""

    attack: str
    defense: str
    cut: str
    reason: str


@dataclass(frozen=True)
class BlockRow:
    """One residual block: how far what an attack takes it to have read is from what it read."""

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
    """What no attack on one noisy release can do better than, computed and not measured."""

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
    """How many victims' own pictures were rebuilt almost whole by any attack, and what that says of all others."""

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


@dataclass(frozen=True)
class ShownPictures:
    """Which victims of a result are shown: by rule, at the most leaked decile, the median and the least leaked."""

    groups: tuple[str, ...]
    leak: tuple[float, ...]
    victims: tuple[int, ...]


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


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(cls: type[T]) -> TypeAdapter[T]:
    if cls not in _ADAPTERS:
        cls.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]


def to_json(value: object) -> Plain:
    """A result as plain JSON data."""
    plain: Plain = _adapter(type(value)).dump_python(value, mode="json")
    return plain


def from_json(cls: type[T], plain: object, where: str = "the record") -> T:
    """A result from plain JSON data; what does not fit is refused in one line."""
    try:
        return _adapter(cls).validate_python(plain)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{where} is not what this version of Leakscope writes ({place}: {first['msg']}); make it again"
        ) from None


def to_frame(entries: Iterable[Finding]) -> Any:
    """Results as a pandas DataFrame: how everything is called, then the mean of every metric, then the doubts."""
    try:
        import pandas as pd
    except ImportError:
        raise UsageError("a table of results needs pandas; pip install pandas") from None
    return pd.DataFrame(
        {
            "data": entry.target.data,
            "model": entry.target.model.label,
            "cut": entry.target.cut,
            "defense": entry.target.defense.label,
            "seed": entry.target.seed,
            "accuracy": entry.target.accuracy,
            "attack": entry.result.attack.label,
            "threat": entry.result.threat.label,
            **{name: summary.mean for name, summary in entry.result.metrics.items()},
            "flags": ", ".join(flag.id for flag in entry.result.flags),
            "key": entry.result.key,
        }
        for entry in entries
    )


def audit_schema() -> Plain:
    """JSON Schema of audit.json."""
    schema: Plain = _adapter(AuditReport).json_schema()
    return schema
