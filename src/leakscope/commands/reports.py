"""`leakscope report` and `leakscope blind`: pages from what was measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from leakscope.commands.settings import say
from leakscope.core.errors import UsageError
from leakscope.core.escaping import terminal
from leakscope.options import BOARD, Format, GroupName, Quiet, StorePath, option


def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `audit --out` wrote.")] = Path("runs/audit"),
    group: Annotated[
        GroupName | None, option("--group", help="A leaderboard of the whole store: what its rows are.", panel=BOARD)
    ] = None,
    metric: Annotated[str, option("--metric", help="What is compared.", panel=BOARD)] = "leak",
    filter_: Annotated[
        list[str] | None, option("--filter", help="data=mnist5k, defense=gaussian* …; repeat.", panel=BOARD)
    ] = None,
    form: Annotated[Format, option("--format", help="How it is written.", panel=BOARD)] = Format.html,
    out: Annotated[
        Path | None,
        option("--out", help="File.  [runs/leaderboard.html; other formats are printed]", panel=BOARD),
    ] = None,
    store: StorePath = Path("runs/store"),
    quiet: Quiet = False,
) -> int:
    """Draw a finished audit's folder again, or, with --group, a leaderboard of everything in the store.

    Examples:

      leakscope report runs/audit

      leakscope report --group defense --filter data=mnist5k --out board.html

      leakscope report --group defense --format tex > table.tex
    """
    if group is not None:
        from leakscope.commands.leaderboard import write_leaderboard

        written = write_leaderboard(store, group.value, metric, filter_ or [], form.value, out)
        if isinstance(written, str):
            sys.stdout.write(terminal(written))
        elif not quiet:
            say(str(written))
        return 0
    if filter_ or out is not None or form is not Format.html or metric != "leak":
        raise UsageError("--filter, --metric, --format and --out belong to a leaderboard; add --group defense")
    from leakscope.report import write

    for path in write(folder):
        if not quiet:
            say(str(path))
    return 0


def blind(
    folder: Annotated[Path, typer.Argument(help="A folder that `attack --out` wrote.")],
    first: Annotated[str | None, typer.Argument(help="A result's key, or its first digits.")] = None,
    second: Annotated[str | None, typer.Argument(help="Another.")] = None,
    answers: Annotated[Path | None, typer.Option("--answers", help="Count the answers that the page saved.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Which order.")] = 0,
) -> int:
    """Ask people: a page that shows a real photo and two reconstructions in random order, and saves choices.

    Examples:

      leakscope attack configs/faces_toy.yaml --out runs/faces; leakscope blind runs/faces 3f2a 9c41

      leakscope blind runs/faces --answers answers.json
    """
    from leakscope.report.blind import score_blind, write_blind

    if answers is not None:
        found = score_blind(folder / "blind-key.json", answers)
        say(
            f"{found.first} was chosen over {found.second} in {found.chosen} of {found.answers} "
            f"({found.share:.0%}, 95 % interval {found.low:.0%} to {found.high:.0%})"
        )
        return 0
    if first is None or second is None:
        raise UsageError("name two results to compare by the beginnings of their keys, or give --answers")
    for path in write_blind(folder, first, second, folder, seed=seed):
        say(str(path))
    return 0
