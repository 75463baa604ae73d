"""Floors: what an attacker scores without observing the victim."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from leakscope.core.attack import Attack
from leakscope.core.data import ImageSet
from leakscope.core.spec import describe, digest
from leakscope.experiments.scene import Scene


def class_means(public: ImageSet, labels: Tensor) -> Tensor:
    """For each label, the mean public picture of that class; the overall mean where the class is absent."""
    count = max(int(labels.max()), int(public.labels.max())) + 1
    flat = public.images.flatten(1)
    sums = torch.zeros(count, flat.shape[1]).index_add_(0, public.labels, flat)
    sizes = torch.bincount(public.labels, minlength=count).unsqueeze(1)
    means = torch.where(sizes > 0, sums / sizes.clamp(min=1), flat.mean(0, keepdim=True))
    return means[labels].view(-1, *public.shape)


def mean_image(public: ImageSet, victims: ImageSet) -> Tensor:
    """One picture for everybody."""
    return public.images.mean(0, keepdim=True).expand(len(victims), -1, -1, -1)


def class_mean_image(public: ImageSet, victims: ImageSet) -> Tensor:
    """What the label alone tells."""
    return class_means(public, victims.labels)


def nearest_public_image(public: ImageSet, victims: ImageSet) -> Tensor:
    """The public picture nearest to the victim's: an upper limit for attacks that only retrieve public pictures."""
    distances = torch.cdist(victims.images.flatten(1), public.images.flatten(1))
    return public.images[distances.argmin(1)]


#: A victim this much nearer to a public picture than pictures of the set usually are to their nearest is a copy.
NEAR = 0.1


def near_duplicates(public: ImageSet, victims: ImageSet) -> int:
    """How many victims have a nearly equal public picture, against the scale of the data's own nearest neighbours."""
    if not victims.pixels or len(public) < 50:
        return 0
    sample = public.images[:500].flatten(1)
    between = torch.cdist(sample, public.images.flatten(1))
    between[torch.arange(len(sample)), torch.arange(len(sample))] = torch.inf
    usual = between.amin(1).median()
    nearest = torch.cdist(victims.images.flatten(1), public.images.flatten(1)).amin(1)
    # Copies by re-encoding differ by a few 8-bit steps per pixel.
    steps = 3 / 255 * sample.shape[1] ** 0.5
    return int((nearest < max(NEAR * float(usual), min(steps, 0.3 * float(usual)))).sum())


FLOORS: dict[str, Callable[[ImageSet, ImageSet], Tensor]] = {
    "mean": mean_image,
    "class-mean": class_mean_image,
    "nearest-public": nearest_public_image,
}


def floors_key(scene: Scene, attacks: Sequence[Attack]) -> str:
    """Identity of the floors of a scene; those of class attacks include samples of the attacks' priors."""
    priors = [describe(prior) for attack in attacks if (prior := getattr(attack, "prior", None)) is not None]
    metrics = [describe(metric) for metric in scene.metrics]
    judge = scene.goal.judged_by(scene)
    of = [scene.splits_digest, scene.first_victims.digest(), metrics, judge, priors]
    return digest({"floors": of if scene.threat.public == "own" else [*of, scene.threat.public]})
