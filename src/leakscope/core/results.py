"""What stages leave behind: typed, frozen, JSON in and out, and readable without torch.

Every record in the store, every row of audit.json and every number on a page is one of these. Labels in
them are for people; nothing reads a label to find out what something is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from leakscope.core.errors import UsageError
from leakscope.core.spec import Plain, describe, label, unusual
from leakscope.core.words import FLAGS, Control, FlagId, Severity

T = TypeVar("T")
Direction = Literal["high", "low"]


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
        """The same diagnostics with seconds, CPU seconds and queries filled in."""
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


#: The setting by which people call a network that has no name of its own.
_NAMED_BY = {
    "file": "path", "path": "path", "pt2": "path", "onnx": "path", "given": "layers", "asked": "name", "http": "url",
}  # fmt: skip


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

    @property
    def plain(self) -> str:
        """How people call it: a network by its file, its class, its function or its address; all else by its label."""
        named = {
            "file": "path",
            "path": "path",
            "pt2": "path",
            "onnx": "path",
            "given": "layers",
            "asked": "name",
            "http": "url",
        }.get(self.kind)
        value = None if named is None else self.settings.get(named, self.unusual.get(named))
        if not isinstance(value, str) or not value:
            return self.label
        if named != "path":
            return value
        factory = self.settings.get("factory", "build")
        return PurePath(value).name + ("" if factory == "build" else f":{factory}")


@dataclass(frozen=True)
class ThreatRecord:
    """What the attacker was handed."""

    access: tuple[str, ...]
    public_data: bool
    knows_defense: bool
    queries: int | None
    label: str
    public: str = "own"  # whose pictures the attacker has: its own, the private ones, or both
    shared_classes: bool = False  # a class attack whose attacker has other pictures of the attacked classes


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
    unit_separability: Spread | None = None  # of features scaled to length 1, which a change of scale cannot move
    stop: int | None = None  # the epoch of its run whose weights it has; None: the last
    unsteady: bool = False  # the same pictures and random numbers gave different releases
    told_apart: float = 1.0  # share of pictures whose release differs from that of every other of their label
    chaotic: float = 0.0  # share of features that a change nobody sees moves as much as another picture does
    server_leak: float | None = None  # what ridge rebuilds from the server's own activations
    utility: str | None = None  # what `accuracy` is where pictures have no labels: a function, or `not measured`
    follows: float = 0.0  # share of small changes of a picture that can be read from what they change in its release
    plainly: float = 0.0  # the same through fresh noise, where `follows` is high
    unused: float = 0.0  # share of features that tell pictures apart and that the server does not need
    undone: bool = False  # the server works out numbers of the client that cannot be read from what was sent
    opaque: bool = False  # the server's answer does not follow from the release by operations that can be watched
    spelt: float = 0.0  # share of pictures told from others of their label by symbols: numbers of few values
    mosaics: float = 0.0  # share of the parts of mosaics that can be read from their releases, where `follows` is low

    @property
    def use(self) -> str:
        """What `accuracy` is called."""
        return self.utility if self.accuracy is not None and self.utility is not None else "accuracy"

    @property
    def name(self) -> str:
        after = "" if self.stop is None else f" after epoch {self.stop}"
        return f"{self.model.plain} ({self.defense.label}) at {self.cut}{after}"


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
    def reason(self) -> str:
        """As a verdict names it."""
        return f"{self.id} ({self.where})"

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
    victims_from: str = "heldout"  # see DataRecord
    strays: bool = False  # what was observed is not what the same pictures release otherwise
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


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def adapter(cls: type[T]) -> TypeAdapter[T]:
    if cls not in _ADAPTERS:
        cls.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]


def to_json(value: object) -> Plain:
    """A result as plain JSON data."""
    plain: Plain = adapter(type(value)).dump_python(value, mode="json")
    return plain


def from_json(cls: type[T], plain: object, where: str = "the record") -> T:
    """A result from plain JSON data; what does not fit is refused in one line."""
    try:
        return adapter(cls).validate_python(plain)
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
