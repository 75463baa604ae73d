"""Whether a device gives the scores that it should: every attack and defence in small, against shipped references.

References are made on a CPU (`python -m leakscope.experiments.selftest > …/selftest.json`), under several seeds. A
device draws other random numbers than a CPU and sums in another order, so a score agrees when it lies within what
seeds alone do to it: four standard deviations, and never less than `LEAST`.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.resources import files

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.core import progress, seeds
from leakscope.core.attack import ATTACKS, Attack, Observed
from leakscope.core.defense import DEFENSES
from leakscope.core.devices import free_on, has_float64
from leakscope.core.memory import said
from leakscope.core.model import Normalize, SplitModel
from leakscope.experiments.training import Training, train
from leakscope.models.preact import PreactResNetArchitecture
from leakscope.testing import small
from leakscope.testing.synthetic import CLASSES, SHAPE, image_set, small_split, small_view, smooth_images

LEAST = 0.02
_DEVIATIONS = 4.0
_SEEDS = range(5)
_VICTIMS = 6


@dataclass(frozen=True)
class Reference:
    """A score on the CPU: its mean and standard deviation over seeds."""

    mean: float
    spread: float

    @property
    def allowed(self) -> float:
        return max(LEAST, _DEVIATIONS * self.spread)


@dataclass(frozen=True)
class Check:
    """One method on the device."""

    name: str
    found: float | None  # None: it did not run
    reference: Reference
    seconds: float
    problem: str = ""  # what went wrong, in one line

    @property
    def agrees(self) -> bool:
        return self.found is not None and abs(self.found - self.reference.mean) <= self.reference.allowed


@dataclass(frozen=True)
class SelfTest:
    """The report that a GPU owner sends in."""

    device: str
    facts: dict[str, str]
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.agrees for check in self.checks)


def selftest(device: torch.device) -> SelfTest:
    """Run every method of the references on a device."""
    checks = []
    known = references()
    scores = dict(_scores())
    with progress.stage("selftest", len(known)) as bar:
        for name, reference in known.items():
            checks.append(_checked(name, scores[name], reference, device))
            bar.advance()
    return SelfTest(str(device), _facts(device), tuple(checks))


def references() -> dict[str, Reference]:
    """What is shipped."""
    text = files("leakscope.experiments").joinpath("selftest.json").read_text()
    return {name: Reference(**values) for name, values in json.loads(text).items()}


#: The score of one method on a device, under a seed.
Score = Callable[[torch.device, int], float]


def _scores() -> Iterator[tuple[str, Score]]:
    """Every attack and every defence, by name."""
    for name in small.ATTACKS:
        yield f"attack {name}", _attack_score(name)
    for name in small.DEFENSES:
        yield f"defence {name}", _defence_score(name)


def _attack_score(name: str) -> Score:
    """Pictures: the share of their variance that is rebuilt. Classes: the mean chance the target gives them."""

    def score(device: torch.device, seed: int) -> float:
        attack: Attack = ATTACKS.build({"kind": name, **small.ATTACKS[name]})
        split = (residual_split() if name in small.RESIDUAL else small_split()).to(device)
        view = small_view(attack.needs, device=device, split=split, public=16 if name in small.RESIDUAL else 160)
        truth = smooth_images(_VICTIMS, "victims").to(device)
        prepared = attack.prepare(view, seeds.generator(seed, "prepare", device=device))
        rng = seeds.generator(seed, "reconstruct", device=device)
        if attack.goal == "identities":
            labels = torch.arange(CLASSES, device=device)
            images = attack.reconstruct(view, prepared, Observed(classes=labels), rng).images
            own = labels.repeat_interleave(len(images) // CLASSES)
            with torch.no_grad():
                chance: Tensor = split.run(images).scores.softmax(1)
            return float(chance.gather(1, own[:, None]).mean())
        with torch.no_grad():
            seen = split.release(truth, seeds.generator(seed, "victims", device=device))
        images = attack.reconstruct(view, prepared, Observed(features=seen), rng).images
        return float(1 - (images - truth).square().sum() / (truth - truth.mean(0)).square().sum())

    return score


def _defence_score(name: str) -> Score:
    """The cross-entropy on the private pictures after two epochs in the real loop, through the release."""

    def score(device: torch.device, seed: int) -> float:
        defense = DEFENSES.build({"kind": name, **small.DEFENSES[name]})
        data = image_set(24, "private")
        with seeds.ambient(0, "rebuild"):
            split = defense.rebuild(small_split(), data.images[:2])
        split.defense = defense
        training = Training(epochs=2, batch=12, optimizer="sgd", learning_rate=0.01)
        split, _, _ = train(split, data, training, seed=seed, device=device)
        with torch.no_grad():
            rng = seeds.generator(seed, "release", device=device)
            scores = split.eval().run(data.images.to(device), rng).scores
        return float(F.cross_entropy(scores, data.labels.to(device)))

    return score


def residual_split() -> SplitModel:
    """A small residual network, for the attacks that take one apart."""
    with seeds.ambient(0, "residual"):
        model = PreactResNetArchitecture(width=4, strided=False, growth=(2, 1, 1)).build(SHAPE, CLASSES)
    return SplitModel(model, "layer2.1", normalize=Normalize((0.5,), (0.25,))).eval()


def _checked(name: str, score: Score, reference: Reference, device: torch.device) -> Check:
    started, found, problem = time.perf_counter(), None, ""
    try:
        found = score(device, 0)
    except Exception as error:  # whatever a device does wrong belongs into the report
        lines = str(error).splitlines() or [""]
        problem = f"{type(error).__name__}: {lines[0]}"
    return Check(name, found, reference, time.perf_counter() - started, problem)


def _facts(device: torch.device) -> dict[str, str]:
    module = None if device.type == "cpu" else torch.get_device_module(device)
    name = platform.processor() or platform.machine()
    if module is not None:
        name = module.get_device_name(device) if hasattr(module, "get_device_name") else device.type
    return {
        "hardware": name,
        "free memory": said(free_on(device)),
        "float64": "yes" if has_float64(device) else "no",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "leakscope": version("leakscope"),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def measured_references() -> dict[str, Reference]:
    """The references anew, on this CPU."""
    found = {}
    for name, score in _scores():
        values = [score(torch.device("cpu"), seed) for seed in _SEEDS]
        found[name] = Reference(round(statistics.fmean(values), 6), round(statistics.stdev(values), 6))
    return found


if __name__ == "__main__":
    json.dump({name: asdict(own) for name, own in measured_references().items()}, sys.stdout, indent=1)
    sys.stdout.write("\n")
