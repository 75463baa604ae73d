"""A computed bound beside the measurement: the least error of any attack on one noisy release."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense, members
from leakscope.core.model import SplitModel
from leakscope.core.reports import Bound
from leakscope.core.results import from_json, to_json
from leakscope.defenses.fisher_noise import FisherNoise
from leakscope.defenses.gaussian import Gaussian
from leakscope.experiments.experiment import TargetSpec
from leakscope.experiments.scene import Scene
from leakscope.experiments.stages import Target
from leakscope.experiments.workplace import Workplace
from leakscope.metrics.entropy import error_bound, information_bound, picture_variances
from leakscope.metrics.fisher import bayesian_bound, unbiased_bound
from leakscope.nn.fisher import JUMPS, fisher_traces, unexplained
from leakscope.store import Store

_FITTED, _MEASURED = 2000, 2000  # pictures: of the public set, of the held-out set
_VARIANCES = 4000
_DIFFERENTIATED, _PROBES = 256, 8  # held-out pictures, and random directions for each
_CAUTION = 3.0  # standard errors by which an estimate is moved towards the cautious side

ASSUMPTIONS = (
    "pictures are Gaussian with the covariance of the held-out and public pictures, and known to 8 bits per pixel",
    "each picture is sent once: noise that is drawn again can be averaged away",
    "held-out pictures stand for those that will be sent",
)

SMOOTH = "for the bound by Fisher information: features follow the picture without jumps, as on ways between pictures"
JUMPING = "features jump as the picture changes, so that Fisher information bounds nothing"


def released_noise(defense: Defense) -> float | None:
    """The standard deviation of Gaussian noise at release; None when there is none."""
    return max((sigma for part in members(defense) if (sigma := _noise_of(part))), default=None)


def _noise_of(part: Defense) -> float:
    if isinstance(part, FisherNoise):
        return float(part.bound > 0)  # features are scaled so that the noise is one
    return part.sigma if isinstance(part, Gaussian) and part.at_release and part.layers == "cut" else 0.0


def keep_bound(scene: Scene, spec: TargetSpec, target: Target, place: Workplace) -> None:
    """The bound for a target with Gaussian noise at release, kept under the target's key; an empty one for others."""
    sigma = released_noise(spec.defense)
    with place.store.claim("bound", spec.key) as done:
        if done is None:
            bound = None if sigma is None else _bound(scene, spec.defense, sigma, target.split, place.device)
            place.store.put("bound", spec.key, {"bound": None if bound is None else to_json(bound)})


def read_bound(store: Store, target: str) -> Bound | None:
    entry = store.get("bound", target)
    kept = None if entry is None else entry.record["bound"]
    return None if kept is None else from_json(Bound, kept)


def _bound(scene: Scene, defense: Defense, sigma: float, split: SplitModel, device: torch.device) -> Bound:
    fitted, measured = scene.splits.public, scene.splits.heldout
    one, two = (_before_noise(split, part, limit, defense, device) for part, limit in (
        (fitted, _FITTED), (measured, _MEASURED),
    ))  # fmt: skip
    nats = information_bound(one, fitted.labels[: len(one)], two, measured.labels[: len(two)], sigma)
    pictures = torch.cat((measured.images[: _VARIANCES // 2], fitted.images[: _VARIANCES // 2]))
    variances = picture_variances(pictures)
    found = error_bound(variances, nats)
    trace = _information(split, measured, defense, sigma, device)
    assumptions = (*ASSUMPTIONS, JUMPING if trace is None else SMOOTH)
    bound = Bound(sigma=sigma, pictures=len(two), assumptions=assumptions, **vars(found))
    if trace is None or trace == 0:
        return bound
    return replace(
        bound, fisher=bayesian_bound(trace, variances), unbiased=unbiased_bound(trace, found.dimensions)
    )  # fmt: skip


def _information(
    split: SplitModel, data: ImageSet, defense: Defense, sigma: float, device: torch.device
) -> float | None:
    """The mean trace of the Fisher information of one release, moved up by three errors; None when features jump."""
    images = data.images[:_DIFFERENTIATED].to(device)
    rng = seeds.generator(0, "bound", "probes", device=device)

    def encode(x: Tensor) -> Tensor:
        # The same draws every time: an attacker who knew them would know more, not less.
        return _up_to_noise(split, x, defense, seeds.generator(0, "bound", "release", device=device))

    half = len(images) // 2
    if half and unexplained(encode, images[:half], images[half : 2 * half], rng) > JUMPS:
        return None
    traces = torch.cat([fisher_traces(encode, part, _PROBES, rng) for part in images.split(64)]) / sigma**2
    error = traces.std() / len(traces) ** 0.5 if len(traces) > 1 else traces.new_zeros(())
    return float(traces.mean() + _CAUTION * error)


@torch.no_grad()
def _before_noise(split: SplitModel, data: ImageSet, limit: int, defense: Defense, device: torch.device) -> Tensor:
    """The features before the widest noise. Whatever follows it can only remove information."""
    rng = seeds.generator(0, "bound", device=device)
    parts = data.images[:limit].split(256)
    return torch.cat([_up_to_noise(split, part.to(device), defense, rng).flatten(1).cpu() for part in parts])


def _up_to_noise(split: SplitModel, images: Tensor, defense: Defense, rng: torch.Generator) -> Tensor:
    sigma = released_noise(defense)
    z = split.encode(images)
    for part in members(defense):
        if _noise_of(part) == sigma:
            break
        z = part.release(z, rng)
    return z
