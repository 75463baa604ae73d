"""Whether two versions give the same scores, bit for bit: SHA-256 of every metric's values in a store.

    python benchmarks/golden.py STORE              # write the golden JSON to the standard output
    python benchmarks/golden.py STORE golden.json  # compare; exit code 1 if a result differs or is missing

Run the same configuration with both versions, `OMP_NUM_THREADS=1` on the same machine, each into a store of its own.
It reads records of versions 0.1 and 0.2 as plain JSON, because it must not depend on the code that it compares.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Golden = dict[str, dict[str, str]]


def _record(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "record.json").read_text())
    return dict(found.get("summary", {}))


def _label(value: Any) -> str:
    """Version 0.1 wrote labels, 0.2 writes methods that have one."""
    return str(value["label"] if isinstance(value, dict) else value)


def golden(store: Path) -> Golden:
    """By target and attack, the hash of each metric's values."""
    targets = {path.name: _record(path) for path in (store / "entries" / "target").glob("*/*")}
    found: Golden = {}
    for path in (store / "entries" / "result").glob("*/*"):
        own = _record(path)
        target = {**targets.get(own["target"], {}), **own}  # version 0.1 wrote what the target is into its results
        if "model" not in target:  # a control
            continue
        place = "/".join(
            [_label(target["model"]), str(target["cut"]), _label(target["defense"]), str(target["seed"]),
             _label(own["attack"])]
        )  # fmt: skip
        tensors = load_file(path / "tensors.safetensors")
        hashes = {name: hashlib.sha256(np.ascontiguousarray(v).tobytes()).hexdigest() for name, v in tensors.items()}
        found[place] = {name: value for name, value in sorted(hashes.items()) if name in own["metrics"]}
    return dict(sorted(found.items()))


def differences(ours: Golden, theirs: Golden) -> list[str]:
    """One line per metric that is not equal or not there."""
    return [
        f"{place}: {name} {'is missing' if name not in ours.get(place, {}) else 'differs'}"
        for place, metrics in theirs.items()
        for name, value in metrics.items()
        if ours.get(place, {}).get(name) != value
    ]


if __name__ == "__main__":
    present = golden(Path(sys.argv[1]))
    if len(sys.argv) < 3:
        print(json.dumps(present, indent=1))
        sys.exit(0)
    wanted: Golden = json.loads(Path(sys.argv[2]).read_text())
    wrong = differences(present, wanted)
    print("\n".join(wrong))
    equal = sum(not differences(present, {place: own}) for place, own in wanted.items())
    print(f"{equal} of {len(wanted)} results equal bit for bit")
    sys.exit(bool(wrong))
