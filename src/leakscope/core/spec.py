"""Specifications: a method is a frozen dataclass; its fields are its configuration, its digest its identity."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import json
import math
import pkgutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from leakscope.core.errors import UsageError, unknown
from leakscope.core.own_code import class_from, parted
from leakscope.core.yaml_text import parse_yaml

T = TypeVar("T")
Plain = dict[str, Any]


#: Metadata of a field that a method got after results with it were kept.
LATER: Mapping[str, Any] = {"later": True}


def digest(plain: object) -> str:
    """The identity of plain data: SHA-256 of its canonical JSON, 24 hexadecimal digits."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def describe(value: object) -> Any:
    """`value` as plain JSON data; equal configurations give equal descriptions.

    A registered method becomes `{"kind": name, "revision": n, field: …}`, so that bumping a
    revision, or changing a field, changes every key that contains it. A field with `LATER` as its metadata is
    left out at its default: keys from before it was there still hold.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain: Plain = {}
        if hasattr(value, "kind_name"):
            plain["kind"] = value.kind_name
            plain["revision"] = getattr(value, "revision", 1)
            if not type(value).__module__.startswith("leakscope."):
                plain["code"] = code_digest(type(value))  # nobody bumps revisions there
        for field in dataclasses.fields(value):
            if not field.metadata.get("identity", True):
                continue  # carried along, but already identified by another field
            item = getattr(value, field.name)
            if field.metadata.get("later") and item == field.default:
                continue
            if field.metadata.get("identity") == "unusual" and item == field.default:
                continue  # a setting that came later: what was made without it keeps its identity
            # 1 and 1.0 are one configuration when the field is a float.
            if str(field.type).startswith("float") and isinstance(item, int):
                item = float(item)
            plain[field.name] = describe(item)
        return plain
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(describe(item) for item in value)
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no plain description")


def code_digest(cls: type[Any]) -> str:
    """Identity of the code of a class: the file it stands in, or, where there is none, its compiled functions."""
    try:
        text = Path(inspect.getfile(cls)).read_bytes()
    except (OSError, TypeError):
        functions = (f for base in cls.__mro__ for f in vars(base).values() if inspect.isfunction(f))
        text = b"".join(f.__code__.co_code + repr(f.__code__.co_consts).encode() for f in functions)
    return hashlib.sha256(text).hexdigest()[:24]


def validated(cls: type[T], fields: Mapping[str, Any], name: str) -> T:
    """`cls(**fields)` with checked types; every problem in one line."""
    known = {field.name for field in dataclasses.fields(cast("Any", cls)) if field.init}
    for key in fields:
        if key not in known:
            if not known:
                raise UsageError(f"{name} has no field {key!r}; it takes none")
            raise unknown(f"field of {name}", key, known)
    if not hasattr(cls, "__pydantic_config__"):
        # Fields may hold our own protocols and torch objects, which pydantic checks by isinstance.
        cls.__pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)  # type: ignore[attr-defined]
    try:
        built = TypeAdapter(cls).validate_python(_with_nested_built(cls, fields))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'value'}: {item['msg']}" for item in error.errors()
        )
        raise UsageError(f"{name}: {problems}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{name}: {' '.join(str(error).split())[:300]}") from None
    for key in fields:
        if has_odd_number(getattr(built, key)):
            raise UsageError(f"{name}: {key} is not a finite number; no result could be kept under it")
    return built


def has_odd_number(value: object) -> bool:
    """Whether a field is NaN or infinite: range checks do not catch it, and JSON keys cannot contain it."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(has_odd_number(item) for item in value.values())
    return isinstance(value, list | tuple) and any(has_odd_number(item) for item in value)


def _with_nested_built(cls: type[Any], fields: Mapping[str, Any]) -> Plain:
    """The fields, with methods that are written as a name or a mapping built (see `nested`)."""
    kinds = {field.name: field.metadata["kind"] for field in dataclasses.fields(cls) if "kind" in field.metadata}
    return {key: kinds[key].build(value) if key in kinds else value for key, value in fields.items()}


def _settings(text: str) -> list[str]:
    """The parts between commas, not counting commas inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]


def parse(text: str) -> Plain:
    """`name`, `name:value` or `name:field=value,field=value` as a mapping; `value` fills the first field.

    A class of the user's is named by its file: `my.py:MyAttack`, `my.py:MyAttack:field=value`.
    """
    name, rest = parted(text) or text.partition(":")[::2]
    plain: Plain = {"kind": name}
    for position, item in enumerate(_settings(rest)):
        key, equals, value = item.partition("=")
        if not equals and position:
            raise UsageError(f"{text!r}: write the {position + 1}th setting as field=value")
        try:
            plain[key if equals else "*"] = parse_yaml(value if equals else item, f"{item[:60]!r}", finite=False)
        except UsageError as error:
            if "is not YAML" not in str(error):
                raise
            raise UsageError(f"{text!r}: cannot read {item!r}; write field=value, lists as [1,2]") from None
    return plain


class Kind(Generic[T]):
    """All methods of one kind by name: those of its package, and those that others register.

    Modules of the package are imported on first use, so adding a method is adding a file. Third
    parties register through the entry-point group of the package's name.
    """

    def __init__(self, name: str, package: str, base: type[Any] | None = None) -> None:
        self.name = name
        self.package = package
        self.base = base  # of all methods of this kind, where a user may bring one
        self._classes: dict[str, type[T]] = {}
        self._complete = False

    def register(self, name: str, *, revision: int = 1) -> Callable[[type[T]], type[T]]:
        """Class decorator. Increase `revision` whenever the same fields give different numbers."""

        def enter(cls: type[T]) -> type[T]:
            taken = self._classes.get(name)
            if taken is not None and taken.__qualname__ != cls.__qualname__:
                raise ValueError(f"{self.name} {name!r} is already {taken.__module__}.{taken.__qualname__}")
            cls.kind_name = name  # type: ignore[attr-defined]
            cls.revision = revision  # type: ignore[attr-defined]
            self._classes[name] = cls
            return cls

        return enter

    def _load(self) -> dict[str, type[T]]:
        if not self._complete:
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__, self.package + "."):
                importlib.import_module(module.name)
            for entry in entry_points(group=self.package):
                try:
                    entry.load()
                except Exception as error:
                    reason = next(iter(str(error).splitlines()), type(error).__name__)
                    warnings.warn(f"plug-in {entry.name!r} of {entry.value} cannot be loaded: {reason}", stacklevel=2)
            self._complete = True
        return self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._load()))

    def foreign(self) -> set[str]:
        """Names of the methods that other packages brought; none is looked for where no package says so."""
        if not entry_points(group=self.package):
            return set()
        return {name for name, cls in self._load().items() if not cls.__module__.startswith("leakscope.")}

    def adopt(self, method: T | type[T]) -> Plain:
        """The description of a method handed over in Python, which `build` then understands in this process."""
        cls = method if isinstance(method, type) else type(method)
        known = self._load().get(str(getattr(cls, "kind_name", "")))
        if known is not cls:
            self._require(cls)
            taken = self._classes.get(cls.__name__)
            if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
                raise UsageError(f"there is another {self.name} called {cls.__name__!r}; call yours otherwise")
            self.register(cls.__name__)(cls)
        built: Plain = describe(cls() if isinstance(method, type) else method)
        return built

    def _require(self, cls: type[Any]) -> None:
        """Refuse a class of a user's that is no method of this kind."""
        if self.base is None:
            raise UsageError(f"a {self.name} cannot be given as a class or a file; choose from: {', '.join(self)}")
        if not issubclass(cls, self.base):
            raise UsageError(
                f"{cls.__name__} is no {self.name}; let it inherit from {self.base.__module__}.{self.base.__name__}"
            )
        if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise UsageError(f"{cls.__name__} must be a frozen dataclass: put @dataclass(frozen=True) above it")
        wanting = [name for name in ("needs",) if name in self.base.__annotations__ and not hasattr(cls, name)]
        if inspect.isabstract(cls) or wanting:
            missing = [*wanting, *sorted(getattr(cls, "__abstractmethods__", ()))]
            raise UsageError(f"{cls.__name__} lacks {', '.join(missing)}; see the how-to pages")

    def _from_file(self, name: str) -> type[T]:
        cls: type[T] = class_from(name)
        self._require(cls)
        # Its name is where it is found, so that another process finds it too.
        cls.kind_name = name  # type: ignore[attr-defined]
        cls.revision = 1  # type: ignore[attr-defined]
        return cls

    def __getitem__(self, name: str) -> type[T]:
        if parted(name) is not None:
            return self._from_file(name)
        classes = self._load()
        if name not in classes and name.endswith(".py") and self.base is not None:
            raise UsageError(f"{name} names a file, not what is in it; write {name}:CLASS")
        if name not in classes:
            raise unknown(self.name, name, classes)
        return classes[name]

    def build(self, spec: str | Mapping[str, Any] | T) -> T:
        """A method from its name, from `name:field=value`, or from a mapping with a `kind`."""
        if isinstance(spec, str):
            spec = parse(spec)
        if not isinstance(spec, Mapping):
            return spec
        fields = {key: value for key, value in spec.items() if key not in {"kind", "revision", "code"}}
        if "kind" not in spec:
            raise UsageError(f"a {self.name} needs a 'kind', one of: {', '.join(self)}")
        cls = self[str(spec["kind"])]
        if "*" in fields:
            first = next((field.name for field in dataclasses.fields(cast("Any", cls)) if field.init), None)
            if first is None:
                raise UsageError(f"{self.name} {spec['kind']!r} takes no settings")
            fields[first] = fields.pop("*")
        return validated(cls, fields, str(spec["kind"]))


def nested(kind: Kind[T], default: str) -> T:
    """A field that holds a method of another kind: `prior: Prior = nested(PRIORS, "dcgan")`.

    In a configuration it is a name or a mapping, `prior: {kind: dcgan, width: 32}`; on a command line
    `prior=linear`, `prior=linear:components=8` or `prior={kind: linear, components: 8}`. The default is
    built when it is asked for, so that defining a class imports nothing.
    """
    field: T = dataclasses.field(default_factory=lambda: kind.build(default), metadata={"kind": kind})
    return field


def label(method: object) -> str:
    """How a method is written on a command line: its name and the fields that differ from their defaults."""
    parts = getattr(method, "parts", None)
    if parts:
        return "+".join(label(part) for part in parts)
    name = str(getattr(method, "kind_name", type(method).__name__))
    settings = [f"{key}={_written(value)}" for key, value in unusual(method).items()]
    return f"{name}:{','.join(settings)}" if settings else name


def unusual(method: object) -> Plain:
    """Fields that are shown and differ from their defaults."""
    unusual: Plain = {}
    for field in dataclasses.fields(cast("Any", method)):
        value = getattr(method, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if field.metadata.get("shown", True) and value != default:
            unusual[field.name] = value
    return unusual


def _written(value: object) -> str:
    if isinstance(value, str):
        return value
    if hasattr(value, "kind_name"):
        short = label(value)
        if len(_settings(short)) == 1:
            return short
    return json.dumps(describe(_shortened(value)), separators=(",", ":"))


def _shortened(value: object) -> object:
    """A method as the mapping that builds it, methods inside it too, without fields that have their defaults."""
    if not hasattr(value, "kind_name"):
        return value
    return {"kind": value.kind_name, **{key: _shortened(item) for key, item in unusual(value).items()}}
