"""What an audit would do and take, told before it does it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leakscope.experiments.job import Job, shared
from leakscope.experiments.jobs import plan_jobs
from leakscope.experiments.plan import Plan
from leakscope.runners.estimate import Experience
from leakscope.runners.events import read_events
from leakscope.runners.live import duration
from leakscope.runners.schedule import Schedule
from leakscope.store import Store
from leakscope.store.care import rooms

#: Bytes of a process with torch in it; of an entry's record.
_PROCESS, _RECORD = 600 * 2**20, 10_000
#: Copies of the pictures, and of the weights with their gradients and optimiser, that are in memory at a time.
_PICTURES, _WEIGHTS = 4, 8
#: Columns above which linear attacks sketch features.
_WIDEST = 16384
#: Of a picture of MNIST, for which seconds are guessed.
_USUAL_NUMBERS = 784


@dataclass(frozen=True)
class Outlook:
    """Jobs, seconds of one core, and bytes."""

    results: int
    controls: int  # with the checks of evidence E2
    jobs: int
    done: int  # of these, already in the store
    cpu_seconds: float
    guessed: int  # jobs whose like this store has not seen
    memory: int
    disk: int

    def lines(self) -> list[str]:
        rough = f"; a guess for {self.guessed} jobs that this store has not seen the like of" if self.guessed else ""
        there = f", {self.done} of them in the store" if self.done else ""
        return [
            f"{'jobs':10} {self.jobs}{there}: {self.results} results, {self.controls} controls, the rest trains and "
            "measures",
            f"{'CPU time':10} about {duration(self.cpu_seconds)} of one core{rough}",
            f"{'memory':10} about {self.memory / 2**30:.1f} GB per process",
            f"{'disk':10} about {self.disk / 1e6:.0f} MB in the store",
        ]


def outlook(plans: Sequence[Plan], folder: Path) -> Outlook:
    """By the plans, and by what was ever run in the store at `folder`, if there is one; none is made."""
    jobs = shared([job for plan in plans for job in plan_jobs(plan, facts=True)])
    store = Store(folder) if (folder / "VERSION").is_file() else None
    experience = Experience([] if store is None else read_events(store.root))
    states = {} if store is None else Schedule.of(jobs, store).states
    left = [job for job in jobs if states.get(job.id) not in {"done", "unneeded"}]
    estimates = [experience.of(job) for job in left]
    # Guesses are for small pictures; once anything was run, its pace tells.
    larger = 1.0 if experience.pace != 1.0 else max(_numbers(plan) for plan in plans) / _USUAL_NUMBERS
    seconds = sum(found.seconds * (larger if found.rough else 1.0) for found in estimates)
    checked = [target for plan in plans if plan.config.evidence == "E2" for target in plan.targets]
    controls = [job for job in left if job.stage == "control"]
    if checked and controls:  # the strongest attack's checks: a larger budget, another start, less data, a canary
        seconds += 4 * len(checked) * sum(experience.of(job).seconds for job in controls) / len(controls)
    return Outlook(
        results=sum(job.stage == "attack" for job in jobs),
        controls=sum(job.stage == "control" for job in jobs) + len(checked),
        jobs=len(jobs) + len(checked),
        done=len(jobs) - len(left),
        cpu_seconds=round(seconds, 1),
        guessed=sum(found.rough for found in estimates),
        memory=max([*(found.memory or 0 for found in estimates), 0]) or max(_memory(plan) for plan in plans),
        disk=_disk(plans, left, store),
    )


def _numbers(plan: Plan) -> int:
    """Of one picture."""
    return math.prod(plan.scene.splits.public.shape)


def _columns(plan: Plan) -> int:
    """Of what a linear attack reads: the features of the largest cut, sketched where they are many."""
    return min(max(math.prod(plan.scene.cuts[cut].shape) for cut in plan.cuts), _WIDEST)


def _weights(plan: Plan) -> int:
    """Bytes of the network."""
    tensors = plan.scene.network().state_dict().values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _memory(plan: Plan) -> int:
    pictures = len(plan.scene.data) * _numbers(plan) * 4
    return _PROCESS + _PICTURES * pictures + _WEIGHTS * _weights(plan)


def _disk(plans: Sequence[Plan], jobs: Sequence[Job], store: Store | None) -> int:
    """What entries of a kind take on average in this store; else by the size of pictures and weights."""
    weights = max(_weights(plan) for plan in plans)
    guesses = max(len(plan.scene.first_victims) * _numbers(plan) * 4 for plan in plans)
    # What attacks learn: networks of some size, or a matrix from features to pixels.
    prepared = max(4 * weights, *(4 * _columns(plan) * _numbers(plan) for plan in plans))
    size = {"trained": weights, "prepared": prepared, "attack": guesses, "control": guesses}
    if store is not None:
        size |= {room.kind: room.bytes // max(room.entries, 1) for room in rooms(store)}
    return sum(_RECORD + size.get(kind, 0) for job in jobs for kind, _ in job.makes)
