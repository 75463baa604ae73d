"""Plans run to their reports and their page of results: what `audit` and `reproduce` share."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakscope.auditing.verdict import gravest
from leakscope.commands.settings import print_json, use_threads
from leakscope.core.errors import UsageError
from leakscope.core.escaping import terminal
from leakscope.core.results import to_json
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.finished import Audit
from leakscope.experiments.folder import require_writable, write_folder
from leakscope.experiments.plan import Plan
from leakscope.experiments.workplace import Workplace
from leakscope.runners.audit import Labour, run_audits
from leakscope.studies import study as studies
from leakscope.terminal import following, print_audit


@dataclass(frozen=True)
class Manner:
    """Output and parallelism of a run."""

    command: str
    quiet: bool = False
    silent: bool = False  # no table of scores on stdout
    workers: int | None = None
    threads: int | None = None


def study_of(config: AuditConfig) -> studies.Study | None:
    """What draws the page of results; refused now if there is no such study."""
    return None if config.study is None else studies.STUDIES.build(config.study)


def run_plans(
    plans: Mapping[str, Plan],
    place: Workplace,
    out: Path,
    manner: Manner,
    study: Any = None,
    results: Path | None = None,
) -> dict[str, Audit]:
    """Every variant to its folder, then all of them to the study's page."""
    from leakscope.data.split_index import write_index

    require_writable(out)
    labour = shares(plans, place.device.type, manner.workers, manner.threads)
    with following(quiet=manner.quiet):
        audits = run_audits(list(plans.values()), place, command=manner.command, labour=labour)
    finished = dict(zip(plans, audits, strict=True))
    for name, result in finished.items():
        folder, scene = out / name, plans[name].scene
        write_folder(result, folder)
        if scene.index is not None:
            write_index(scene.index, scene.data, folder / "splits.json")
        if not manner.silent:
            print_audit(result.report, folder)
    if study is not None:
        runs = studies.Runs({name: studies.Run(audit, plans[name], place.store) for name, audit in finished.items()})
        page = studies.write_study(study, runs, results or out)
        sys.stderr.write(terminal(f"results: {page}") + "\n")
    return finished


def told(finished: Mapping[str, Audit], as_json: bool) -> int:
    """The exit code of finished audits; their reports are printed as JSON when asked for."""
    if as_json:
        documents = {name: to_json(audit.report) for name, audit in finished.items()}
        print_json(documents if len(documents) > 1 else next(iter(documents.values())))
    return gravest(audit.exit_code for audit in finished.values())


#: Pixels that are looked at (in training, and by attacks that learn) from which on a second process is worth starting.
LARGE = 10**7
#: How often an attack that learns looks at a public picture, roughly.
LOOKS = 10
#: Bytes that a worker may need: torch, pictures, a network and an attack on it.
ROOM = 3 << 29


def shares(plans: Mapping[str, Plan], device: str, workers: int | None, threads: int | None) -> Labour:
    """Who does the work: as asked; unasked, on a processor, single-threaded workers before threads.

    Two processes of one thread each never wait for each other, and beside busy neighbours each gets its share; two
    threads wait for the slower one at every operation. Where one process does it all, it takes no more threads than
    there are free cores, and one for small work, in which threads cost more than they bring.
    """
    if workers is not None or device != "cpu":
        return Labour(workers, threads or 1)
    from leakscope.core.memory import available
    from leakscope.runners.machine import free_cores, usable_cores

    large = any(plan.scene.goal.long_jobs or pixels_looked_at(plan) >= LARGE for plan in plans.values())
    jobs = sum(plan.results for plan in plans.values())
    several = min(usable_cores() // (threads or 1), jobs, int(available() // ROOM))
    if large and several > 1:
        return Labour(several, threads or 1)
    if threads is None:
        use_threads(min(free_cores(), usable_cores()) if large else 1)
    return Labour(None, threads or 1)


def pixels_looked_at(plan: Plan) -> int:
    """How large the work is, roughly: by what one target and one attack on it read."""
    splits = plan.scene.splits
    pictures = plan.config.training.epochs * len(splits.private) + LOOKS * len(splits.public)
    return pictures * math.prod(splits.private.shape)


def require_study(config: AuditConfig, name: str) -> studies.Study:
    study = study_of(config)
    if study is None:
        raise UsageError(f"{name}: its configuration names no study yet, so nothing would be compared")
    return study
