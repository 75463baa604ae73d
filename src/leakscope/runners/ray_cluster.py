"""Jobs on Ray: on this machine, or on the cluster at an address. The store must be on a disk all nodes share."""

from __future__ import annotations

import functools
import importlib
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from leakscope.core.errors import UsageError
from leakscope.core.spec import Plain
from leakscope.experiments.job import id_of
from leakscope.runners.devices import RAY_RESOURCES, kind_of, on_a_node
from leakscope.runners.runner import Outcome, Progress

_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class Ray:
    """As many jobs at once as the cluster has room for; Ray gives each its cores and its GPU."""

    def __init__(
        self, store: Path, device: str, *, address: str | None, workers: int | None, threads: int = 1,
        memory_gb: float | None = None,
    ) -> None:  # fmt: skip
        if find_spec("ray") is None:
            raise UsageError("Ray is not installed; pip install 'leakscope[ray]', or take --runner pool")
        cores = None if address or workers is None else workers * threads
        with _to_itself() if address is None else nullcontext():
            ray = self._ray = _started(address, cores)
        there = ray.cluster_resources()
        resource = _resource(device, there)
        room = there.get("CPU", 1) // threads if resource is None else there[resource]
        self.capacity = min(workers or int(room), max(1, int(room)))
        needs = {
            "num_cpus": threads,
            "num_gpus": 1 if resource == "GPU" else 0,
            "resources": {resource: 1} if resource not in {None, "GPU"} else {},
            # Whether to try again is the coordinator's decision, and the user's.
            "max_retries": 0,
            **({} if memory_gb is None else {"memory": int(memory_gb * 2**30)}),
        }
        self._start = ray.remote(**needs)(_do)
        self._arguments = (str(store.absolute()), _name(device, resource), threads)
        self._running: dict[Any, str] = {}

    def submit(self, jobs: list[Plain]) -> None:
        for job in jobs:
            self._running[self._start.remote(job, *self._arguments)] = id_of(job)

    def wait(self, seconds: float) -> list[Outcome | Progress]:
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        happened: list[Outcome | Progress] = []
        for reference in ready:
            job = self._running.pop(reference)
            try:
                happened.append(Outcome(**self._ray.get(reference)))
            except self._ray.exceptions.RayError as error:
                happened.append(Outcome(job, _reason(error), str(error), worker="ray"))
        return happened

    def cancel(self, job: str) -> None:
        for reference, running in self._running.items():
            if running == job:
                self._ray.cancel(reference, force=True)

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def _resource(device: str, there: Mapping[str, float]) -> str | None:
    """What Ray is asked for beside cores: an accelerator of the kind; None for devices that Ray does not count."""
    if device == "auto":
        return "GPU" if there.get("GPU", 0) else None
    resource = RAY_RESOURCES.get(kind_of(device))
    if resource is not None and not there.get(resource, 0):
        raise UsageError(f"the Ray cluster has no {resource} for --device {device}; take --device cpu")
    return resource


def _name(device: str, resource: str | None) -> str:
    """How a job calls its device; a node knows best which kind of GPU it has."""
    return "auto" if device == "auto" and resource is not None else on_a_node(device)


def _started(address: str | None, cores: int | None) -> Any:
    """Ray, connected to the cluster at `address` or to a new one on this machine."""
    import ray

    try:
        ray.init(
            address=address or "local", num_cpus=cores, include_dashboard=False if address is None else None,
            log_to_driver=False, logging_level="ERROR",
        )  # fmt: skip
    except Exception as error:  # Ray raises plain Exception when a node does not come up in time
        ray.shutdown()
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"no Ray at {address or 'this machine'}: {reason}; check --ray-address") from None
    return ray


@contextmanager
def _to_itself() -> Iterator[None]:
    """Ray started here listens on 127.0.0.1 alone, and answers only to who knows a token made for it.

    Whoever reaches Ray's ports runs code as this user, so no other machine and no other user may. Ray binds
    to all addresses unless this variable, read when it is imported, keeps it from forming clusters; its
    `_node_ip_address` does not: it turns 127.0.0.1 into the address that others see.
    """
    if "ray" not in sys.modules:  # Ray looks at these once; later it starts with a token of its own
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if "RAY_AUTH_TOKEN_PATH" not in os.environ:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    before = os.environ.get(_CLUSTERS)
    os.environ[_CLUSTERS] = "0"
    constants: Any = importlib.import_module("ray._private.ray_constants")
    usual, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = usual
        del os.environ[_CLUSTERS]
        if before is not None:
            os.environ[_CLUSTERS] = before


def _reason(error: Exception) -> str:
    name = type(error).__name__
    return {
        "WorkerCrashedError": "the Ray worker died (often: out of memory)",
        "NodeDiedError": "the Ray node vanished",
        "OutOfMemoryError": "Ray ended the job: its node ran out of memory",
        "TaskCancelledError": "ended: it took longer than allowed",
    }.get(name, f"Ray lost the job ({name})")


def _do(job: Plain, store: str, device: str, threads: int) -> dict[str, Any]:
    """Runs on a worker of the cluster."""
    from leakscope.runners.outcome import do

    return asdict(do(_workshop(store, device, threads), job, f"{os.uname().nodename}/ray-{os.getpid()}"))


@functools.lru_cache(maxsize=1)  # Ray keeps its processes: plans made for one job serve the next
def _workshop(store: str, device: str, threads: int) -> Any:
    from leakscope.experiments.execution import Executor
    from leakscope.experiments.workplace import Workplace
    from leakscope.runners.devices import chosen
    from leakscope.runners.outcome import pin_threads
    from leakscope.store import Store

    pin_threads(threads)
    return Executor(Workplace(Store(store), chosen(device)))
