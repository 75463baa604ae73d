"""The folder of an audit: `audit.json` and `pictures.safetensors` in, five renderings out."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from leakscope.core.errors import UsageError
from leakscope.core.escaping import json_text
from leakscope.core.files import read_json, require_file
from leakscope.core.reports import SCHEMA, AuditReport
from leakscope.core.results import from_json
from leakscope.report.junit_xml import junit
from leakscope.report.page import render_html, render_onepage
from leakscope.report.sarif_log import sarif
from leakscope.report.summary import markdown

Pictures = Mapping[str, NDArray[np.uint8]]


def read(folder: Path) -> tuple[AuditReport, Pictures]:
    """The audit and its pictures, refused in one line when they are not what this version draws."""
    return _read_audit(folder / "audit.json"), _read_pictures(folder / "pictures.safetensors")


def _read_audit(path: Path) -> AuditReport:
    try:
        plain = read_json(path, "run the audit again")
    except FileNotFoundError:
        raise UsageError(
            f"no {path.name} in {path.parent}; give the folder that `leakscope audit --out` wrote"
        ) from None
    found = plain.get("schema") if isinstance(plain, dict) else None
    if found != SCHEMA:
        raise UsageError(f"{path} has schema {found!r:.60}, this version draws {SCHEMA!r}; run the audit again")
    report = from_json(AuditReport, plain, str(path))
    if report.exit_code != report.verdict.exit_code:
        told = f"exit code {report.exit_code}, which is not that of {report.verdict!s}"
        raise UsageError(f"{path} ends with {told}; run the audit again")
    return report


def _read_pictures(path: Path) -> Pictures:
    if not path.exists():
        return {}  # an audit of points that are not pictures writes none
    try:
        pictures: Pictures = load_file(require_file(path))
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise UsageError(f"cannot read {path}: {error}; run the audit again") from None
    return pictures


def write(folder: Path) -> list[Path]:
    """Draw `folder` as report.html, onepage.html, summary.md, junit.xml and results.sarif, each whole or not at all."""
    report, pictures = read(folder)
    # All are drawn before any is written: a folder never holds renderings of two different audits.
    drawn = {
        "report.html": render_html(report, pictures),
        "onepage.html": render_onepage(report, pictures),
        "summary.md": markdown(report),
        "junit.xml": junit(report),
        "results.sarif": json_text(sarif(report, folder)) + "\n",
    }
    return [_replace(folder / name, text) for name, text in drawn.items()]


def _replace(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, path)  # noqa: PTH105 (the atomic call, named as such)
    except OSError as error:
        with suppress(OSError):  # a read-only disk
            temporary.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}; choose a writable folder") from None
    return path
