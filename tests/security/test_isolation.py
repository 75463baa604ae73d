"""A network cannot turn its gate green: exit code 0 comes only with this run's finished report."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from leakscope.cli import app, run
from leakscope.commands import isolation
from leakscope.core import calls as watch

NETWORK = """
import os, sys, time
from torch import nn

{at_import}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 10)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        {in_forward}
        return self.head(self.features(x).relu())

def build():
    return Net()
"""
AUDIT = ["--data", "digits", "--cut", "features.1", "--epochs", "1", "--attack", "ridge", "--victims", "8", "--quiet"]


def audit(folder: Path, *extra: str, at_import: str = "", in_forward: str = "pass") -> int:
    path = folder / "net.py"
    path.write_text(NETWORK.format(at_import=at_import, in_forward=in_forward))
    words = ["audit", "--model", f"{path}:build", *AUDIT, "--store", str(folder / "s"), "--out", str(folder / "out")]
    return run(app, [*words, *extra])


def test_a_network_that_ends_the_process_does_not_pass(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nor does a report of an earlier run help it. That an honest one passes: tests/cli/test_commands.py."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/audit.json").write_text('{"exit_code": 0}')
    assert audit(tmp_path, "--gate", "leak<=1", in_forward="os._exit(0)") == 3
    assert "nothing passed" in capfd.readouterr().err


@pytest.mark.parametrize("where", ["at_import", "in_forward"])
def test_exit_is_a_runtime_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str) -> None:
    assert audit(tmp_path, "--dry-run", **{where: "sys.exit(0)"}) == 3
    told = capsys.readouterr().err
    assert "SystemExit(0)" in told
    assert told.count("\n") == 1


def test_exit_in_python_reaches_nobody(tmp_path: Path) -> None:
    import leakscope
    from leakscope.core.errors import RunFailed

    path = tmp_path / "net.py"
    path.write_text(NETWORK.format(at_import="", in_forward="self.calls < 5 or sys.exit(0)"))
    with pytest.raises(RunFailed, match="SystemExit"):
        leakscope.audit(f"{path}:build", "digits", cut="features.1", attacks=["ridge"], victims=8)


CHILD = """
import json, os, sys, time
from pathlib import Path
from leakscope.commands import isolation
isolation.enter()
path = Path(sys.argv[-1])
def wrote(code, end=None):
    path.write_text(json.dumps({"exit_code": code if end is None else end}))
    isolation.finished(code, [path])
"""


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("wrote(0)", 0),
        ("wrote(1)\nsys.exit(1)", 1),
        ("wrote(4)\nsys.exit(4)", 4),
        ("sys.exit(2)", 2),
        ("os._exit(0)", 3),  # no report
        ("path.write_text('{\"exit_code\": 0}')", 3),  # a report nobody told of
        ("wrote(1)\nos._exit(0)", 1),  # as an `atexit` handler of the network's might
        ("wrote(0)\nsys.exit(1)", 3),
        ("wrote(0, end=1)", 3),
        ("isolation.finished(0, [])", 3),
        ("wrote(0)\npath.write_text('{\"exit_code\":  0}')", 3),  # changed afterwards
        ("wrote(0)\npath.unlink()", 3),
        ("wrote(7)", 3),
        ("os.write(isolation._report_to, b'nonsense\\n')", 3),
        ("os.kill(os.getpid(), 9)", 3),
        ("os.fork() and os._exit(0)\ntime.sleep(30)", 3),  # the work goes on elsewhere
        ("os.execv('/bin/true', ['true'])", 3),
    ],
)
def test_what_a_child_may_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, code: int) -> None:
    monkeypatch.setattr(isolation, "module_command", lambda name: [sys.executable, "-c", CHILD + script])
    start = time.monotonic()
    assert run(app, ["audit", "--isolate", str(tmp_path / "audit.json")]) == code
    assert time.monotonic() - start < 20


def test_a_call_that_never_returns_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = CHILD + "from leakscope.core.calls import calling\nwith calling: time.sleep(600)"
    monkeypatch.setattr(isolation, "module_command", lambda name: [sys.executable, "-c", script])
    start = time.monotonic()
    assert run(app, ["audit", "--isolate", "--patience", "0.3", str(tmp_path / "audit.json")]) == 3
    assert "has not returned" in capsys.readouterr().err
    assert time.monotonic() - start < 30
    assert run(app, ["audit", "--isolate", "--patience", "nan"]) == 2


def test_a_thread_that_never_ends_does_not_keep_the_verdict_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = CHILD + "import threading\nthreading.Thread(target=time.sleep, args=(600,)).start()\nwrote(0)"
    monkeypatch.setattr(isolation, "module_command", lambda name: [sys.executable, "-c", script])
    monkeypatch.setattr(isolation, "GRACE", 0.1)
    assert run(app, ["audit", "--isolate", str(tmp_path / "audit.json")]) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("gate: leak<=0.5", True), ("scales: {small: {gate: leak<=0.1}}", True), ("variants: {a: {gate: x}}", True),
     ("data: digits", False), ("gate: null", False)],
)  # fmt: skip
def test_a_gate_in_a_file_counts(tmp_path: Path, text: str, expected: bool) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    assert isolation.gated(path, None, None) is expected
    assert isolation.gated(None, None, ["gate=leak<=0.1"])


def test_only_calls_that_go_on_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(watch.VARIABLE, str(tmp_path))
    call = watch._Call()
    assert watch.longest(tmp_path) == 0
    with call:
        with call:
            time.sleep(0.02)
        assert watch.longest(tmp_path) >= 0.02  # the outer one
    assert watch.longest(tmp_path) == 0
    (tmp_path / "1").write_bytes(b"short")
    assert watch.longest(tmp_path) == 0
