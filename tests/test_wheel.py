"""The wheel, installed outside the repository: what the README says works there, with nothing of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Makes `audit demo` a matter of seconds; the whole demo is `make demo`.
SHORT = "--data digits --attack ridge --defense none --cut features.2 --victims 8 --epochs 1".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment: our wheel in its own site-packages, all else borrowed from this one."""
    pytest.importorskip("setuptools", reason="the wheel is built with setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = [*pip, "wheel", str(source), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("leakscope-*.whl")
    venv.create(folder / "venv", with_pip=False)
    bin_ = folder / "venv" / "bin"
    python = str(bin_ / "python")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = folder / "venv" / "lib" / version / "site-packages"
    # A path in a .pth file is searched after the environment's own folder, and .pth files in it (the checkout's
    # editable install) are not obeyed.
    (own / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    done = subprocess.run(
        [*pip, "--python", python, "install", "--no-deps", "--no-index", "--ignore-installed", str(wheel)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return bin_


def _run(installed: Path, folder: Path, *words: str) -> str:
    """A command of the installed wheel, in a folder of its own, without the checkout on any path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LEAKSCOPE", "COV"))}
    done = subprocess.run(
        [str(installed / words[0]), *words[1:]], cwd=folder, env={**kept, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in {0, 1}, f"{words}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


#: The other commands, in one process: each starts torch again otherwise.
REST = """
import contextlib, io, json, torch, leakscope
from leakscope.cli import app, run

def told(*words):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        code = run(app, list(words))
    assert code == 0, (words, code)
    return shown.getvalue()

print(leakscope.__file__)
assert "leakscope.yaml" in told("init")
assert "gaussian" in told("audit", "leakscope.yaml", "--dry-run")
words = ["--data", "digits", "--defense", "gaussian:sigma=0.1", "--epochs", "1", "--cut", "features.2"]
(trained,) = json.loads(told("train", *words, "--quiet", "--json"))
assert "deployed" in told("export", trained["key"], "--out", "deployed")
deployed = leakscope.load("deployed")
sent = deployed.client(torch.rand(2, 1, 8, 8))
assert deployed.server(sent).shape == (2, 10)
assert "trained" in told("store", "size")
assert told("store", "verify")
"""


def test_the_installed_wheel_does_what_the_readme_says(installed: Path, tmp_path: Path) -> None:
    assert "report: runs/audit/report.html" in _run(installed, tmp_path, "leakscope", "audit", "demo", *SHORT)
    page = (tmp_path / "runs/audit/report.html").read_text()
    assert "<svg" in page
    assert "data:image/png" in page
    where = _run(installed, tmp_path, "python", "-c", REST).strip()
    assert Path(where).is_relative_to(installed.parent), "the checkout was imported, not the wheel"
