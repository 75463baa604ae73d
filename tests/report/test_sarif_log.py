"""SARIF: valid by the standard's own schema, stable between runs, and faithful to the verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from leakscope.core.reports import AuditReport
from leakscope.core.words import VERDICTS
from leakscope.report import sarif

from .sample import sample, with_verdict

SCHEMA = json.loads((Path(__file__).parent / "sarif-2.1.0.schema.json").read_text(encoding="utf-8"))
CHECK = jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)


def results(audit: AuditReport) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sarif(audit)["runs"][0]["results"]
    return found


def prints(audit: AuditReport) -> list[str]:
    return [result["partialFingerprints"]["leakscopeFinding/v1"] for result in results(audit)]


def test_the_schema_can_say_no() -> None:
    log = sarif(sample()[0])
    log["runs"][0]["results"][0]["level"] = "bad"
    assert not CHECK.is_valid(log)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_it_is_valid_and_faithful(verdict: str) -> None:
    audit = with_verdict(sample()[0], verdict)
    log = sarif(audit)
    CHECK.validate(log)
    run = log["runs"][0]
    assert run["invocations"][0]["exitCode"] == audit.exit_code
    assert run["properties"]["verdict"] == verdict
    found = [result["ruleId"] for result in run["results"]]
    assert ("LEAK001" in found, "LEAK002" in found) == (verdict == "fail", verdict == "inconclusive")
    assert found.count("LEAK-LINEAR-BEATS-STRONG") == 2
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_fingerprints_name_findings_not_figures() -> None:
    audit = sample()[0]
    assert audit.gate is not None
    gate = replace(audit.gate, value=0.5)
    other = replace(audit, gate=gate, created="2027-01-01T00:00:00Z", seconds=1.0, sentence="Other figures.")
    assert prints(audit) == prints(other)
    assert len(set(prints(audit))) == len(prints(audit))
    stricter = replace(audit, gate=replace(gate, text="leak<=0.1"))
    assert prints(audit)[0] != prints(stricter)[0]


def test_a_failed_control_is_a_finding() -> None:
    audit = with_verdict(sample()[0], "inconclusive")
    audit = replace(audit, controls=(replace(audit.controls[0], passed=False), *audit.controls[1:]))
    found = [result for result in results(audit) if result["ruleId"] == "LEAK003"]
    assert [result["level"] for result in found] == ["error"]
    audit = with_verdict(audit, "pass")
    found = [result for result in results(audit) if result["ruleId"] == "LEAK003"]
    assert [result["level"] for result in found] == ["warning"]


@pytest.mark.parametrize(
    ("source", "model", "uri"),
    [(None, "convnet", "audit.json"), (None, "examples/own model.py", "examples/own%20model.py"),
     ("configs/demo.yaml", "examples/own.py", "configs/demo.yaml"), ("/work/a.yaml", "convnet", "file:///work/a.yaml")],
)  # fmt: skip
def test_findings_are_anchored_to_what_a_reader_would_change(source: str | None, model: str, uri: str) -> None:
    audit = sample()[0]
    targets = []
    for target in audit.targets:
        settings = {"kind": "file", "path": model} if model.endswith(".py") else {"kind": model}
        own = replace(target.record.model, settings=settings, label="whatever.py:it is called")
        targets.append(replace(target, record=replace(target.record, model=own)))
    audit = replace(audit, config={**audit.config, "source": source}, targets=tuple(targets))
    CHECK.validate(sarif(audit))
    artifact = results(audit)[0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact["uri"] == uri
    assert ("uriBaseId" in artifact) == (not uri.startswith("file:"))
