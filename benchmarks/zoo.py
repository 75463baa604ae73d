"""Audit the whole zoo: no fake may pass, every honest defence must. Prints one JSON line.

python benchmarks/zoo.py                        # quick suite, one seed, fakes and honest
python benchmarks/zoo.py --seeds 10             # fakes with ten seeds (--first 5: from the sixth on)
python benchmarks/zoo.py --full --only keystream,phase
python benchmarks/zoo.py --honest               # honest defences for leak<=0.05 at E2: minutes each
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from typing import Any

import torch

import leakscope
from leakscope.core.data import DATASETS
from leakscope.core.errors import UsageError
from leakscope.data.splits import SplitPlan
from leakscope.testing import zoo

FAKES = {"private": 800, "heldout": 390, "public": 600}
HONEST = {"private": 700, "heldout": 300, "public": 790}


def parts(sizes: dict[str, int]) -> Any:
    return SplitPlan(**sizes).draw(DATASETS.build("digits").load(None), 0)


def fakes(seeds: range, suite: str, only: set[str] | None) -> dict[str, dict[str, int]]:
    """By fake, how often each outcome was seen."""
    private = parts(FAKES).private
    table: dict[str, Counter[str]] = {}
    for seed in seeds:
        base = zoo.network(private, seed)
        for fake in zoo.FAKES:
            if only is not None and fake.name not in only:
                continue
            started = time.monotonic()
            model, defenses = fake.build(base, private)
            try:
                found = leakscope.audit(
                    model, "digits", cut=zoo.CUT, defenses=defenses, gate="leak<=0.3", victims=48, seeds=[seed],
                    attacks=suite, splits=FAKES, metrics=["leak"],
                )  # fmt: skip
                outcome = found.verdict
                why = sorted({flag.id.value for flag in found.report.flags if flag.blocks})
            except UsageError as error:
                outcome, why = "refused", [str(error)]
            table.setdefault(fake.name, Counter())[outcome] += 1
            spent = time.monotonic() - started
            print(
                f"{fake.name:28} seed {seed} {outcome:13} {spent:5.1f} s {' '.join(why)}", file=sys.stderr, flush=True
            )
    return {name: dict(counts) for name, counts in table.items()}


def honest(only: set[str] | None) -> dict[str, Any]:
    """Verdict and level of each honest defence, asked for E2."""
    base = zoo.network(parts(HONEST).private)
    outcomes = {}
    with_useless = {**zoo.HONEST_DEFENCES, **zoo.USELESS_DEFENCES}
    for name in with_useless:
        if only is not None and name not in only:
            continue
        started = time.monotonic()
        found = leakscope.audit(
            base, "digits", cut=zoo.CUT, defenses=["none", name], gate="leak<=0.05 at E2", evidence="E2", victims=300,
            splits=HONEST, metrics=["leak"],
        )  # fmt: skip
        outcomes[name] = {
            "verdict": found.verdict,
            "level": found.report.evidence.level,
            "value": found.report.gate.value if found.report.gate else None,
            "reasons": list(found.report.reasons),
            "seconds": round(time.monotonic() - started),
        }
        print(name, outcomes[name], file=sys.stderr, flush=True)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--full", action="store_true", help="the full suite instead of the quick one")
    parser.add_argument("--honest", action="store_true", help="the honest defences, at E2")
    parser.add_argument("--only", help="names, separated by commas")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    only = set(asked.only.split(",")) if asked.only else None
    with zoo.enrolled():
        result: dict[str, Any] = {}
        if asked.honest:
            result["honest"] = honest(only)
        else:
            result["fakes"] = fakes(range(asked.first, asked.seeds), "full" if asked.full else "quick", only)
            result["passed"] = sorted(name for name, seen in result["fakes"].items() if "pass" in seen)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
