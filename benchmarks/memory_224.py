"""The most memory that each attack of the quick suite takes on a ResNet-50 with pictures of 224 pixels.

    python benchmarks/memory_224.py [--victims 4] [--public 256] [--cut layer2] [--only ridge]

Each attack runs in a process of its own, on the CPU, so that its peak is that of the process (ru_maxrss: everything,
Python and PyTorch included). Pictures are smooth random ones and weights are random: neither changes sizes. Attacks
that the plan leaves out for this target (no sparse layers, weights granted) are named and not run.

The bar is 8 GB. `--limit` lowers what the process believes to be free, in GB, to see that chunks follow.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

BAR = 8.0  # GB
SHAPE, CLASSES = (3, 224, 224), 10


def attacked(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Prepare and reconstruct, here; what it took."""
    import torch

    from leakscope.core import chunks, seeds
    from leakscope.core.attack import ATTACKS, Observed
    from leakscope.core.data import ImageSet
    from leakscope.core.model import SplitModel
    from leakscope.core.threat import Access, ThreatModel, grant
    from leakscope.models.architecture import MODELS
    from leakscope.testing.synthetic import smooth_images

    torch.set_num_threads(1)
    if options.limit:
        chunks.free_on = lambda device: int(options.limit * 1e9)
    attack = ATTACKS.build(name)
    with seeds.ambient(0, "resnet"):
        model = MODELS.build({"kind": "torchvision", "name": "resnet50"}).build(SHAPE, CLASSES)
    split = SplitModel(model, options.cut).eval()
    why = attack.unsuited(split, SHAPE)
    threat = ThreatModel(access=frozenset({Access.FEATURES, Access.QUERY, Access.ENCODER}))
    why = why or attack.unneeded(threat)
    if why is not None:
        return {"attack": name, "left_out": why}
    labels = torch.arange(options.public) % CLASSES
    public = ImageSet(smooth_images(options.public, "public", SHAPE), labels, tuple(map(str, range(CLASSES))))
    view = grant(split, threat, public, seeds.generator(0, "oracle"), classes=CLASSES, device=torch.device("cpu"))
    with torch.no_grad():
        seen = Observed(features=split.encode(smooth_images(options.victims, "victims", SHAPE)))
    began = time.process_time()
    prepared = attack.prepare(view, seeds.generator(0, "prepare"))
    found = attack.reconstruct(view, prepared, seen, seeds.generator(0, "reconstruct"))
    assert found.images.shape == (options.victims, *SHAPE)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {"attack": name, "peak_gb": round(peak, 2), "cpu_seconds": round(time.process_time() - began, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--victims", type=int, default=4)
    parser.add_argument("--public", type=int, default=256)
    parser.add_argument("--cut", default="layer2")
    parser.add_argument("--only")
    parser.add_argument("--limit", type=float, default=0.0)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(attacked(options.only, options)))
        return 0
    from leakscope.auditing.suites import suite
    from leakscope.core.attack import ATTACKS
    from leakscope.core.spec import label

    rows = []
    for name in [options.only] if options.only else [label(ATTACKS.build(spec)) for spec in suite("quick")]:
        command = [sys.executable, __file__, "--inside", "--only", name, "--cut", options.cut]
        command += ["--victims", str(options.victims), "--public", str(options.public), "--limit", str(options.limit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            rows.append({"attack": name, "failed": (done.stderr.splitlines() or ["?"])[-1]})
        else:
            rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    over = [row for row in rows if row.get("peak_gb", 0) > BAR or "failed" in row]
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
