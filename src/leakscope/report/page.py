"""The report as one HTML file: no network, no script, nothing that needs either."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from numpy.typing import NDArray

from leakscope.report import numbers, words
from leakscope.report.blocks import sheets
from leakscope.report.names import readable, short_names
from leakscope.report.outline import outline
from leakscope.report.pictures import galleries
from leakscope.report.plot import bar, scatter
from leakscope.report.targets import highest_floor, is_known, targets_of


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("leakscope", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for read in (numbers.number, numbers.percent, numbers.interval, numbers.shape, numbers.duration, numbers.moment):
        environment.filters[read.__name__] = read
    environment.filters["outline"] = outline
    environment.filters["slug"] = slug
    environment.filters["breakable"] = breakable
    environment.filters["sentence"] = words.sentence
    return environment


def slug(text: str) -> str:
    """A fragment identifier: letters, digits and hyphens."""
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower())


def breakable(text: str) -> Markup:
    """A long specification that may be broken after the `+` and `,` between its parts, and nowhere else."""
    parts = [escape(part) for part in re.split(r"(?<=[+,])", text)]
    return Markup("<wbr>").join(parts)


def render_html(audit: Mapping[str, Any], pictures: Mapping[str, NDArray[np.uint8]]) -> str:
    """The whole page. Every text of the audit is escaped, and a content policy forbids script and network."""
    environment = _templates()
    loader = environment.loader
    assert loader is not None
    style = "\n" + loader.get_source(environment, "report.css")[0]
    settings = {short: full for full, short in short_names(audit).items()}
    audit = readable(audit)
    targets = targets_of(audit)
    floor = highest_floor(audit)
    level = None if floor is None else floor[1]
    measured = {name for row in [*audit["results"], *_floors(audit)] for name in row["metrics"]}
    return environment.get_template("report.html").render(
        audit=audit,
        words=words,
        subject=words.Subject.of(audit),
        settings=settings,
        style=Markup(style),  # noqa: S704 (our own file, hashed into the page's policy)
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        targets=targets,
        bars={target.number: bar(leak, level) for target in targets if (leak := _drawable(target.leak))},
        floor=floor,
        plot=scatter(targets, level),
        blocks=sheets(targets, pictures),
        bounds=[target for target in targets if target.facts.get("bound")],
        gallery=galleries(audit, pictures),
        metrics={name: facts for name, facts in audit["metrics"].items() if name in measured},
        unavailable={name: facts["unavailable"] for name, facts in audit["metrics"].items() if "unavailable" in facts},
        floors=_floors(audit),
        flags=_flags(audit),
    )


def _drawable(leak: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return leak if leak is not None and is_known(leak["mean"]) else None


def _floors(audit: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": words.FLOORS.get(name, name), "metrics": scores} for name, scores in audit["floors"].items()]


def _flags(audit: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Flags of one kind told once, with every place they were raised; those that block come first."""
    told: dict[tuple[str, str, str], list[str]] = {}
    for flag in audit["flags"]:
        told.setdefault((flag["id"], flag["severity"], flag["explanation"]), []).append(flag["where"])
    ordered = sorted(told.items(), key=lambda item: item[0][1] != "blocks")
    anchored: set[str] = set()  # scores link to the first telling of a flag
    listed = []
    for (name, severity, explanation), where in ordered:
        first = name not in anchored
        anchored.add(name)
        listed.append({"id": name, "severity": severity, "explanation": explanation, "where": where, "first": first})
    return listed
