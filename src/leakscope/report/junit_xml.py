"""The audit as JUnit XML, for the test tab of a continuous-integration server.

The suite is red exactly when `exit_code` is not 0: an attack that was carried out is a passed test whatever it
recovered, and only the verdict says whether that was too much.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from leakscope.core.reports import AuditReport, ControlReport
from leakscope.core.results import AttackResult
from leakscope.core.words import CONTROLS, Verdict
from leakscope.report.numbers import interval, number, utc
from leakscope.report.targets import targets_of

_KINDS = {Verdict.FAIL: "failure", Verdict.INCONCLUSIVE: "error"}
# What XML 1.0 cannot hold, even escaped.
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: AuditReport) -> str:
    """One case for each target and attack, one for each control, and one for the verdict."""
    suite = ElementTree.Element("testsuite", name="leakscope", time=f"{report.seconds:.3f}")
    when = utc(report.created)
    if when is not None:
        suite.set("timestamp", f"{when:%Y-%m-%dT%H:%M:%S}")
    properties = ElementTree.SubElement(suite, "properties")
    said = {"verdict": report.verdict.value, "evidence": report.evidence.level, "command": report.command}
    for name, value in said.items():
        ElementTree.SubElement(properties, "property", name=name, value=_legal(value))
    for target in targets_of(report):
        for result in target.results:
            case = _case(suite, f"leakscope.{target.name}", f"{result.attack.label}, seed {result.seed}")
            case.set("time", f"{result.diagnostics.seconds:.3f}")
            ElementTree.SubElement(case, "system-out").text = _legal(_scores(result))
    for control in report.controls:
        _judge_control(_case(suite, "leakscope.controls", CONTROLS[control.kind]), control, report.exit_code)
    _judge(_case(suite, "leakscope.verdict", _gate_text(report)), report)
    suite.set("tests", str(len(suite.findall("testcase"))))
    for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(len(suite.findall(f"testcase/{tag}"))))
    suites = ElementTree.Element("testsuites", name="leakscope")
    suites.append(suite)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, group: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=_legal(group), name=_legal(name))


def _gate_text(report: AuditReport) -> str:
    return "no gate" if report.gate is None else f"gate {report.gate.text}"


def _judge(case: ElementTree.Element, report: AuditReport) -> None:
    if report.verdict in _KINDS:
        _outcome(case, _KINDS[report.verdict], report.sentence, "\n".join(report.reasons))


def _judge_control(case: ElementTree.Element, control: ControlReport, exit_code: int) -> None:
    if control.passed is None:
        _outcome(case, "skipped", "not run", control.what)
    elif not control.passed and exit_code == 0:
        _outcome(case, "skipped", "failed; the verdict does not rest on it", control.what)
    elif not control.passed:
        _outcome(case, "error", "control failed", control.what)


def _outcome(case: ElementTree.Element, kind: str, message: str, detail: str) -> None:
    element = ElementTree.SubElement(case, kind, message=_legal(message))
    if kind != "skipped":
        element.set("type", kind)
    element.text = _legal(detail)


def _scores(result: AttackResult) -> str:
    lines = [
        f"{name}: {number(scores.mean)} ({interval(scores) or 'no interval'}), worst {number(scores.worst)}"
        for name, scores in result.metrics.items()
    ]
    return "\n".join([*lines, *(f"flag: {flag.id}" for flag in result.flags)])


def _legal(text: object) -> str:
    return _ILLEGAL.sub("\ufffd", str(text))
