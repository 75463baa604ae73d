"""The audit as SARIF 2.1.0: findings with stable rule identifiers and fingerprints.

Rules: LEAK001 the gate was not kept, LEAK002 the audit was inconclusive, LEAK003 a control failed, and
LEAK-<FLAG> for each flag. A fingerprint names the finding, not its figures, so that a rerun updates the same alert.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath, PurePosixPath
from typing import Any
from urllib.parse import quote

from leakscope.report.numbers import utc
from leakscope.report.targets import targets_of
from leakscope.report.words import CONTROLS, VERDICTS

SCHEMA_URI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"

GATE, INCONCLUSIVE, CONTROL = "LEAK001", "LEAK002", "LEAK003"

_FIXED_RULES = {
    GATE: ("GateNotKept", "More can be recovered than the gate allows", VERDICTS["fail"][1]),
    INCONCLUSIVE: ("Inconclusive", "The audit could not reach a verdict", VERDICTS["inconclusive"][1]),
    CONTROL: (
        "ControlFailed",
        "A control of the audit failed",
        "An attack that misses what is known to be there proves nothing about what it does not find.",
    ),
}
_LEVELS = {"blocks": "error", "warns": "warning"}

Json = dict[str, Any]


def sarif(audit: Mapping[str, Any]) -> Json:
    """A log with one run; a passed audit without flags has no results."""
    rules = {**{key: _rule(key, *told) for key, told in _FIXED_RULES.items()}, **_flag_rules(audit)}
    order = {key: place for place, key in enumerate(rules)}
    results = [{**finding, "ruleIndex": order[finding["ruleId"]]} for finding in _findings(audit)]
    driver = {
        "name": "Leakscope",
        "version": str(audit["versions"]["leakscope"]),
        "rules": list(rules.values()),
    }
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"leakscope/{quote(str(audit['data']['name']), safe='')}/"},
        "invocations": [_invocation(audit)],
        "results": results,
        "columnKind": "utf16CodeUnits",
        "properties": {name: audit[name] for name in ("verdict", "evidence", "sentence")},
    }
    return {"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}


def _rule(key: str, name: str, short: str, full: str, level: str = "error") -> Json:
    return {
        "id": key,
        "name": name,
        "shortDescription": {"text": short},
        "fullDescription": {"text": full},
        "defaultConfiguration": {"level": level},
        "properties": {"tags": ["privacy", "model-inversion"]},
    }


def flag_rule_id(flag: str) -> str:
    return "LEAK-" + re.sub(r"[^A-Z0-9]+", "-", flag.upper()).strip("-")


def _flag_rules(audit: Mapping[str, Any]) -> dict[str, Json]:
    rules = {}
    for flag in audit["flags"]:
        words = re.findall(r"[A-Za-z0-9]+", flag["id"])
        key = flag_rule_id(flag["id"])
        name, short = "".join(word.capitalize() for word in words), " ".join(words).capitalize()
        rules[key] = _rule(key, name, short, flag["explanation"], _LEVELS.get(flag["severity"], "warning"))
    return rules


def _findings(audit: Mapping[str, Any]) -> Iterator[Json]:
    anchor = _location(audit)
    gate = audit["gate"]
    if audit["verdict"] == "fail":
        named = ("", audit["sentence"]) if gate is None else (gate["text"], audit["sentence"])
        yield _result(GATE, "error", named[1], named[0], anchor)
    if audit["verdict"] == "inconclusive":
        yield _result(INCONCLUSIVE, "error", " ".join([audit["sentence"], *audit["reasons"]]), "", anchor)
    for name, control in audit["controls"].items():
        if control["passed"] is False:
            # A control the verdict does not rest on must not turn a passed audit red.
            level = "warning" if audit["exit_code"] == 0 else "error"
            yield _result(CONTROL, level, f"{CONTROLS.get(name, name)} failed: {control['what']}", name, anchor)
    for flag in audit["flags"]:
        level = _LEVELS.get(flag["severity"], "warning")
        message = f"{flag['where']}: {flag['explanation']}"
        yield _result(flag_rule_id(flag["id"]), level, message, flag["where"], anchor)


def _result(rule: str, level: str, message: str, subject: str, anchor: Json) -> Json:
    where = anchor["physicalLocation"]["artifactLocation"]["uri"]
    mark = hashlib.sha256("\n".join((rule, subject, where)).encode()).hexdigest()[:32]
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": message},
        "locations": [anchor],
        "partialFingerprints": {"leakscopeFinding/v1": mark},
    }


def _location(audit: Mapping[str, Any]) -> Json:
    logical = [
        {"fullyQualifiedName": f"{target.facts['model']}/{target.facts['cut']}/{target.facts['defense']}",
         "name": target.name, "kind": "module"}
        for target in targets_of(audit)
    ]  # fmt: skip
    unique = list({entry["fullyQualifiedName"]: entry for entry in logical}.values())
    artifact = {"artifactLocation": _artifact(_anchor_file(audit)), "region": {"startLine": 1}}
    return {"physicalLocation": artifact, "logicalLocations": unique}


def _anchor_file(audit: Mapping[str, Any]) -> str:
    """The file a reader would change: the audit's YAML, else the model's Python file, else `audit.json`."""
    source = audit["config"].get("source")
    if source:
        return str(source)
    models = (str(target["model"]).rpartition(":")[0] for target in audit["targets"])
    return next((path for path in models if path.endswith(".py")), "audit.json")


def _artifact(path: str) -> Json:
    pure = PurePath(path)
    if pure.is_absolute():
        return {"uri": pure.as_uri()}
    return {"uri": quote(PurePosixPath(pure.as_posix()).as_posix()), "uriBaseId": "%SRCROOT%"}


def _invocation(audit: Mapping[str, Any]) -> Json:
    invocation: Json = {
        "commandLine": audit["command"],
        "exitCode": audit["exit_code"],
        "executionSuccessful": True,  # the tool ran to its end; the verdict is another matter
    }
    when = utc(audit["created"])
    if when is not None:
        invocation["endTimeUtc"] = f"{when:%Y-%m-%dT%H:%M:%SZ}"
    return invocation
