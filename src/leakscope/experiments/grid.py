"""A grid of audits: data × model × threat × defences × attacks × seeds, with exceptions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from leakscope.core.attack import ATTACKS
from leakscope.core.data import ImageSet
from leakscope.core.defense import build_defense
from leakscope.core.errors import UsageError
from leakscope.core.spec import label
from leakscope.experiments.config import AuditConfig, Spec, layered, preset, read_yaml, shared_pictures
from leakscope.experiments.grid_budgets import Budgets
from leakscope.experiments.job import Job, shared
from leakscope.experiments.jobs import plan_jobs
from leakscope.experiments.permission import require_permission
from leakscope.experiments.plan import make_plan
from leakscope.models.resolve import resolve

#: What an exception may name; each is matched against how the thing is written, with * and ?.
NAMES = ("data", "model", "cut", "defense", "threat", "attack", "seed")


def _everything() -> dict[str, dict[str, Any]]:
    return {"all": {}}


def _no_defense() -> list[Spec | list[Spec]]:
    return ["none"]


class BenchConfig(BaseModel):
    """Every combination of its lists is run, except what is excluded, and what is included besides."""

    model_config = ConfigDict(extra="forbid")

    base: dict[str, Any] = Field(default_factory=dict, description="settings of every audit")
    data: list[Spec] = Field(min_length=1, description="data sets, or settings that choose one: {data: …, resize: …}")
    models: list[Spec] = Field(min_length=1, description="networks, or settings: {model: …, cuts: […]}")
    threats: dict[str, dict[str, Any]] = Field(
        default_factory=_everything, description="by name, what the attacker is handed"
    )
    defenses: list[Spec | list[Spec]] = Field(default_factory=_no_defense, min_length=1)
    attacks: str | list[Spec] = Field("quick", description="a suite or a list")
    seeds: list[int] = Field(default_factory=lambda: [0], min_length=1)
    exclude: list[dict[str, str | int]] = Field(
        default_factory=list, description="combinations to leave out: {model: mlp, defense: 'gaussian*'}"
    )
    include: list[dict[str, Any]] = Field(default_factory=list, description="further audits: settings over the base")
    controls: bool = Field(True, description="whether every attack must first invert an encoder that hides nothing")
    budgets: Budgets = Field(default_factory=Budgets)
    scales: dict[str, dict[str, Any]] = Field(default_factory=dict, description="named overrides for --scale")

    @classmethod
    def read(
        cls, path: Path, overrides: Mapping[str, Any], scale: str | None = None, *, allow_code: bool = False
    ) -> BenchConfig:
        """A YAML file, under a scale, under dotted overrides: `{"base.training.epochs": 3}`.

        A file that names code is refused without `allow_code`.
        """
        tree = read_yaml(path)
        file = layered(tree, preset(tree, path, scale))
        own = layered(file, overrides)
        if not allow_code:
            require_permission(path, file, own, overrides)
        return cls.checked(own)

    @classmethod
    def checked(cls, tree: Mapping[str, Any]) -> BenchConfig:
        try:
            config = cls.model_validate(dict(tree))
        except ValidationError as error:
            problems = (f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
            raise UsageError(f"grid: {'; '.join(problems)}") from None
        for pattern in config.exclude:
            wrong = set(pattern) - set(NAMES)
            if wrong or not pattern:
                raise UsageError(
                    f"exclude names {', '.join(sorted(wrong)) or 'nothing'}; it may name: {', '.join(NAMES)}"
                )
        return config

    def audits(self) -> list[tuple[str, AuditConfig]]:
        """Threat and configuration of every audit, the included ones last."""
        audits = []
        for data, model, threat in itertools.product(self.data, self.models, self.threats):
            layers = (_settings("data", data), _settings("model", model), _within("threat", self.threats[threat]))
            tree = layered({}, self.base, *layers)
            for name in ("data", "model"):
                if not isinstance(tree.get(name), str | dict):
                    raise UsageError(f"grid: an entry names no {name}; write `{name}: NAME` in it, or in `base`")
            names = {"data": _name(tree["data"]), "model": label(resolve(tree["model"])), "threat": threat}
            defenses = [
                spec for spec in self.defenses if not self.excludes({**names, "defense": label(build_defense(spec))})
            ]
            attacks: str | list[Spec] = self.attacks
            if not isinstance(attacks, str):
                attacks = [
                    spec for spec in attacks if not self.excludes({**names, "attack": label(ATTACKS.build(spec))})
                ]
            if not self.excludes(names) and defenses and attacks:
                own = {"defenses": defenses, "attacks": attacks, "seeds": self.seeds}
                audits.append((threat, _audit({**tree, **own}, names)))
        for number, settings in enumerate(self.include):
            lists = {"defenses": self.defenses, "attacks": self.attacks, "seeds": self.seeds}
            tree = layered({}, self.base, lists, settings)
            audits.append((f"include {number + 1}", _audit(tree, {"include": str(number + 1)})))
        return audits

    def excludes(self, names: Mapping[str, Any]) -> bool:
        """Whether an exclude rule that uses only these names matches them."""
        return any(
            all(name in names and fnmatchcase(str(names[name]), str(wanted)) for name, wanted in pattern.items())
            for pattern in self.exclude
        )


def _settings(name: str, item: Spec) -> dict[str, Any]:
    """An item of a list as settings: a method stands for itself."""
    return item if isinstance(item, dict) and "kind" not in item else {name: item}


def _within(group: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{group}.{key}": value for key, value in settings.items()}


def _name(data: Spec) -> str:
    return data if isinstance(data, str) else str(data.get("kind"))


def _audit(tree: Mapping[str, Any], names: Mapping[str, str]) -> AuditConfig:
    try:
        return AuditConfig.checked(tree)
    except UsageError as error:
        raise UsageError(f"{', '.join(f'{name} {value}' for name, value in names.items())}: {error}") from None


def grid_jobs(config: BenchConfig) -> list[Job]:
    """Every job of the grid, once, each after those it needs; all audits are checked before any runs."""
    pictures: dict[str, ImageSet] = {}
    jobs: list[Job] = []
    problems = []
    for threat, audit in config.audits():
        try:
            plan = make_plan(audit, data=shared_pictures(audit, pictures))
        except UsageError as error:
            problems.append(f"{_name(audit.data)} with {audit.model} under {threat}: {error} (or exclude it)")
            continue
        own = plan_jobs(plan, threat=threat, controls=config.controls)
        besides = threat.startswith("include")
        jobs += [job for job in own if besides or job.stage != "attack" or not config.excludes(vars(job.named))]
    if problems:
        raise UsageError("; ".join(problems))
    return needed(shared(jobs))


def needed(jobs: list[Job]) -> list[Job]:
    """The jobs without those that no result needs: targets all of whose attacks are excluded, and their preparation."""
    by_id = {job.id: job for job in jobs}
    wanted: set[str] = set()
    todo = [job.id for job in jobs if job.stage in {"attack", "control"}]
    while todo:
        job_id = todo.pop()
        if job_id not in wanted and job_id in by_id:
            wanted.add(job_id)
            todo += by_id[job_id].needs
    return [job for job in jobs if job.id in wanted]
