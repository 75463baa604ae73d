"""An audit in a notebook: verdict, one row per target and the worst pictures as plain HTML, and the trade-off drawn."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from leakscope.core.reports import AuditReport
from leakscope.core.words import VERDICTS
from leakscope.report import words
from leakscope.report.flags import causes
from leakscope.report.numbers import interval, number, percent
from leakscope.report.pictures import Pair, galleries
from leakscope.report.targets import Target, is_known, known_leak, short_names, targets_of

#: Pictures are shown at least this high.
_SIDE = 56
_PAGE = Markup("<div><h3>{}</h3><p>{}</p><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table><p>{}</p></div>")


def notebook_html(report: AuditReport, pictures: Mapping[str, NDArray[np.uint8]]) -> str:
    """Without style or script; whatever the audit says is escaped, for a notebook runs what it shows."""
    names, shown, targets = short_names(report.results), galleries(report, pictures), targets_of(report)
    head = ("Target", words.capital(_use(targets)), "Leak", "Interval", "Worst", "Strongest attack", "Worst picture")
    rows = [_row(t, names, shown.worst(t.strongest.key) if t.strongest else None) for t in targets]
    flags = ", ".join(group.id for group in causes(report))
    return str(
        _PAGE.format(
            f"{VERDICTS[report.verdict][0]}, evidence {report.evidence.level}",
            report.sentence,
            Markup("").join(Markup("<th>{}</th>").format(name) for name in head),
            Markup("").join(rows),
            f"Flags: {flags}" if flags else "No flags.",
        )
    )


def trade_off(report: AuditReport) -> Any:
    """Leak of the strongest attack against accuracy, one mark per target, as a matplotlib figure."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        """A figure that notebooks show without pyplot, which would show it twice."""

        def _repr_png_(self) -> bytes:
            content = BytesIO()
            self.savefig(content, format="png", dpi=90)
            return content.getvalue()

    figure = Shown(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    targets = targets_of(report)
    for target in targets:
        leak, useful = known_leak(target.leak), target.record.accuracy
        # Where no use was measured, targets stand side by side.
        x = useful if useful is not None and is_known(useful) else target.number / (len(targets) + 1)
        if leak is not None:
            ends = [[leak.mean - leak.low], [leak.high - leak.mean]]
            axes.errorbar([x], [leak.mean], yerr=np.abs(ends), fmt="o", capsize=3, label=target.name)
    if report.gate is not None and report.gate.metric == "leak":
        axes.axhline(report.gate.limit, color="tab:red", linewidth=1, label=f"limit {report.gate.limit:g}")
    axes.set_xlabel(words.capital(_use(targets)))
    axes.set_ylabel("Leak of the strongest attack")
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), max(1.0, axes.get_ylim()[1]))
    if targets:
        axes.legend(fontsize="small")
    return figure


def _use(targets: list[Target]) -> str:
    return next((target.record.use for target in targets), "accuracy")


def _row(target: Target, names: Mapping[str, str], worst: Pair | None) -> Markup:
    leak = target.leak
    cells = (
        target.name,
        percent(target.record.accuracy),
        number(None if leak is None else leak.mean),
        "" if leak is None else interval(leak),
        number(None if leak is None else leak.worst),
        names[target.strongest.attack.label] if target.strongest else "",
        "" if worst is None else _pair(worst),
    )
    return Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(cell) for cell in cells))


def _pair(pair: Pair) -> Markup:
    high = max(pair.height, _SIDE)
    image = Markup('<img src="{}" height="{}" alt="{}" style="display:inline;image-rendering:pixelated">')
    return image.format(pair.truth, high, "original") + image.format(pair.guess, high, "rebuilt")
