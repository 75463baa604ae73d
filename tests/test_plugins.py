"""A real package from outside: the example of CONTRIBUTING.md is installed, listed, tested and run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = textwrap.dedent(re.findall(r"   ```python\n(.*?)   ```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)[0])

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "leakscope-example"
version = "1.0"
[project.entry-points."leakscope.attacks"]
least-squares = "leakscope_example"
broken = "leakscope_example_broken"
[tool.setuptools]
py-modules = ["leakscope_example", "leakscope_example_broken"]
"""

CONTRACT = """
import pytest
from leakscope.core.attack import ATTACKS
from leakscope.testing import AttackContract

class TestLeastSquares(AttackContract):
    @pytest.fixture
    def attack(self):
        return ATTACKS.build("least-squares")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where the package is installed, on the path of the processes to come."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "leakscope_example.py").write_text(EXAMPLE)
    (folder / "leakscope_example_broken.py").write_text("raise RuntimeError('not today')\n")
    (folder / "test_contract.py").write_text(CONTRACT)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    made = subprocess.run([*install, "--target", str(folder / "site"), str(folder)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"pip cannot install here: {made.stderr.strip().splitlines()[-1]}")
    source = os.pathsep.join([str(folder / "site"), str(ROOT / "src")])
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "FOLDER": str(folder)}


def _run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=environment, cwd=environment["FOLDER"], capture_output=True, text=True
    )


def test_it_is_listed_and_the_broken_one_beside_it_is_a_warning(environment: dict[str, str]) -> None:
    answer = _run(environment, "-m", "leakscope", "list", "attacks")
    assert answer.returncode == 0, answer.stderr
    assert "least-squares" in answer.stdout
    assert "'broken'" in answer.stderr
    assert "not today" in answer.stderr


def test_it_meets_the_contract_that_contributing_names(environment: dict[str, str]) -> None:
    answer = _run(environment, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_contract.py")
    assert answer.returncode == 0, answer.stdout[-2000:]


def test_it_attacks_in_an_audit(environment: dict[str, str]) -> None:
    words = ["-m", "leakscope", "attack", "--data", "digits", "--model", "mlp:widths=[32]", "--epochs", "1"]
    answer = _run(environment, *words, "--attack", "least-squares", "--victims", "8", "--quiet", "--store", "store")
    assert answer.returncode == 0, answer.stderr
    assert "least-squares" in answer.stdout
