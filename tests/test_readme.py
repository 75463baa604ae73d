"""What the README says, happens."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leakscope.cli import app, run
from leakscope.core.seeds import ambient
from leakscope.models.own_file import OwnFile

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(1568, 2))

    def forward(self, x):
        return self.head(self.features(x))
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like the reader's: the repository's files, own photos, own weights."""
    for name in ("examples", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    rng = np.random.default_rng(0)
    for label in ("cats", "dogs"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(30):
            pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    (tmp_path / "net.py").write_text(NET)
    with ambient(0, "readme"):
        network = OwnFile(str(tmp_path / "net.py"), "Net").build((3, 32, 32), 2)
    torch.save(network.state_dict(), tmp_path / "own.pt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_runs(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snippets = _blocks("python")
    assert snippets
    for snippet in snippets:
        with ambient(0, "snippet"):
            exec(compile(snippet, "README.md", "exec"), {})
    assert re.search(r"measured: \d+% of the picture, \d+% at worst", capsys.readouterr().out)
    assert (workplace / "runs/mine/report.html").exists()


COMMANDS = [line for block in _blocks("bash") for line in block.splitlines() if line.startswith("leakscope")]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = shlex.split(command)[1:]
    if arguments[0] == "audit":
        arguments.append("--dry-run")  # the audits themselves run in tests/cli and tests/pipeline
    assert run(app, arguments) == 0, capsys.readouterr().err


def test_a_newcomer_reaches_a_verdict_on_the_first_screen() -> None:
    """Installation, an own network in Python and one on the command line, before the first picture; no catalogue."""
    screen = "\n".join(README.splitlines()[:36])
    for word in ("pip install", "leakscope.audit(net", "leakscope audit --model", "--weights", "folder:photos"):
        assert word in screen
    assert "| attacks |" not in README
    assert README.count("docs/results/") >= 5


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile


def test_the_table_of_papers_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "update_readme.py"))
    assert made["updated"](README) == README, "run: make methods"
    index = (ROOT / "docs" / "results" / "index.md").read_text()
    assert made["updated_index"](index) == index, "run: make methods"


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
