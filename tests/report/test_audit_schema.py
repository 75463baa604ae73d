"""The schema of `audit.json`: it accepts what an audit writes, refuses what would mislead, and is documented."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import leakscope.report
from leakscope.report.words import ACCESS, EVIDENCE, VERDICTS

from .sample import sample, with_verdict

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((Path(leakscope.report.__file__).parent / "audit.schema.json").read_text(encoding="utf-8"))
CHECK = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_it_accepts_every_verdict(verdict: str) -> None:
    CHECK.validate(with_verdict(sample()[0], verdict))


def wrong_exit_code(audit: dict[str, Any]) -> None:
    audit["verdict"] = "inconclusive"  # with the exit code of a failed gate


def no_interval(audit: dict[str, Any]) -> None:
    del audit["results"][0]["metrics"]["leak"]["low"]


def unknown_severity(audit: dict[str, Any]) -> None:
    audit["flags"][0]["severity"] = "minor"


def unknown_field(audit: dict[str, Any]) -> None:
    audit["score"] = 1


def no_floors(audit: dict[str, Any]) -> None:
    del audit["floors"]


@pytest.mark.parametrize("spoil", [wrong_exit_code, no_interval, unknown_severity, unknown_field, no_floors])
def test_it_refuses_what_would_mislead(spoil: Callable[[dict[str, Any]], None]) -> None:
    audit = copy.deepcopy(sample()[0])
    spoil(audit)
    assert not CHECK.is_valid(audit)


def test_every_field_is_documented() -> None:
    text = (ROOT / "docs" / "audit-json.md").read_text(encoding="utf-8")
    fields = {name for part in [SCHEMA, *SCHEMA["$defs"].values()] for name in part.get("properties", {})}
    assert not {name for name in fields if f"`{name}`" not in text and f'"{name}"' not in text}


def test_the_report_has_words_for_every_value() -> None:
    properties = SCHEMA["properties"]
    assert set(properties["verdict"]["enum"]) == set(VERDICTS)
    assert set(SCHEMA["$defs"]["level"]["enum"]) == set(EVIDENCE)
    assert set(properties["threat"]["properties"]["access"]["items"]["enum"]) == set(ACCESS)
