"""The schema of `audit.json`: generated from the results, refuses what would mislead, and is documented."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from leakscope.core.errors import UsageError
from leakscope.core.reports import SCHEMA, AuditReport, audit_schema
from leakscope.core.results import from_json, to_json
from leakscope.core.words import CONTROLS, EVIDENCE, FLAGS, LEVELS, SEVERITIES, VERDICTS, Control, FlagId, Verdict
from leakscope.report.words import ACCESS

from .sample import THREAT, sample, with_verdict

ROOT = Path(__file__).parents[2]
GENERATED = audit_schema()
CHECK = jsonschema.Draft202012Validator(GENERATED)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(GENERATED)
    assert GENERATED["properties"]["schema"]["const"] == SCHEMA


@pytest.mark.parametrize("verdict", VERDICTS)
def test_it_accepts_every_verdict(verdict: str) -> None:
    CHECK.validate(json.loads(json.dumps(to_json(with_verdict(sample()[0], verdict)))))


def no_interval(audit: dict[str, Any]) -> None:
    del audit["results"][0]["metrics"]["leak"]["low"]


def unknown_flag(audit: dict[str, Any]) -> None:
    audit["flags"][0]["id"] = "minor"


def unknown_verdict(audit: dict[str, Any]) -> None:
    audit["verdict"] = "fine"


def unknown_field(audit: dict[str, Any]) -> None:
    audit["score"] = 1


def no_floors(audit: dict[str, Any]) -> None:
    del audit["floors"]


def no_flags_of_a_result(audit: dict[str, Any]) -> None:
    audit["results"][0]["flags"] = None


@pytest.mark.parametrize(
    "spoil", [no_interval, unknown_flag, unknown_verdict, unknown_field, no_floors, no_flags_of_a_result]
)
def test_it_refuses_what_would_mislead(spoil: Callable[[dict[str, Any]], None]) -> None:
    audit = copy.deepcopy(json.loads(json.dumps(to_json(sample()[0]))))
    CHECK.validate(audit)
    spoil(audit)
    assert not CHECK.is_valid(audit)
    with pytest.raises(UsageError, match="make it again") as caught:
        from_json(AuditReport, audit, "audit.json")
    assert "\n" not in str(caught.value)


def test_every_field_is_documented() -> None:
    text = (ROOT / "docs" / "audit-json.md").read_text(encoding="utf-8")
    parts = [GENERATED, *GENERATED["$defs"].values()]
    fields = {name for part in parts for name in part.get("properties", {})}
    assert len(fields) > 100
    assert not {name for name in fields if f"`{name}`" not in text}


def test_there_are_words_for_every_value() -> None:
    assert set(VERDICTS) == set(Verdict)
    assert set(EVIDENCE) == set(LEVELS)
    assert set(CONTROLS) == set(Control)
    assert set(FLAGS) == set(FlagId)
    assert set(SEVERITIES) == {rule.severity for rule in FLAGS.values()}
    assert set(THREAT.access) <= set(ACCESS)
