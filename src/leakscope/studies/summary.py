"""What held of each paper, what did not, and how sure that is: a line in the README, a section of the results."""

from __future__ import annotations

from pathlib import Path

from leakscope.core.escaping import markup_free
from leakscope.core.words import Ruled
from leakscope.studies.markdown import interval, table
from leakscope.studies.published import PAPERS, Paper, paper
from leakscope.studies.records import Decided, Part
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
    return named[0], named[1], f"{len(unsure)}{_doubted(unsure)}", _how_sure(parts, claims)


def _doubted(unsure: list[Decided]) -> str:
    doubts = sum(bool(claim.doubts) for claim in unsure)
    return f", {doubts} for a doubt" if doubts else ""


def _how_sure(parts: list[Part], claims: list[Decided]) -> str:
    seeds = sorted({len(part.origin.seeds) for part in parts})
    victims = sorted({part.origin.victims for part in parts})
    decided = sum(claim.verdict is not Ruled.CANNOT_TELL for claim in claims)
    return (
        f"{len(parts)} data set{'s' if len(parts) > 1 else ''}, "
        f"{_range(seeds)} seed{'' if seeds == [1] else 's'}, {_range(victims)} victims; "
        f"{decided / len(claims):.0%} decided at 95 %, corrected for all claims of a page"
    )


def _range(values: list[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


#: Claims of one verdict that the index spells out; the page has all.
SPELT_OUT = 6


def results_index(results: Path) -> str:
    """A section for each paper: what held, what did not, how sure, and one picture; links are from `results`."""
    return "\n\n".join(_section(found, read_page(results / found.study)) for found in map(paper, PAPERS))


def _section(found: Paper, parts: list[Part]) -> str:
    lines = [f"## {found.short}"]
    claims = [(part, claim) for part in parts for claim in part.claims]
    if not claims:
        return "\n\n".join([*lines, f"Not run under the present rules: [how to run it]({found.study}.md)."])
    lines.append(f"**How sure:** {_how_sure(parts, [claim for _, claim in claims])}. [The page]({found.study}.md).")
    for verdict, heading in ((Ruled.HOLDS, "Held"), (Ruled.DOES_NOT_HOLD, "Did not hold")):
        own = [pair for pair in claims if pair[1].verdict is verdict]
        more = [f"- and {len(own) - SPELT_OUT} more"] if len(own) > SPELT_OUT else []
        listed = [_claim(*pair) for pair in own[:SPELT_OUT]] + more
        lines += [f"**{heading}: {len(own)}**", *(["\n".join(listed)] if listed else [])]
    unsure = [claim for _, claim in claims if claim.verdict is Ruled.CANNOT_TELL]
    lines.append(f"**Cannot tell: {len(unsure)}**{_doubted(unsure)}")
    return "\n\n".join([*lines, *_picture(found, parts)])


def _claim(part: Part, claim: Decided) -> str:
    effect = "" if claim.effect is None else f": {interval(claim.effect)}"
    return f"- {markup_free(claim.statement)} ({part.part}{effect})"


def _picture(found: Paper, parts: list[Part]) -> list[str]:
    """The first picture of the part that decides most."""
    drawn = [part for part in parts if part.pictures]
    if not drawn:
        return []
    part = max(drawn, key=lambda own: sum(claim.verdict is not Ruled.CANNOT_TELL for claim in own.claims))
    picture = part.pictures[0]
    return [f"![{found.short}, {part.part}: {markup_free(picture.caption)}]({found.study}/{part.part}-{picture.name})"]
