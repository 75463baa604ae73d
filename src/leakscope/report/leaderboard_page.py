"""The leaderboard as one HTML file: sorting and filtering by a script of its own, no network, no server."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from leakscope.report import templating
from leakscope.report.estimates import Estimate
from leakscope.report.families import LEVELS
from leakscope.report.leaderboard import DOUBT, Cell, Section, command
from leakscope.report.numbers import number, percent
from leakscope.report.plot import Mark, Scatter, scatter
from leakscope.report.results import Entry, Results
from leakscope.report.strips import SCORES, data_uri, originals, png, rebuilt
from leakscope.store import Store

#: Results whose pictures the page carries, and at most so many bytes of them; the others are one command away.
PICTURED, PICTURE_BYTES = 200, 6_000_000


def leaderboard_page(found: Results, tables: Sequence[Section], store: Store, out: Path, group: str) -> str:
    """The whole page; `out` is where it will lie, for links into the store."""
    environment = templating.environment()
    environment.filters.update(number=number, percent=percent, spread=spread)
    style = "\n".join(templating.source(name) for name in ("report.css", "leaderboard.css"))
    script = templating.source("leaderboard.js")
    return environment.get_template("leaderboard.html").render(
        found=found,
        tables=tables,
        group=group,
        levels=LEVELS,
        doubt=DOUBT,
        plots=[plotted(table) if found.metric == "leak" else None for table in tables],
        names={
            name: sorted({t.place[name] for t in tables if name in t.place}) for name in ("data", "model", "threat")
        },
        style=Markup(style),  # noqa: S704 (our own files, hashed into the page's policy)
        script=Markup(script),  # noqa: S704
        style_hash=templating.policy_hash(style),
        script_hash=templating.policy_hash(script),
        data=Markup(_embedded(_facts(found, tables, store, out))),  # noqa: S704 (escaped there)
    )


def spread(value: Estimate) -> str:
    """`± half`, or why there is none."""
    return "too few seeds" if value.half is None else f"±\u00a0{number(value.half)}"


def plotted(section: Section) -> Scatter | None:
    """Leak against accuracy of all rows that have both; numbers are those of the rows."""
    marks = []
    for place, row in enumerate(section.rows, start=1):
        leak = row.strongest.value
        if row.accuracy is not None and math.isfinite(leak.mean) and math.isfinite(row.accuracy.mean):
            half = leak.half or 0.0
            ends = leak.mean - half, leak.mean + half
            marks.append(Mark(place, row.name, row.accuracy.mean, leak.mean, *ends, doubtful=not row.ranked))
    return scatter(marks, None)


def _embedded(value: object) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def cells_of(section: Section) -> Iterator[Cell]:
    for row in section.rows:
        yield row.strongest
        yield from row.attacks.values()


def _facts(found: Results, tables: Sequence[Section], store: Store, out: Path) -> dict[str, Any]:
    """What the panel of a cell shows: results by cell, each with its key, figures, command and pictures."""
    prefixes: dict[str, int] = {}  # a grid has thousands of results and few of these
    cells: dict[int, Any] = {}
    for section in tables:
        for cell in cells_of(section):
            first = cell.entries[0]
            whole = command(first, seed=False)
            prefix = first.result.command or ""
            tail = None if whole is None else whole[len(prefix) :]
            cells[cell.number] = [
                f"{first.result.attack.label} on {first.target.defense.label}",
                prefixes.setdefault(prefix, len(prefixes)),
                tail,
                [_line(entry, found) for entry in cell.entries],
            ]
    pictures, truths = _pictures(tables, store)
    home = os.path.relpath(store.root.resolve(), out.resolve().parent)
    return {
        "records": quote(f"{Path(home).as_posix()}/entries/{SCORES}", errors="backslashreplace"),
        "root": str(store.root),
        "commands": list(prefixes),
        "cells": cells,
        "pictures": pictures,
        "truths": truths,
    }


def _line(entry: Entry, found: Results) -> list[Any]:
    score = found.score(entry)
    figures = [_short(value) for value in (score.mean, score.low, score.high, score.worst)]
    flags = sorted({str(flag.id) for flag in entry.result.flags})
    return [entry.result.key, entry.result.seed, *figures, flags]


def _short(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _pictures(tables: Sequence[Section], store: Store) -> tuple[dict[str, str], dict[str, str]]:
    """Strips of the strongest attacks, then of the others, while there is room; originals by result."""
    order = [row.strongest for table in tables for row in table.rows]
    order += [cell for table in tables for row in table.rows for cell in row.attacks.values()]
    pictures: dict[str, str] = {}
    truths: dict[str, str] = {}
    drawn: dict[str, str | None] = {}
    room, tried = PICTURE_BYTES, 0
    for cell in order:
        result = cell.entries[0].result
        if result.key in pictures:
            continue
        if tried >= PICTURED or room <= 0:
            break
        tried += 1
        strip = rebuilt(store, result)
        if strip is None:
            continue
        pictures[result.key] = data_uri(png([strip]))
        room -= len(pictures[result.key])
        if result.victims not in drawn:
            truth = originals(store, result.victims)
            drawn[result.victims] = None if truth is None else data_uri(png([truth]))
        if (uri := drawn[result.victims]) is not None:
            truths[result.key] = result.victims
            pictures.setdefault(result.victims, uri)
    return pictures, truths
