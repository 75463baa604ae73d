"""The leaderboard for papers, wikis and spreadsheets: Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from leakscope.core.errors import one_line
from leakscope.core.escaping import markdown as _text
from leakscope.core.escaping import markdown_code
from leakscope.report.estimates import Estimate
from leakscope.report.families import LEVELS, Family
from leakscope.report.leaderboard import DOUBT, Cell, Row, Section, command
from leakscope.report.numbers import NOTHING, number, percent
from leakscope.report.results import Results
from leakscope.report.strips import record_path
from leakscope.store import Store

Link = Callable[[str], str]  # key of a result → where its record lies


def record_links(store: Store, out: Path | None) -> Link:
    """Links from the file at `out`, or from the working folder, into the store."""
    start = Path.cwd() if out is None else out.resolve().parent
    root = Path(os.path.relpath(store.root.resolve(), start)).as_posix()
    return lambda key: quote(f"{root}/{record_path(key)}", errors="backslashreplace")


def _written(value: Estimate, doubtful: bool = False) -> str:
    sign = DOUBT if doubtful else ""
    spread = "" if value.half is None else f" ± {number(value.half)}"
    return f"{number(value.mean)}{sign}{spread}"


def _name(row: Row) -> str:
    return f"{row.name} {DOUBT}" if row.doubtful else row.name


def _remarks(section: Section) -> list[str]:
    """What must be known beside the table: doubts, unlike attacks, too few seeds."""
    told = [section.like_with_like] if section.like_with_like else []
    told += [f"{row.name}: {row.note}." for row in section.rows if row.note]
    told += [f"{DOUBT} {row.name}: {doubt.text}" for row in section.rows for doubt in row.doubts]
    few = [row.name for row in section.rows if row.strongest.value.half is None]
    if section.few_seeds:
        told.append("Too few seeds for an interval.")
    elif few:
        told.append(f"Too few seeds for an interval: {', '.join(few)}.")
    return told


def _level(level: float) -> str:
    return f"{100 * level:.0f} point{'' if level == 0.01 else 's'}"


def leaderboard_markdown(found: Results, tables: Sequence[Section], link: Link, group: str) -> str:
    """One table per setting; a cell leads to its results, pictures and command at the foot of its table."""
    blocks = [f"# Leaderboard: {_text(found.metric)} by {group}", _reading(found)]
    for section in tables:
        blocks += [f"## {_text(section.title)}", f"Threat model: {_text(section.threat)}. "
                   f"{section.victims} victims. Setting `{section.setting}`."]  # fmt: skip
        header = [group, "accuracy", "strongest attack", "worst picture", *map(_text, section.attacks), "front"]
        lines = [_line(header), _line(["---"] * len(header))]
        lines += [_line(_markdown_row(row, section)) for row in section.rows]
        blocks.append("\n".join(lines))
        if remarks := _remarks(section):
            blocks.append("\n".join(f"- {_text(remark)}" for remark in remarks))
        if section.families:
            header = ["family", "settings", *(f"{_level(level)} below the twin" for level in LEVELS)]
            lines = [_line(header), _line(["---"] * len(header))]
            lines += [
                _line([_text(_family(f)), str(f.settings), *_matched(f, "**{}**".format)]) for f in section.families
            ]
            blocks += [f"{_text(found.metric)} of the strongest attack where a defence costs equally much accuracy:",
                       "\n".join(lines)]  # fmt: skip
        cells = [cell for row in section.rows for cell in (row.strongest, *row.attacks.values())]
        blocks.append("<details><summary>Results, pictures, commands</summary>\n\n"
                      + "\n".join(_footnote(cell, link) for cell in cells) + "\n\n</details>")  # fmt: skip
    return "\n\n".join(blocks) + "\n"


def _reading(found: Results) -> str:
    return (
        f"Mean over seeds ± 95 % interval (Student). **Bold**: less leakage than every other row that is not in doubt, "
        f"where the interval of the differences, seed by seed, excludes a tie. More was given away where "
        f"{_text(found.metric)} is {found.more_leak}. ◆: no other row has both more accuracy and less leakage. "
        f"{DOUBT}: in doubt, may leak more; such a row stands below the others, and is neither bold nor ◆."
    )


def _line(entries: Sequence[str]) -> str:
    return "| " + " | ".join(entries) + " |"


def _markdown_row(row: Row, section: Section) -> list[str]:
    def shown(cell: Cell | None) -> str:
        if cell is None:
            return NOTHING
        text = f"[{_written(cell.value, cell.doubtful)}](#cell-{cell.number})"
        return f"**{text}**" if cell.best else text

    return [
        _text(_name(row)),
        NOTHING if row.accuracy is None else _accuracy(row.accuracy),
        shown(row.strongest),
        number(row.strongest.worst),
        *(shown(row.attacks.get(attack)) for attack in section.attacks),
        "◆" if row.on_front else "",
    ]


def _accuracy(value: Estimate) -> str:
    return percent(value.mean) if value.half is None else f"{percent(value.mean)} ± {100 * value.half:.1f}"


def _family(family: Family) -> str:
    return f"{family.name} {DOUBT}" if family.doubtful else family.name


def _matched(family: Family, bold: Callable[[str], str]) -> list[str]:
    entries = []
    for level in LEVELS:
        found = family.matched[level]
        entries.append(NOTHING if found is None else bold(_written(found[0])) if found[1] else _written(found[0]))
    return entries


def _footnote(cell: Cell, link: Link) -> str:
    results = [entry.result for entry in cell.entries]
    keys = ", ".join(f"seed {r.seed} [`{r.key[:8]}`]({link(r.key)})" for r in results)
    first = cell.entries[0]
    again = command(first)
    how = f"`{markdown_code(again)}`" if again else "made in Python, or by an older version"
    return (
        f'- <a id="cell-{cell.number}"></a>{_text(first.result.attack.label)} on {_text(first.target.defense.label)}: '
        f"{keys}; pictures: `leakscope show {first.result.key[:12]} --pictures pictures.png`; again: {how}"
    )


_LATEX = str.maketrans(
    {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
     "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "−": "$-$", "±": r"$\pm$", "–": "--", "∞": r"$\infty$",
     "\u00a0": "~", "×": r"$\times$", "◆": r"$\bullet$", "†": r"$\dagger$"}
)  # fmt: skip


def tex(text: str) -> str:
    """Text as LaTeX shows it literally."""
    return one_line(" ".join(text.split("\n"))).translate(_LATEX)


def leaderboard_latex(found: Results, tables: Sequence[Section], link: Link, group: str) -> str:
    """One booktabs table per setting; cells link to records, and a comment behind each row repeats it."""
    blocks = ["% \\usepackage{booktabs,hyperref}"]
    for section in tables:
        columns = [group, "accuracy", "strongest", "worst", *section.attacks, ""]
        lines = [
            "\\begin{table}",
            f"\\caption{{{tex(found.metric)}: {tex(section.title)}; threat model {tex(section.threat)}, "
            f"{section.victims} victims. Mean $\\pm$ 95\\,\\% interval over seeds; bold where paired differences "
            "exclude a tie; $\\bullet$: on the front of accuracy and leakage"
            + "".join(f". {tex(remark.rstrip('.'))}" for remark in _remarks(section))
            + ".}",
            f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            "\\toprule",
            " & ".join(tex(column) for column in columns) + r" \\",
            "\\midrule",
            *(_latex_row(row, section, link) for row in section.rows),
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
        ]
        if section.families:
            header = ["family", *(f"{_level(level)} below" for level in LEVELS)]
            lines += [
                "\\begin{table}",
                f"\\caption{{{tex(found.metric)} at matched accuracy, below that of the undefended twin: "
                f"{tex(section.title)}.}}",
                f"\\begin{{tabular}}{{l{'r' * len(LEVELS)}}}",
                "\\toprule",
                " & ".join(header) + r" \\",
                "\\midrule",
                *(" & ".join([tex(_family(f)), *map(_marked, _matched(f, "\0{}".format))]) + r" \\"
                  for f in section.families),
                "\\bottomrule",
                "\\end{tabular}",
                "\\end{table}",
            ]  # fmt: skip
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _marked(text: str) -> str:
    return f"\\textbf{{{tex(text[1:])}}}" if text.startswith("\0") else tex(text)


def _latex_row(row: Row, section: Section, link: Link) -> str:
    def shown(cell: Cell | None) -> str:
        if cell is None:
            return "--"
        target = link(cell.entries[0].result.key).replace("%", r"\%").replace("#", r"\#")
        text = f"\\href{{run:{target}}}{{{tex(_written(cell.value, cell.doubtful))}}}"
        return f"\\textbf{{{text}}}" if cell.best else text

    entries = [
        tex(_name(row)),
        "--" if row.accuracy is None else tex(_accuracy(row.accuracy)),
        shown(row.strongest),
        tex(number(row.strongest.worst)),
        *(shown(row.attacks.get(attack)) for attack in section.attacks),
        tex("◆") if row.on_front else "",
    ]
    again = command(row.strongest.entries[0]) or "made in Python"
    return " & ".join(entries) + r" \\ % " + one_line(" ".join(again.split()))


def leaderboard_csv(found: Results, tables: Sequence[Section], link: Link, group: str) -> str:
    """One line per cell, for spreadsheets; formulas in names are defused."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ["data", "model", "cut", "threat", "setting", "defense", "attack", "metric", "mean", "half_width", "seeds",
         "worst", "accuracy", "surely_best", "on_front", "rank", "doubtful", "remarks", "keys", "record", "pictures",
         "command"]
    )  # fmt: skip
    for section in tables:
        for row in section.rows:
            named = [("strongest", row.strongest), *row.attacks.items()]
            for attack, cell in named:
                first, own = cell.entries[0], attack == "strongest"
                doubtful = row.doubtful if own else cell.doubtful
                remarks = "; ".join([*(doubt.text for doubt in row.doubts), row.note]).strip("; ") if own else ""
                writer.writerow(
                    [*(_plain(first.written(name)) for name in ("data", "model", "cut", "threat")), section.setting,
                     _plain(first.written("defense")), _plain(attack), found.metric, cell.value.mean, cell.value.half,
                     cell.value.seeds, cell.worst, None if row.accuracy is None else row.accuracy.mean,
                     int(cell.best), int(row.on_front), row.rank, int(doubtful), _plain(remarks),
                     " ".join(entry.result.key for entry in cell.entries), link(first.result.key),
                     f"leakscope show {first.result.key[:12]} --pictures pictures.png", _plain(command(first) or "")]
                )  # fmt: skip
        for family in section.families:
            for level, matched in family.matched.items():
                if matched is not None:
                    value, best = matched
                    place = [_plain(section.place.get(name, "")) for name in ("data", "model", "cut", "threat")]
                    writer.writerow(
                        [*place, section.setting, _plain(family.name), f"strongest, {_level(level)} below the twin",
                         found.metric, value.mean, value.half, value.seeds, None, None, int(best), None, None,
                         int(family.doubtful), "", "", "", "", ""]
                    )  # fmt: skip
    return stream.getvalue()


def _plain(text: str) -> str:
    """A spreadsheet runs what begins like a formula."""
    text = one_line(text)
    return f"'{text}" if text[:1] in {"=", "+", "-", "@"} else text
