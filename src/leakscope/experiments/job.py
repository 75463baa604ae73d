"""A job as plain JSON.

It names what it makes by the keys of the store, so that jobs of several plans are shared by key, a
finished one is recognised by its entry, and the process that runs it needs nothing but its JSON, the store
and a device. Nothing heavy is imported here: looking at finished work must not wait for torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Literal

from leakscope.core.spec import Plain
from leakscope.store import Store

Stage = Literal["judge", "target", "prepare", "attack", "control", "check", "floors", "facts"]
#: Made on the way to what reports read. A job that needs one of them makes it again where the store has lost it.
_ON_THE_WAY = frozenset({"trained", "attack"})


@dataclass(frozen=True)
class Named:
    """Display names of a job: for people and for filters."""

    data: str
    model: str
    threat: str
    cut: str
    defense: str
    seed: int
    attack: str | None = None
    kind: str | None = None  # of the attack, without its settings
    network: str = ""  # how people call the model

    @property
    def title(self) -> str:
        target = f"{self.network or self.model} ({self.defense}) at {self.cut}, seed {self.seed}"
        return f"{self.attack} on {target}" if self.attack else target


@dataclass(frozen=True)
class Job:
    """One piece of work that any process can do."""

    stage: Stage
    key: str  # of what it makes; with the stage, its identity
    makes: tuple[tuple[str, str], ...]  # kinds and keys in the store once it is done
    needs: tuple[str, ...]  # identities of jobs that come first
    config: Plain  # the audit it belongs to; one object for all jobs of a plan
    experiment: Plain  # what it works on
    named: Named
    work: float  # how much there is to do, in the units of its stage

    @property
    def id(self) -> str:
        return f"{self.stage}-{self.key}"

    @cached_property
    def title(self) -> str:
        return self.named.title

    def as_json(self) -> Plain:
        return {
            "stage": self.stage, "key": self.key, "makes": [list(made) for made in self.makes],
            "needs": list(self.needs), "config": self.config, "experiment": self.experiment,
            "named": asdict(self.named), "work": self.work,
        }  # fmt: skip

    @property
    def answers(self) -> tuple[tuple[str, str], ...]:
        """What reports read of it; weights and reconstructions are for other jobs."""
        return tuple(made for made in self.makes if made[0] not in _ON_THE_WAY)

    @property
    def required(self) -> tuple[tuple[str, str], ...]:
        """What must be there for it to be done: of an attack its scores, whatever became of the pictures."""
        return self.answers if self.stage == "attack" else self.makes

    @classmethod
    def from_json(cls, plain: Plain) -> Job:
        makes = tuple((kind, key) for kind, key in plain["makes"])
        return cls(**{**plain, "makes": makes, "needs": tuple(plain["needs"]), "named": Named(**plain["named"])})

    def done(self, store: Store) -> bool:
        return all(store.get(kind, key) is not None for kind, key in self.required)


def id_of(plain: Plain) -> str:
    """The identity of a job that is JSON."""
    return f"{plain['stage']}-{plain['key']}"


def shared(jobs: Iterable[Job]) -> list[Job]:
    """The jobs of several plans with those of one key merged, and one training for all cuts of a network."""
    merged: dict[str, Job] = {}
    trains: dict[str, str] = {}
    for job in jobs:
        if job.id in merged:
            continue
        for kind, key in job.makes:
            if kind == "trained":
                # Whoever comes later waits for the first and finds the weights in the store.
                trainer = trains.setdefault(key, job.id)
                job = job if trainer == job.id else replace(job, needs=(*job.needs, trainer))
        merged[job.id] = job
    return list(merged.values())
