"""`leakscope reproduce`: a published table through our code, and whether what it claims holds here."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.commands.settings import say
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

if TYPE_CHECKING:
    from leakscope.studies.records import Part
    from leakscope.studies.reproductions import Reproduction


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A published table; without one they are listed.")] = None,
    list_: Annotated[
        bool, option("--list", help="Every table and figure of the papers: covered, or why not.", panel=RUN)
    ] = False,
    scale: Annotated[
        ReproductionScale | None,
        option(
            "--scale",
            help="small: a rehearsal; trial: what our pages show; paper: its own sizes.  [trial, where there is one]",
            panel=RUN,
        ),
    ] = None,
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

      leakscope reproduce --list

      leakscope reproduce peel-table2 --data-root ../shared/data --workers 2
    """
    from leakscope.studies.reproductions import reproduction

    if list_ or name is None:
        return print_coverage(json_) if list_ else print_names()
    entry = reproduction(name)
    size = scale.value if scale is not None else entry.usual_scale
    path, wanted = entry.protocol(name, size)

    from leakscope.commands.audits import Manner, require_study, run_plans
    from leakscope.commands.settings import settings_of, show_plans, use_threads, work_at
    from leakscope.experiments.config import AuditConfig
    from leakscope.experiments.plan import make_plans
    from leakscope.studies.study import part_name, read_page

    use_threads(threads, workers)
    configs = AuditConfig.read_all(path, settings_of({"data_root": data_root}, set_), wanted)
    first = next(iter(configs.values()))
    study = require_study(first, name)
    plans = make_plans(configs)
    if dry_run:
        return show_plans(plans, json_, store, device)
    out = out or Path("runs") / name
    results = first.results if first.results is not None and first.results.parent.is_dir() else out
    command = shlex.join(["leakscope", *sys.argv[1:]])
    manner = Manner(command, quiet=quiet or json_, silent=True, workers=workers, threads=threads)
    run_plans(plans, work_at(store, device), out, manner, study, results)
    wanted_part = part_name(study, next(iter(plans.values())))
    part = next(part for part in read_page(results / study.kind_name) if part.part == wanted_part)
    return print_part(name, entry, size, part, json_)


def print_part(name: str, entry: Reproduction, scale: str, part: Part, json_: bool) -> int:
    """What came out, for people or for programs."""
    from leakscope.commands.settings import print_json
    from leakscope.core.results import to_json

    if json_:
        figures, claims = ([to_json(each) for each in own] for own in (entry.rows(part), part.claims))
        print_json({"name": name, "scale": scale, "source": entry.source, "figures": figures, "claims": claims})
    else:
        print_reproduction(name, entry, scale, part)
    return 0


def print_names() -> int:
    """Every reproduction with its tables."""
    from leakscope.studies.reproductions import listed

    for name, entry in listed().reproductions.items():
        say(f"{name:20} {', '.join(entry.tables)}: {entry.what} ({entry.source})")
    return 0


def print_coverage(json_: bool) -> int:
    """Every table and figure of every paper: where it is looked at, or why it is not."""
    from leakscope.commands.settings import print_json
    from leakscope.studies.published import PAPERS, paper
    from leakscope.studies.reproductions import coverage

    found = {name: list(coverage(name)) for name in PAPERS}
    if json_:
        print_json({name: {each.number: vars(each) for each in own} for name, own in found.items()})
        return 0
    for name, own in found.items():
        told = f"{sum(each.covered for each in own)} of {len(own)} covered"
        say(f"{paper(name).short}: {told} ({paper(name).source})")
        for each in own:
            say(f"  {each.number:12} {'covered    ' if each.covered else 'not covered'}  {each.told}")
    return 0


def print_reproduction(name: str, entry: Reproduction, scale: str, part: Part) -> None:
    """Published beside obtained with a verdict on each row, then claim by claim what came out."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from leakscope.core.escaping import terminal
    from leakscope.core.words import Ruled

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(Text(terminal(f"{name} at scale {scale}: {entry.what}\n{entry.source}")))
    rows = entry.rows(part)
    if rows:
        table = Table(box=None, pad_edge=False)
        for column in ("table", "row", "figure", "published", "obtained", "95 % interval", "same?"):
            table.add_column(column, justify="right" if column in {"published", "obtained"} else "left")
        for row in rows:
            found = row.obtained
            known = found is not None and found.low is not None and found.high is not None
            interval = f"{found.low:.3g} to {found.high:.3g}" if found is not None and known else ""
            obtained = "not run" if found is None else f"{found.value:.4g}"
            cells = (row.table, row.row, row.metric, f"{row.published:.4g}", obtained, interval, row.verdict)
            table.add_row(*(Text(terminal(cell)) for cell in cells))
        console.print(table)
    else:
        console.print("No published figures of these tables are about these data; its claims are judged.")
    for claim in part.claims:
        told = f"{claim.verdict.value:13}  {claim.statement}: {claim.reason}"
        console.print(Text(terminal(told)), soft_wrap=True)
    if not part.claims:
        console.print(f"{Ruled.CANNOT_TELL}: of every claim one side was not run.")
