"""Selecting targets and attacks by what their configuration says; nothing reads a label."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

from leakscope.core.results import Method, TargetRecord, from_json

#: As the value of a setting in a Pick: whatever it is.
ANY = "*"
#: Settings of an attack that follow from the target, so that they make no other attack of it.
_STRUCTURAL = {"peel": ("plain_layers",)}
_NAMES = ("kind", "revision")


@dataclass(frozen=True)
class Weaker:
    """When a setting makes a defence weaker than its published form: below `least`, above `most`, or not `value`."""

    least: int | float | None = None
    most: int | float | None = None
    value: Any = None

    def found(self, given: Any) -> bool:
        """Whether the given value is weaker."""
        if self.least is not None:
            return bool(given < self.least)
        return bool(given > self.most) if self.most is not None else bool(given != self.value)

    @property
    def published(self) -> Any:
        return next((limit for limit in (self.least, self.most) if limit is not None), self.value)


@cache
def weaker_settings() -> dict[str, dict[str, Weaker]]:
    """By defence and setting, what would weaken it; `published/rivals.json`."""
    text = files("leakscope.studies").joinpath("published", "rivals.json").read_text(encoding="utf-8")
    return {
        kind: {name: from_json(Weaker, rule) for name, rule in rules.items()}
        for kind, rules in json.loads(text)["weaker"].items()
    }


def settings_of(method: Method) -> dict[str, Any]:
    """Every setting by name; of a stack by `kind.name`."""
    parts = method.settings.get("parts") if len(method.kinds) > 1 else None
    if parts is None:
        return {name: value for name, value in method.settings.items() if name not in _NAMES}
    return {f"{part['kind']}.{name}": value for part in parts for name, value in part.items() if name not in _NAMES}


def unusual_of(method: Method) -> dict[str, Any]:
    """Settings that differ from their defaults, named as in `settings_of`."""
    if len(method.kinds) == 1:
        return dict(method.unusual)
    return {f"{kind}.{name}": value for kind, own in method.unusual.items() for name, value in own.items()}


def weakened(method: Method) -> list[str]:
    """Settings that make a method weaker than it was published, in words."""
    found = []
    given = settings_of(method)
    for kind in method.kinds:
        prefix = f"{kind}." if len(method.kinds) > 1 else ""
        for name, rule in weaker_settings().get(kind, {}).items():
            value = given.get(prefix + name)
            if value is not None and rule.found(value):
                found.append(f"{kind} with {name} = {value} (published: {rule.published})")
    return found


def attack_identity(method: Method) -> str:
    """Two results with the same identity come from the same attack."""
    left_out = _STRUCTURAL.get(method.kind, ())
    return json.dumps({name: value for name, value in method.settings.items() if name not in left_out}, sort_keys=True)


@dataclass(frozen=True)
class Pick:
    """Targets of one arm of a comparison.

    `kinds` lists defences that fit (a stack is written `a+b`). Each of `settings` must have its value (`ANY`: any);
    of the others those in `free` may vary (`ANY`: all), and so may settings that only weaken a method, which raise a
    doubt; the rest must have their defaults. `variant` and `cut` are patterns such as `early-*|main`. `attacks` names
    kinds of attacks; empty: all that both sides met. `recipe` holds the settings that they were published with where
    those are not our defaults. Targets of an earlier epoch than their run's last belong to it only if it is `stopped`.
    """

    kinds: tuple[str, ...] = ("none",)
    settings: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ANY
    cut: str = ANY
    free: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)  # settings of the network, with `kind`
    name: str = ""  # for people
    stopped: bool = False  # with targets that were stopped early

    def fits(self, variant: str, target: TargetRecord) -> bool:
        """Whether a target belongs to this arm."""
        named = any(fnmatchcase(variant, one) for one in self.variant.split("|")) and fnmatchcase(target.cut, self.cut)
        network = all(target.model.settings.get(name) == value for name, value in self.model.items())
        trained = self.stopped or target.stop is None
        return named and network and trained and self.fits_defense(target.defense)

    def fits_defense(self, defense: Method) -> bool:
        if defense.kind not in self.kinds:
            return False
        given = settings_of(defense)
        if any(value != ANY and given.get(name) != value for name, value in self.settings.items()):
            return False
        return all(self._may_vary(name) for name in unusual_of(defense) if name not in self.settings)

    def _may_vary(self, name: str) -> bool:
        kind, dot, short = name.rpartition(".")
        kinds = (kind,) if dot else self.kinds
        weakening = any(short in weaker_settings().get(kind, {}) for kind in kinds)
        return ANY in self.free or name in self.free or weakening

    def as_published(self, attack: Method) -> bool:
        """Whether the arm names an attack, and it ran with its own settings."""
        return bool(self.attacks) and all(self.recipe.get(name) == value for name, value in attack.unusual.items())

    @property
    def title(self) -> str:
        """How people call it."""
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items() if value != ANY)
        defense = self.name or " or ".join(self.kinds) + (f" ({settings})" if settings else "")
        return defense + (f" under {' or '.join(self.attacks)}" if self.attacks and not self.name else "")
