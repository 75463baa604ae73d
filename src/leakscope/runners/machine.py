"""Where jobs run: the machine as the command line names it, and the runner made for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leakscope.core.errors import UsageError
from leakscope.experiments.grid_budgets import Budgets
from leakscope.runners.runner import Runner
from leakscope.store import Store


@dataclass(frozen=True)
class Machine:
    """Where to run, as the command line says it."""

    runner: str = "pool"
    device: str = "auto"
    workers: int | None = None
    threads: int = 1
    ray_address: str | None = None
    slurm: Mapping[str, Any] = field(default_factory=dict)


def _here(machine: Machine, store: Store, budgets: Budgets) -> Runner:
    from leakscope.runners.devices import shared_out
    from leakscope.runners.in_process import InProcess

    del budgets
    return InProcess(store.root, shared_out(machine.device)[0], threads=machine.threads)


def _pool(machine: Machine, store: Store, budgets: Budgets) -> Runner:
    from leakscope.runners.devices import shared_out
    from leakscope.runners.pool import Pool

    devices = shared_out(machine.device)
    wanted = machine.workers or (len(devices) if devices != ["cpu"] else usable_cores() // machine.threads)
    if budgets.memory_gb is not None:
        wanted = min(wanted, int(_memory() / budgets.memory_gb / 2**30))
    return Pool(store.root, devices, workers=max(1, wanted), threads=machine.threads)


def _ray(machine: Machine, store: Store, budgets: Budgets) -> Runner:
    from leakscope.runners.ray_cluster import Ray

    return Ray(
        store.root, machine.device, address=machine.ray_address, workers=machine.workers, threads=machine.threads,
        memory_gb=budgets.memory_gb,
    )  # fmt: skip


def _slurm(machine: Machine, store: Store, budgets: Budgets) -> Runner:
    from leakscope.runners.devices import on_a_node
    from leakscope.runners.slurm import Slurm

    options = dict(machine.slurm)
    return Slurm(
        store.root, on_a_node(machine.device), threads=machine.threads,
        workers=machine.workers, minutes=budgets.job_minutes, memory_gb=budgets.memory_gb,
        cluster=options.pop("cluster", "slurm"), options=options,
    )  # fmt: skip


RUNNERS: dict[str, Callable[[Machine, Store, Budgets], Runner]] = {
    "here": _here, "pool": _pool, "ray": _ray, "slurm": _slurm,
}  # fmt: skip


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_cores() -> int:
    """Usable cores that others leave alone, one at least; by the load of the last minute."""
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, usable_cores() - round(busy))


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def runner_for(machine: Machine, store: Store, budgets: Budgets) -> Runner:
    if machine.runner not in RUNNERS:
        raise UsageError(f"unknown runner {machine.runner!r}; choose from: {', '.join(RUNNERS)}")
    return RUNNERS[machine.runner](machine, store, budgets)
