"""No text of an audit can become markup, whatever it says."""

from __future__ import annotations

import json
from typing import Any

from leakscope.core.reports import AuditReport
from leakscope.core.results import from_json, to_json
from leakscope.report import render_html
from leakscope.report.pictures import WORST

from .sample import sample
from .test_page import Page

#: Identifiers of ours, which cannot be anything else.
IDENTIFIERS = {"schema", "verdict", "level", "created", "more_leak", "access", "target", "key", "strongest", "id",
               "kind", "kinds", "directions", "result", "flag"}  # fmt: skip
#: Mappings whose keys are anybody's words.
OPEN = {"versions", "config", "notes"}


def hostile(value: Any, mark: str) -> Any:
    """The same data with the mark appended to every text that is not an identifier of ours."""
    if isinstance(value, dict):
        made = {name: item if name in IDENTIFIERS else hostile(item, mark) for name, item in value.items()}
        for name in OPEN & made.keys():
            made[name] = {f"{key}{mark}": item for key, item in made[name].items()}
        return made
    if isinstance(value, list):
        return [hostile(item, mark) for item in value]
    return value + mark if isinstance(value, str) else value


def spoilt(mark: str) -> Page:
    """The page of an audit in which every text ends with the mark."""
    audit, pictures = sample()
    plain = hostile(json.loads(json.dumps(to_json(audit))), mark)
    for metric in plain["metrics"]:
        metric["name"] = metric["name"].removesuffix(mark)  # an identifier; results name their scores by it
    plain["gate"]["metric"] = "leak"
    plain["goal"] = "pictures"
    plain["floors"] = {f"{name}{mark}": floor for name, floor in plain["floors"].items()}
    for shown in plain["pictures"].values():
        shown["groups"] = [name.removesuffix(mark) if name.startswith(WORST) else name for name in shown["groups"]]
    return Page(render_html(from_json(AuditReport, plain), pictures))


def test_no_text_of_the_audit_becomes_markup() -> None:
    mark = "\"'></style></script><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7*7 }}"
    drawn, harmless = spoilt(mark), spoilt("z" * len(mark))
    assert drawn.open == []
    assert [tag for tag, _ in drawn.elements] == [tag for tag, _ in harmless.elements]
    assert [attributes.keys() for _, attributes in drawn.elements] == [a.keys() for _, a in harmless.elements]
    assert drawn.text.count(mark) == harmless.text.count("z" * len(mark)) > 100
