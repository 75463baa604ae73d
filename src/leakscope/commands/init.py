"""`leakscope init`: a configuration and a workflow to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakscope.commands.settings import say
from leakscope.core.errors import UsageError
from leakscope.options import RUN, option

CONFIGURATION, WORKFLOW = Path("leakscope.yaml"), Path(".github/workflows/leakscope.yml")

_CONFIGURATION = """\
# What `leakscope audit leakscope.yaml` does. Every setting: `leakscope schema`. Names: `leakscope list`.

# Pictures: a name, folder:PATH (PATH/CLASS/picture.png; train, val and test inside are recognised), npz:PATH.
data: mnist5k
# Or say who owns which, when the network is trained already:
# private: photos/train   # what it was trained on
# heldout: photos/new     # what users send
# public: photos/web      # what the attacker has

# The network: a name, torchvision:NAME, timm:NAME, or FILE.py:FUNCTION of yours.
model: convnet
# weights: model.safetensors   # audited as they are; training.epochs trains them further
# normalize: imagenet          # what the weights expect of pixels: imagenet, none, or MEAN/STD such as 0.5/0.25

# Where the network is cut in two: `leakscope cuts MODEL --data DATA` lists the layers.
cuts: [features.2]

# Each is compared with the undefended twin, `none`. A list inside the list is a stack.
defenses:
  - none
  - {kind: gaussian, sigma: 0.5}

training: {epochs: 10}
victims: 64

# E0 looks (minutes); E1 and E2 are what a claim needs: the full suite, three seeds, controls.
evidence: E0
# What may leak at most; `at E1` demands evidence, which takes `evidence: E1`.
gate: leak<=0.5
"""

_WORKFLOW = """\
# Exit codes of the audit: 0 pass, 1 gate failed, 2 usage, 3 runtime error, 4 inconclusive.
name: leakscope
on: [push, pull_request]
permissions: {contents: read, security-events: write}
jobs:
  audit:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {python-version: "3.12"}
      - run: pip install leakscope
      - uses: actions/cache@v4 # finished stages: only what changed is computed again
        with: {path: runs/store, key: "leakscope-${{ github.sha }}", restore-keys: leakscope-}
      - run: leakscope audit leakscope.yaml --out runs/audit --quiet
      - if: always()
        run: cat runs/audit/summary.md >> "$GITHUB_STEP_SUMMARY"
      - if: always()
        uses: github/codeql-action/upload-sarif@v3
        with: {sarif_file: runs/audit/results.sarif}
"""


def init(
    folder: Annotated[Path, typer.Argument(help="Where to write.")] = Path(),
    ci: Annotated[bool, option("--ci/--no-ci", help="Also write a GitHub workflow.", panel=RUN)] = True,
) -> int:
    """Write a commented configuration, and a workflow that gates a build with it."""
    texts = {CONFIGURATION: _CONFIGURATION} | ({WORKFLOW: _WORKFLOW} if ci else {})
    there = [str(folder / name) for name in texts if (folder / name).exists()]
    if there:
        raise UsageError(f"{' and '.join(there)} is there already; take it away, or name another folder")
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        say(f"wrote {folder / name}")
    say(f"next: leakscope audit {folder / CONFIGURATION}")
    return 0
