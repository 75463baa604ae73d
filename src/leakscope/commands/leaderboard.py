"""`leakscope report --group`: a leaderboard of everything a store holds. No torch is imported."""

from __future__ import annotations

from pathlib import Path

from leakscope.core.errors import UsageError
from leakscope.experiments.reading import read_entries
from leakscope.report.leaderboard import Group, sections
from leakscope.report.leaderboard_page import leaderboard_page
from leakscope.report.leaderboard_text import leaderboard_csv, leaderboard_latex, leaderboard_markdown, record_links
from leakscope.report.results import Entry, choose, parse_filters
from leakscope.store import Store

_TEXTS = {"md": leaderboard_markdown, "tex": leaderboard_latex, "csv": leaderboard_csv}


def write_leaderboard(
    store: Path, group: Group, metric: str, filters: list[str], form: str, out: Path | None
) -> Path | str:
    """The path of the written file, or the text itself if no path was given."""
    wanted = parse_filters(filters)
    kept = Store.existing(store)
    entries = [Entry(finding.target, finding.result) for finding in read_entries(kept)]
    found = choose(entries, metric, wanted)
    if not found.entries:
        raise UsageError(f"no result of {store} matches; run `leakscope bench` or `audit`, or widen --filter")
    tables = sections(found, group)
    if form == "html":
        out = out or Path("runs/leaderboard.html")
        text = leaderboard_page(found, tables, kept, out, group)
    else:
        text = _TEXTS[form](found, tables, record_links(kept, out), group)
        if out is None:
            return text
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}; choose another file with --out") from None
    return out
