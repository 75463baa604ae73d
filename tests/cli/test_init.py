"""First contact: shipped configurations by name, `init`, and what Ctrl-C says."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from leakscope.cli import app, run
from leakscope.core.shipped import shipped
from leakscope.experiments.config import AuditConfig

SMALL = ["--data", "digits", "--cut", "features.2", "--set", "splits={private: 60, heldout: 40, public: 60}"]


def test_shipped_configurations_go_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "demo" in shipped()
    assert AuditConfig.read(Path("demo"), {}).data == "mnist5k"
    assert run(app, ["audit", "nonsense", "--dry-run"]) == 2
    assert "demo" in capsys.readouterr().err


def test_no_shipped_file_names_a_place_outside() -> None:
    for name, path in shipped().items():
        for line in path.read_text().splitlines():
            words = line.partition("#")[0].replace(":", " ").split()
            assert not [word for word in words if word.startswith(("/", "~", "../"))], f"{name}: {line}"


def test_what_init_writes_is_what_audit_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(app, ["init"]) == 0
    capsys.readouterr()
    workflow = yaml.safe_load(Path(".github/workflows/leakscope.yml").read_text())
    steps = [step["run"] for step in workflow["jobs"]["audit"]["steps"] if "run" in step]
    (command,) = [step for step in steps if step.startswith("leakscope ")]
    assert run(app, [*shlex.split(command)[1:], "--dry-run"]) == 0
    # What it says about E1 is true.
    assert run(app, ["audit", "leakscope.yaml", "--evidence", "E1", "--gate", "leak<=0.5 at E1", "--dry-run"]) == 0
    assert run(app, ["init"]) == 2
    assert "already" in capsys.readouterr().err
    offered = re.findall(r"^# ([a-z]+): \S", Path("leakscope.yaml").read_text(), re.MULTILINE)
    assert {"private", "heldout", "public", "weights", "normalize"} <= set(offered), "it is commented"
    assert set(offered) <= set(AuditConfig.model_fields), "with settings that exist"


def test_show_finds_what_train_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", str(tmp_path / "store")]
    assert run(app, ["train", *SMALL, "--epochs", "1", "--quiet", *store]) == 0
    key = capsys.readouterr().out.split()[0]
    assert run(app, ["show", key, *store]) == 0
    assert f'"key": "{key}"' in capsys.readouterr().out


@pytest.mark.usefixtures("heard_interrupts")
def test_an_interrupt_says_what_to_do_next(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "leakscope", "train", *SMALL, "--epochs", "100000"]
    words += ["--store", str(tmp_path / "store")]
    own = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 120
    while not list((tmp_path / "store" / "locks").glob("trained-*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    own.send_signal(signal.SIGINT)
    _, said = own.communicate(timeout=60)
    assert own.returncode == 130
    assert said.splitlines()[-1].startswith("leakscope: interrupted; what is finished is kept: the same command")
    assert "Traceback" not in said
