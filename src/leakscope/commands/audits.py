"""Plans run to their reports and their page of results: what `audit` and `reproduce` share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakscope.auditing.verdict import gravest
from leakscope.commands.settings import print_json
from leakscope.core.errors import UsageError
from leakscope.core.results import to_json
from leakscope.experiments.audit import Audit
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.folder import require_writable, write_folder
from leakscope.experiments.plan import Plan
from leakscope.experiments.workplace import Workplace
from leakscope.runners.audit import Labour, run_audits
from leakscope.studies import study as studies
from leakscope.terminal import following, print_audit


@dataclass(frozen=True)
class Manner:
    """How a run shows itself and how much it does at a time."""

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
    labour = Labour(_workers(plans, place, manner), manner.threads or 1)
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
        sys.stderr.write(f"results: {page}\n")
    return finished


def told(finished: Mapping[str, Audit], as_json: bool) -> int:
    """The exit code of finished audits; their reports are printed as JSON when asked for."""
    if as_json:
        documents = {name: to_json(audit.report) for name, audit in finished.items()}
        print_json(documents if len(documents) > 1 else next(iter(documents.values())))
    return gravest(audit.exit_code for audit in finished.values())


def _workers(plans: Mapping[str, Plan], place: Workplace, manner: Manner) -> int | None:
    """As many as asked for; unasked, one per core for class attacks on a processor: long jobs that share little."""
    if manner.workers is not None or place.device.type != "cpu":
        return manner.workers
    from leakscope.runners.machine import usable_cores

    room = usable_cores() // (manner.threads or 1)
    return room if room > 1 and any(plan.scene.goal.long_jobs for plan in plans.values()) else None


def require_study(config: AuditConfig, name: str) -> studies.Study:
    study = study_of(config)
    if study is None:
        raise UsageError(f"{name}: its configuration names no study yet, so nothing would be compared")
    return study
