"""The page of a study, from its JSON alone: question, set-up, a plot, a table, verdicts, limits; the rest folded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leakscope.core.escaping import markdown_code
from leakscope.core.words import FlagId, Ruled
from leakscope.studies.markdown import cell, folded, table
from leakscope.studies.published import Paper
from leakscope.studies.records import Beside, Decided, Part, Row

#: Metrics of the main table, as (metric, header).
Columns = tuple[tuple[str, str], ...]
HOW_TO_READ = (
    "*Leak* is the share of what the label leaves open that was recovered (0: nothing, 1: all). Every figure is that "
    "of the strongest attack on each victim; `[a, b]` is a 95 % interval over seeds and victims. A claim is decided "
    "by one judge for all papers: its effect must pass the smallest one that counts, corrected for the number of "
    "claims of this page (Holm), and any doubt about the strongest attack of either side makes *cannot tell*."
)


def draw(title: str, question: str, columns: Columns, parts: Sequence[Part], papers: Sequence[Paper]) -> str:
    """The whole page."""
    blocks = [f"# {title}", question, HOW_TO_READ]
    for part in parts:
        blocks += _part(part, columns, papers)
    blocks.append("Published figures: " + "; ".join(paper.source for paper in papers) + ".")
    return "\n\n".join(blocks) + "\n"


def _part(part: Part, columns: Columns, papers: Sequence[Paper]) -> Iterable[str]:
    yield f"## {part.part}"
    yield "\n".join(f"- {line}" for line in part.setup)
    if part.note:
        yield part.note
    shown = part.pictures[:1]
    yield from (f"![{picture.caption}]({part.study}/{part.part}-{picture.name})" for picture in shown)
    yield _rows(part.rows, columns)
    yield "### Verdicts"
    yield counted(part.claims)
    if part.claims:
        yield verdicts(part.claims)
    yield "### Limits"
    yield "\n".join(f"- {line}" for line in _limits(part))
    if any(row.obtained is not None for row in part.published):
        yield folded("Published figures beside ours", _published(part.published, papers))
    yield folded("Every attack on every target", _attacks(part.rows))
    for extra in part.tables:
        text = table(extra.header, extra.rows)
        yield folded(extra.title, f"{extra.note}\n\n{text}" if extra.note else text)
    for picture in part.pictures[1:]:
        yield folded(picture.caption, f"![{picture.caption}]({part.study}/{part.part}-{picture.name})")
    if part.not_asked:
        yield folded("Claims that are not asked here", "\n".join(f"- {statement}" for statement in part.not_asked))
    yield folded(
        "Every setting that differs from its default", "\n".join(f"- `{markdown_code(x)}`" for x in part.origin.unusual)
    )
    yield origin_line(part)


def counted(claims: Sequence[Decided]) -> str:
    """`Of 18 claims 4 held, 2 did not, and 12 could not be told.`"""
    held, failed, open_ = (sum(claim.verdict is verdict for claim in claims) for verdict in Ruled)
    return f"Of {len(claims)} claims {held} held, {failed} did not, and {open_} could not be told."


def verdicts(claims: Sequence[Decided]) -> str:
    """Claim by claim, what came out."""
    return table(
        ("The paper says", "Here", "Because"),
        ((claim.statement, f"**{claim.verdict.value}**", claim.reason) for claim in claims),
    )


def name_of(row: Row) -> str:
    """How a row is called: its variant, where there are several, its defence, and when it was stopped."""
    name = row.defense.label if row.stop is None else f"{row.defense.label}, epoch {row.stop}"
    return f"{row.variant}: {name}" if row.variant else name


def _rows(rows: Sequence[Row], columns: Columns) -> str:
    known = [(metric, header) for metric, header in columns if any(metric in row.worst_case for row in rows)]
    return table(
        ("Target", "Accuracy", *(header for _, header in known), "Most exposed", "Strongest", "Doubts"),
        (
            (
                name_of(row), row.accuracy if row.trained else "untrained",
                *(row.worst_case.get(metric) for metric, _ in known), row.most_exposed,
                ", ".join(dict.fromkeys(row.strongest)), ", ".join(row.doubts) or "none",
            )
            for row in rows
        ),
    )  # fmt: skip


def _attacks(rows: Sequence[Row]) -> str:
    metrics = list(dict.fromkeys(name for row in rows for attack in row.attacks for name in attack.metrics))
    return table(
        ("Target", "Attack", *metrics, "CPU s per victim", "Flags"),
        (
            (
                name_of(row), attack.attack.label, *(attack.metrics.get(name) for name in metrics),
                attack.cpu_seconds, ", ".join(attack.flags) or "none",
            )
            for row in rows
            for attack in row.attacks
        ),
    )  # fmt: skip


def _published(figures: Sequence[Beside], papers: Sequence[Paper]) -> str:
    run = {row.table for row in figures if row.obtained is not None}
    notes = dict.fromkeys(
        note for paper in papers for note in (paper.note, *(own.note for own in paper.tables if own.id in run)) if note
    )
    figures = [row for row in figures if row.table in run]
    rows = (
        (
            row.table, row.row, row.metric,
            cell(row.published) + (f" ± {cell(row.deviation)}" if row.deviation is not None else ""),
            row.obtained, row.verdict,
        )
        for row in figures
    )  # fmt: skip
    text = table(("Table", "Row", "Figure", "Published", "Here", "Same?"), rows)
    return "\n\n".join([*notes, text])


def _limits(part: Part) -> Iterable[str]:
    yield from part.limits
    collapsed = FlagId.ACCURACY_COLLAPSED.value
    doubtful = [row for row in part.rows if set(row.doubts) - {collapsed}]
    if doubtful:
        found = f"{len(doubtful)} of {len(part.rows)} targets"
        yield f"The strongest attack is in doubt on {found}; what it rebuilt there is a lower bound."
    useless = [row for row in part.rows if set(row.doubts) == {collapsed}]
    if useless:
        yield (
            f"{len(useless)} of {len(part.rows)} targets are much less accurate than the undefended one: what they "
            "keep to themselves counts only in comparisons at equal accuracy."
        )
    failed = [
        f"{kind} ({variant or 'all'})"
        for variant, controls in part.origin.controls.items()
        for kind, passed in controls.items()
        if passed is False
    ]
    if failed:
        yield f"Controls not passed: {', '.join(failed)}."
    if part.not_asked:
        yield f"{len(part.not_asked)} claims are not asked here, because one side was not run; they are listed below."
    seeds = len(part.origin.seeds)
    yield f"{part.origin.victims} victims, {seeds} seed{'' if seeds == 1 else 's'}, one data set, one size of network."


def origin_line(part: Part) -> str:
    """Where a page's figures come from."""
    origin = part.origin
    versions = ", ".join(f"{name} {value}" for name, value in origin.versions.items())
    floors = ", ".join(f"{name} {cell(value)}" for name, value in origin.floors.items())
    outcome = ", ".join(f"{variant or 'audit'} {verdict}" for variant, verdict in origin.verdicts.items())
    return (
        f"Generated by `{markdown_code(origin.command)}` on {origin.created} ({versions}). Seeds "
        f"{', '.join(map(str, origin.seeds))}; {origin.victims} victims; attacks {origin.cpu_hours:.2f} CPU hours, "
        f"training {origin.training_hours:.2f} hours by the clock. Leak without looking: "
        f"{floors or 'none'}. Audits: {outcome}."
    )
