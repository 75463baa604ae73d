"""The audit as SARIF 2.1.0: findings with stable rule identifiers and fingerprints.

Rules: LEAK001 the gate was not kept, LEAK002 the audit was inconclusive, LEAK003 a control failed, and
LEAK-<FLAG> for each flag. A fingerprint names the finding, not its figures, so that a rerun updates the same alert.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePath, PurePosixPath
from typing import Any
from urllib.parse import quote

from leakscope.core.reports import AuditReport
from leakscope.core.words import CONTROLS, VERDICTS, Verdict
from leakscope.report.numbers import utc
from leakscope.report.targets import targets_of

SCHEMA_URI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"

GATE, INCONCLUSIVE, CONTROL = "LEAK001", "LEAK002", "LEAK003"

_FIXED_RULES = {
    GATE: ("GateNotKept", "More can be recovered than the gate allows", VERDICTS[Verdict.FAIL][1]),
    INCONCLUSIVE: ("Inconclusive", "The audit could not reach a verdict", VERDICTS[Verdict.INCONCLUSIVE][1]),
    CONTROL: (
        "ControlFailed",
        "A control of the audit failed",
        "An attack that misses what is known to be there proves nothing about what it does not find.",
    ),
}
_LEVELS = {"blocks": "error", "warns": "warning"}

Json = dict[str, Any]


def sarif(report: AuditReport, folder: Path | None = None) -> Json:
    """A log with one run; a passed audit without flags has no results.

    With the `folder` of the audit, locations are files that are there: what a reader would change if it can be found
    from here, else the folder's own `audit.json`.
    """
    rules = {**{key: _rule(key, *told) for key, told in _FIXED_RULES.items()}, **_flag_rules(report)}
    order = {key: place for place, key in enumerate(rules)}
    results = [{**finding, "ruleIndex": order[finding["ruleId"]]} for finding in _findings(report, folder)]
    driver = {
        "name": "Leakscope",
        "version": report.versions.get("leakscope", "unknown"),
        "rules": list(rules.values()),
    }
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"leakscope/{_quoted(report.data.name, safe='')}/"},
        "invocations": [_invocation(report)],
        "results": results,
        "columnKind": "utf16CodeUnits",
        "properties": {
            "verdict": report.verdict.value,
            "evidence": report.evidence.level,
            "sentence": report.sentence,
        },
    }
    if folder is not None:
        run["originalUriBaseIds"] = {"%SRCROOT%": {"uri": Path.cwd().as_uri().rstrip("/") + "/"}}
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


def _flag_rules(report: AuditReport) -> dict[str, Json]:
    rules = {}
    for flag in report.flags:
        words = re.findall(r"[A-Za-z0-9]+", flag.id)
        key = flag_rule_id(flag.id)
        name, short = "".join(word.capitalize() for word in words), " ".join(words).capitalize()
        rules[key] = _rule(key, name, short, flag.explanation, _LEVELS[flag.severity])
    return rules


def _findings(report: AuditReport, folder: Path | None) -> Iterator[Json]:
    anchor = _location(report, folder)
    if report.verdict is Verdict.FAIL:
        subject = "" if report.gate is None else report.gate.text
        yield _result(GATE, "error", report.sentence, subject, anchor)
    if report.verdict is Verdict.INCONCLUSIVE:
        yield _result(INCONCLUSIVE, "error", " ".join([report.sentence, *report.reasons]), "", anchor)
    for control in report.controls:
        if control.passed is False:
            # A control the verdict does not rest on must not turn a passed audit red.
            level = "warning" if report.exit_code == 0 else "error"
            yield _result(CONTROL, level, f"{CONTROLS[control.kind]} failed: {control.what}", control.kind, anchor)
    for flag in report.flags:
        message = f"{flag.where}: {flag.explanation}"
        yield _result(flag_rule_id(flag.id), _LEVELS[flag.severity], message, flag.where, anchor)


def _result(rule: str, level: str, message: str, subject: str, anchor: Json) -> Json:
    where = anchor["physicalLocation"]["artifactLocation"]["uri"]
    mark = hashlib.sha256("\n".join((rule, subject, where)).encode(errors="backslashreplace")).hexdigest()[:32]
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": message},
        "locations": [anchor],
        "partialFingerprints": {"leakscopeFinding/v1": mark},
    }


def _location(report: AuditReport, folder: Path | None) -> Json:
    logical = [
        {"fullyQualifiedName": f"{target.record.model.label}/{target.record.cut}/{target.record.defense.label}",
         "name": target.name, "kind": "module"}
        for target in targets_of(report)
    ]  # fmt: skip
    unique = list({entry["fullyQualifiedName"]: entry for entry in logical}.values())
    artifact = {"artifactLocation": _artifact(_anchor_file(report, folder)), "region": {"startLine": 1}}
    return {"physicalLocation": artifact, "logicalLocations": unique}


def _anchor_file(report: AuditReport, folder: Path | None) -> str:
    """The file a reader would change: the audit's YAML, else the model's Python file, else `audit.json`."""
    source = report.config.get("source")
    files = (str(target.record.model.settings.get("path", "")) for target in report.targets)
    wanted = [str(source)] if source else []
    wanted += [path for path in files if path.endswith(".py")]
    if folder is None:
        return next(iter(wanted), "audit.json")
    found = next((path for path in wanted if Path(path).is_file()), str(folder / "audit.json"))
    # Code scanning takes paths from the root of the repository alone.
    inside = Path(found).resolve().is_relative_to(Path.cwd().resolve())
    return Path(found).resolve().relative_to(Path.cwd().resolve()).as_posix() if inside else str(Path(found).resolve())


def _artifact(path: str) -> Json:
    pure = PurePath(path)
    if pure.is_absolute():
        return {"uri": pure.as_uri()}
    return {"uri": _quoted(PurePosixPath(pure.as_posix()).as_posix()), "uriBaseId": "%SRCROOT%"}


def _invocation(report: AuditReport) -> Json:
    invocation: Json = {
        "commandLine": report.command,
        "exitCode": report.exit_code,
        "executionSuccessful": True,  # the tool ran to its end; the verdict is another matter
    }
    when = utc(report.created)
    if when is not None:
        invocation["endTimeUtc"] = f"{when:%Y-%m-%dT%H:%M:%SZ}"
    return invocation


def _quoted(text: str, safe: str = "/") -> str:
    """As a part of an address; half characters of file names too."""
    return quote(text, safe=safe, errors="backslashreplace")
