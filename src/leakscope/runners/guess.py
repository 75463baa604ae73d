"""A first guess of what a job takes, before anything alike was ever run: right within a factor of a few."""

from __future__ import annotations

from leakscope.experiments.job import Job, Named

#: Seconds per unit of work (see `jobs`: pictures × epochs, public pictures, victims) for MNIST-sized pictures on one
#: core, by stage and attack; measured on runs of `configs/demo.yaml` and `configs/cem_cifar10.yaml`.
_RATES: dict[tuple[str, str | None], float] = {
    ("judge", None): 2e-3,
    ("target", None): 5e-4,
    ("prepare", None): 1e-2,
    ("prepare", "auto"): 5e-3,
    ("prepare", "decoder"): 2e-2,
    ("prepare", "decoder-gan"): 3e-2,
    ("attack", None): 5e-2,
    ("attack", "auto"): 2e-2,
    ("attack", "ridge"): 2e-2,
    ("attack", "decoder"): 1e-3,
    ("attack", "decoder-gan"): 1e-3,
    ("control", None): 1e-1,
    ("check", None): 5e-1,
    ("floors", None): 2e-2,
    ("facts", None): 1e-2,
}
#: Seconds that a job takes at least: reading pictures, building networks, writing.
_LEAST = 0.2
_LEARNING = frozenset({"decoder", "decoder-gan", "auto"})


def guessed(job: Job) -> float:
    """Seconds, roughly."""
    return guessed_of(job.stage, job.named, job.work)


def guessed_of(stage: str, named: Named, work: float) -> float:
    rate = _RATES.get((stage, named.kind), _RATES[stage, None])
    if stage in {"control", "check"} and named.kind in _LEARNING:
        rate *= 3  # the attack is trained again
    return _LEAST + rate * max(work, 1)
