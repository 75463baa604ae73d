"""A bound beside the measurement: what no attack on one noisy release can do better than."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense, members
from leakscope.core.model import SplitModel
from leakscope.core.reports import Bound
from leakscope.core.results import from_json, to_json
from leakscope.defenses.gaussian import Gaussian
from leakscope.experiments.experiment import TargetSpec
from leakscope.experiments.scene import Scene
from leakscope.experiments.stages import Target
from leakscope.experiments.workplace import Workplace
from leakscope.metrics.entropy import error_bound, information_bound, picture_variances
from leakscope.store import Store

_FITTED, _MEASURED = 2000, 2000  # pictures: of the public set, of the held-out set
_VARIANCES = 4000

ASSUMPTIONS = (
    "pictures are Gaussian with the covariance of the held-out and public pictures, and known to 8 bits per pixel",
    "each picture is sent once: noise that is drawn again can be averaged away",
    "held-out pictures stand for those that will be sent",
)


def released_noise(defense: Defense) -> float | None:
    """The standard deviation of Gaussian noise at release; None when there is none."""
    found = [part.sigma for part in members(defense) if isinstance(part, Gaussian) and part.at_release and part.sigma]
    return max(found, default=None)


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
    found = error_bound(picture_variances(pictures), nats)
    return Bound(sigma=sigma, pictures=len(two), assumptions=ASSUMPTIONS, **vars(found))


@torch.no_grad()
def _before_noise(split: SplitModel, data: ImageSet, limit: int, defense: Defense, device: torch.device) -> Tensor:
    """What the widest noise is added to. What acts behind it can only take information away."""
    rng = seeds.generator(0, "bound", device=device)
    sigma = released_noise(defense)
    sent = []
    for images in data.images[:limit].split(256):
        z = split.encode(images.to(device))
        for part in members(defense):
            if isinstance(part, Gaussian) and part.at_release and part.sigma == sigma:
                break
            z = part.release(z, rng)
        sent.append(z.flatten(1).cpu())
    return torch.cat(sent)
