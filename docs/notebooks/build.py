"""Writes and executes the example notebooks: `python docs/notebooks/build.py` (needs nbclient and ipykernel)."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent

AUDIT = [
    "# Audit your model\n\nA network that you hold, pictures of its kind, one call. The pictures are 8×8 digits and "
    "the suite is one linear attack, so that this runs in seconds; leave `attacks` out for the real suite.",
    """import torch

import leakscope

torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(72, 10)
)""",
    "**Where can it be cut?** The client computes up to a layer, and what comes out of it is what leaves the device.",
    """from leakscope.core.model import cuts

for cut in cuts(net, torch.rand(2, 1, 8, 8)):
    print(f"{cut.name:3} {cut.layer:10} {cut.shape}")""",
    "**Audit** the outputs of layer 1 and of layer 2. The network is not trained here (`training={'epochs': 5}` "
    "would), so its accuracy is that of a coin with ten sides; features of random weights leak all the same.",
    """audit = leakscope.audit(net, "digits", cut=["1", "2"], attacks=["ridge"], victims=16, gate="leak<=0.5")
audit""",
    "The same as a table, with one row per attack and target:",
    """audit.to_frame()[["cut", "accuracy", "attack", "leak", "mse", "ssim", "flags"]]""",
    "And drawn; the red line is the limit that was set.",
    "audit.plot()",
    "`audit.show()` is the whole report, `out='runs/mine'` writes it as a page, `audit.summary()` is Markdown for a "
    "model card or a pull request.",
]

DEFENCE = [
    "# Design a defence\n\nA defence is a class with one or two hooks. This one keeps the sign of every feature and "
    "throws its size away. How much does that hide, and what does it cost?",
    """from dataclasses import dataclass

import torch
from torch import Tensor

import leakscope
from leakscope.core.defense import Defense


@dataclass(frozen=True)
class Coarse(Defense):
    \"\"\"Rounds every feature to a grid, and adds noise of one step.\"\"\"

    step: float = 0.5

    adaptive = ("auto",)  # the attack that an audit adds: it trains on what is really released

    def release(self, z: Tensor, rng: torch.Generator | None = None, *, training: bool = False) -> Tensor:
        noise = torch.randn(z.shape, generator=rng, device=z.device)
        return (z / self.step).round() * self.step + self.step * noise""",
    "**Compare** it with doing nothing and with plain noise: same network, same pictures, same attacks.",
    """audit = leakscope.audit(
    "convnet", "digits", cut="features.2", defenses=["none", Coarse(step=0.5), Coarse(step=2.0), "gaussian:sigma=2.0"],
    attacks=["ridge"], victims=16, training={"epochs": 8},
)
audit""",
    "audit.plot()",
    "A defence that only *looks* private shows itself here: attacks train on what it really releases, controls say "
    "whether an attack works at all, and flags say what to doubt. One linear attack on 8×8 digits proves nothing; run "
    "the full suite before you believe a low leak:\n\n```\nleakscope audit --defense my.py:Coarse:step=2.0 "
    "--defense none --evidence E2\n```",
]


def main() -> None:
    books = {"audit-your-model": AUDIT, "design-a-defence": DEFENCE}
    for name, cells in books.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        made = nbformat.v4.new_notebook()
        made.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
        for number, text in enumerate(cells):
            code = not re.match(r"[#*A-Z`]", text)
            cell = nbformat.v4.new_code_cell(text) if code else nbformat.v4.new_markdown_cell(text)
            cell["id"] = f"cell-{number}"  # the same every time
            made.cells.append(cell)
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(made, timeout=600, resources={"metadata": {"path": folder}}).execute()
        for cell in made.cells:
            cell.metadata.pop("execution", None)  # times of this machine
            cell["outputs"] = [out for out in cell.get("outputs", []) if out.get("name") != "stderr"] or []
            if cell.cell_type != "code":
                del cell["outputs"]
        nbformat.write(made, HERE / f"{name}.ipynb")


if __name__ == "__main__":
    main()
