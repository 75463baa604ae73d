"""`leakscope reproduce`: a published table through our code, and whether what it claims holds here."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from leakscope.options import (
    RUN,
    DataRoot,
    Device,
    DryRun,
    Json,
    Quiet,
    ReproductionScale,
    Set,
    StorePath,
    Threads,
    Workers,
    option,
)


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A published table; without one they are listed.")] = None,
    scale: Annotated[
        ReproductionScale, option("--scale", help="small: two cores, about an hour; paper: its own sizes.", panel=RUN)
    ] = ReproductionScale.small,
    data_root: DataRoot = None,
    set_: Set = None,
    device: Device = "auto",
    store: StorePath = Path("runs/store"),
    out: Annotated[Path | None, option("--out", help="Folder for the reports.  [runs/NAME]", panel=RUN)] = None,
    json_: Json = False,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    threads: Threads = None,
    workers: Workers = None,
) -> int:
    """Run a published protocol through our code: published, obtained, interval, and whether each claim holds.

    What the store already holds is not computed again.

    Examples:

      leakscope reproduce

      leakscope reproduce peel-table2 --data-root ../shared/data --workers 2
    """
    from leakscope.studies.reproductions import compared, reproduction, reproductions

    if name is None:
        for entry in reproductions().values():
            typer.echo(f"{entry.name:15} {entry.what} ({entry.source})")
        return 0
    entry = reproduction(name)
    path, wanted = entry.protocol(scale.value)

    from leakscope.commands.audits import Manner, require_study, run_plans
    from leakscope.commands.settings import settings_of, show_plans, work_at
    from leakscope.experiments.config import AuditConfig
    from leakscope.experiments.plan import make_plans

    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    configs = AuditConfig.read_all(path, settings_of({"data_root": data_root}, set_), wanted)
    first = next(iter(configs.values()))
    study = require_study(first, name)
    plans = make_plans(configs)
    if dry_run:
        return show_plans(plans, json_)
    out = out or Path("runs") / name
    results = first.results if first.results is not None and first.results.parent.is_dir() else out
    command = shlex.join(["leakscope", *sys.argv[1:]])
    manner = Manner(command, quiet=quiet or json_, silent=True, workers=workers, threads=threads)
    run_plans(plans, work_at(store, device), out, manner, study, results)
    figures = json.loads((results / study.kind_name / f"{study.part}.json").read_text(encoding="utf-8"))
    claims = [claim for claim in figures.get("claims", []) if claim["text"].startswith(entry.claims)]
    rows = compared(entry, figures)
    if json_:
        told = {"name": name, "scale": scale.value, "source": entry.source, "claims": claims}
        sys.stdout.write(json.dumps({**told, "figures": [row.as_dict() for row in rows]}, indent=1) + "\n")
    else:
        print_reproduction(entry, scale.value, rows, claims)
    return 0


def print_reproduction(entry: Any, scale: str, rows: list[Any], claims: list[dict[str, str]]) -> None:
    """Published beside obtained, then claim by claim what came out."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(f"{entry.name} at scale {scale}: {entry.what}\n{entry.source}", markup=False)
    if rows:
        table = Table(box=None, pad_edge=False)
        for column in ("figure", "published", "obtained", "95 % interval"):
            table.add_column(column, justify="left" if column == "figure" else "right")
        for row in rows:
            interval = "" if row.low is None or row.high is None else f"{row.low:.3g} to {row.high:.3g}"
            obtained = "not run" if row.obtained is None else f"{row.obtained:.4g}"
            table.add_row(row.what, f"{row.published:.4g}", obtained, interval)
        console.print(table)
    else:
        console.print("No published figures are on file for it; its claims are.")
    for claim in claims:
        console.print(f"{claim['outcome']:13}  {claim['text']}: {claim['because']}", markup=False, soft_wrap=True)
    if not claims:
        console.print("cannot tell: the study names no claim.")
