"""One line per paper: what held, what did not, and how sure that is."""

from __future__ import annotations

from pathlib import Path

from leakscope.core.words import Ruled
from leakscope.studies.markdown import table
from leakscope.studies.published import PAPERS, paper
from leakscope.studies.records import Part
from leakscope.studies.study import read_page


def claims_table(results: Path) -> str:
    """The README's table of claims, from `results/STUDY/*.json`; a paper without figures says so."""
    rows = []
    for name in PAPERS:
        found = paper(name)
        parts = read_page(results / found.study)
        rows.append((f"[{found.short}](docs/results/{found.study}.md)", *_line(parts)))
    return table(("Paper", "Holds", "Does not hold", "Cannot tell", "How sure"), rows)


def _line(parts: list[Part]) -> tuple[str, str, str, str]:
    claims = [claim for part in parts for claim in part.claims]
    if not claims:
        return "–", "–", "–", "to be run again"
    held, failed, unsure = ([claim for claim in claims if claim.verdict is verdict] for verdict in Ruled)
    named = [
        f"{len(own)}" + (f": {own[0].statement}" + (" and others" if len(own) > 1 else "") if own else "")
        for own in (held, failed)
    ]
    doubts = sum(bool(claim.doubts) for claim in unsure)
    seeds = sorted({len(part.origin.seeds) for part in parts})
    victims = sorted({part.origin.victims for part in parts})
    sure = (
        f"{len(parts)} data set{'s' if len(parts) > 1 else ''}, {_range(seeds)} seeds, {_range(victims)} victims; "
        f"{(len(held) + len(failed)) / len(claims):.0%} decided at 95 %, corrected for all claims of a page"
    )
    return named[0], named[1], f"{len(unsure)}" + (f", {doubts} for a doubt" if doubts else ""), sure


def _range(values: list[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
