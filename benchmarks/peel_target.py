"""The trained targets of benchmarks/peel.py, on CIFAR-10.

`strided`: ResNet-18 of width 32 at 32 pixels, for 75 % accuracy. Most pictures are seen at half their side, which
costs a quarter, the last ones at full size. `no-stride`: eight narrow blocks without stride on the middle 24 pixels.
Training goes on where it was stopped, and stops after `--seconds` of wall time even if it is not finished. The
data root holds `cifar10.npz`: the complete one (`python -m leakscope.data.full_sets`) for `strided`.

    python benchmarks/peel_target.py strided --data-root DATA_ROOT --file runs/peel-strided.pt [--seconds 300]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.models.preact import PreactResNetArchitecture

#: What `target` of benchmarks/peel.py hands to a network: pixels less 0.5, over 0.25.
MEAN, SPREAD = 0.5, 0.25
RATE, DECAY = 0.1, 5e-4


@dataclass(frozen=True)
class Recipe:
    architecture: PreactResNetArchitecture
    side: int  # of the middle of a picture
    batch: int
    phases: tuple[tuple[int, int], ...]  # side pictures are shrunk to, steps

    def build(self) -> nn.Module:
        with seeds.ambient(0, "benchmark", "peel-target"):
            return self.architecture.build((3, self.side, self.side), 10)

    def load(self, path: Path) -> tuple[nn.Module, float]:
        """The trained network and its accuracy on the test pictures."""
        kept = torch.load(path, weights_only=True)
        if "accuracy" not in kept:
            raise SystemExit(f"{path} is not trained to its end; call python benchmarks/peel_target.py again")
        network = self.build()
        network.load_state_dict(kept["network"])
        return network.eval(), float(kept["accuracy"])


RECIPES = {
    "strided": Recipe(PreactResNetArchitecture(width=32, batch_norm=True), 32, 100, ((16, 1000), (32, 400))),
    "no-stride": Recipe(
        PreactResNetArchitecture(width=4, growth=(2, 1, 1), strided=False, batch_norm=True), 24, 64, ((24, 400),)
    ),
}


def data(root: Path, side: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with np.load(root / "cifar10.npz") as arrays:
        train, labels, test, answers = (
            torch.from_numpy(arrays[f"{split}_{what}"]) for split in ("train", "test") for what in ("images", "labels")
        )
    cut = slice((32 - side) // 2, (32 + side) // 2)
    return (
        train.permute(0, 3, 1, 2)[..., cut, cut],
        labels.long(),
        test.permute(0, 3, 1, 2)[..., cut, cut],
        answers.long(),
    )


def scaled(images: Tensor, side: int) -> Tensor:
    x = (images.float() / 255 - MEAN) / SPREAD
    if side < x.shape[-1]:
        x = F.avg_pool2d(x, x.shape[-1] // side)
    return x.contiguous(memory_format=torch.channels_last)


def shifted(images: Tensor, rng: torch.Generator) -> Tensor:
    """Mirrored every other time and moved by up to four pixels, the whole batch alike."""
    flip = torch.rand(len(images), generator=rng) < 0.5
    images = torch.where(flip[:, None, None, None], images.flip(3), images)
    down, right = (int(torch.randint(0, 9, (), generator=rng)) for _ in range(2))
    return F.pad(images, (4, 4, 4, 4))[..., down : down + images.shape[2], right : right + images.shape[3]]


def train(recipe: Recipe, root: Path, path: Path, seconds: float = float("inf")) -> bool:
    """Steps until the end or until the time is up; whether it is the end."""
    network = recipe.build()
    images, labels, test, answers = data(root, recipe.side)
    optimizer = torch.optim.SGD(network.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=DECAY)
    first = 0
    if path.exists():
        kept = torch.load(path, weights_only=True)
        if "accuracy" in kept:
            return True
        network.load_state_dict(kept["network"])
        optimizer.load_state_dict(kept["optimizer"])
        first = int(kept["step"])
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    total = sum(steps for _, steps in recipe.phases)
    sides = [side for side, steps in recipe.phases for _ in range(steps)]
    begun = time.monotonic()
    network.train()
    for step in range(first, total):
        rng = seeds.generator(0, "benchmark", "peel-target", step)
        chosen = torch.randint(len(images), (recipe.batch,), generator=rng)
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / 100) * (1 - step / total)
        loss = F.cross_entropy(network(scaled(shifted(images[chosen], rng), sides[step])), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} of {total}: loss {float(loss.detach()):.3f}", flush=True)
        if time.monotonic() - begun > seconds and step + 1 < total:
            state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, path)
            return False
    network.eval()
    with torch.no_grad():
        guesses = torch.cat([network(scaled(chunk, recipe.side)).argmax(1) for chunk in test.split(500)])
    accuracy = float((guesses == answers).float().mean())
    print(f"accuracy {accuracy:.4f}")
    torch.save({"network": network.state_dict(), "accuracy": accuracy}, path)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    done = train(RECIPES[asked.recipe], asked.data_root, asked.file, asked.seconds)
    print("finished" if done else "stopped; call again to go on")


if __name__ == "__main__":
    main()
