"""A real package from outside: the example of CONTRIBUTING.md is installed, listed, tested and run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
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


#: All three in one process: each would start torch again.
USE = """
import contextlib, io, json, pytest
from leakscope.cli import app, run

def told(work):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = work()
    return [int(code), out.getvalue(), err.getvalue()]

attack = "attack --data digits --model mlp:widths=[32] --epochs 1 --attack least-squares --victims 8 --quiet --store s"
print(json.dumps({
    "list": told(lambda: run(app, ["list", "attacks"])),
    "contract": told(lambda: pytest.main(["-q", "-p", "no:cacheprovider", "test_contract.py"])),
    "attack": told(lambda: run(app, attack.split())),
}))
"""


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """What a process with the package on its path says to three uses of it."""
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
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", USE], env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name: Answer(*answer) for name, answer in json.loads(done.stdout).items()}


def test_it_is_listed_and_the_broken_one_beside_it_is_a_warning(answers: dict[str, Answer]) -> None:
    answer = answers["list"]
    assert answer.code == 0, answer.err
    assert "least-squares" in answer.out
    assert "'broken'" in answer.err
    assert "not today" in answer.err


def test_it_meets_the_contract_that_contributing_names(answers: dict[str, Answer]) -> None:
    answer = answers["contract"]
    assert answer.code == 0, answer.out[-2000:]
    assert "passed" in answer.out


def test_it_attacks_in_an_audit(answers: dict[str, Answer]) -> None:
    answer = answers["attack"]
    assert answer.code == 0, answer.err
    assert "least-squares" in answer.out
