"""A first training on public classes: what transfer learning begins with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leakscope.core import progress, seeds
from leakscope.core.data import DATASETS, ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.core.spec import Plain, describe, digest, label
from leakscope.data.images import checked, resized
from leakscope.experiments.training import Training, train
from leakscope.models.resolve import instantiate

if TYPE_CHECKING:
    from leakscope.experiments.workplace import Workplace
    from leakscope.models.architecture import Architecture


@dataclass(frozen=True)
class Pretraining:
    """How a network is trained first, on public pictures with classes that are not private.

    `least` leaves out classes with fewer pictures; `data` names another set than the public split.
    """

    training: Training = field(default_factory=Training)  # as for a target
    least: int = 5  # classes with fewer pictures are left out
    data: str | None = None  # another data set than the public split

    def pictures(self, public: ImageSet, root: Any) -> ImageSet:
        """The pictures to learn from, classes numbered anew."""
        source = public
        if self.data is not None:
            source = checked(DATASETS.build(self.data).load(root))
            if source.shape[0] != public.shape[0]:
                raise UsageError(f"pretraining.data {self.data} has {source.shape[0]} channels, not {public.shape[0]}")
            source = resized(source, public.shape[1]) if source.shape != public.shape else source
        counts = torch.bincount(source.labels)
        kept = counts >= self.least
        if int(kept.sum()) < 2:
            raise UsageError(f"pretraining needs two public classes of {self.least} pictures or more; lower `least`")
        chosen = source.take(kept[source.labels].nonzero().flatten())
        numbers = kept.long().cumsum(0) - 1
        names = tuple(name for name, keep in zip(source.classes, kept.tolist(), strict=True) if keep)
        return ImageSet(chosen.images, numbers[chosen.labels], names)


def pretrained(
    architecture: Architecture, pretraining: Pretraining, pictures: ImageSet, cut: str, seed: int, place: Workplace
) -> dict[str, Tensor]:
    """Weights after the first training, from the store or trained now. They do not depend on the cut."""
    plain: Plain = {
        "model": describe(architecture), "training": describe(pretraining.training),
        "pictures": pictures.digest(), "seed": seed,
    }  # fmt: skip
    key = digest(plain)
    with place.store.claim("pretrained", key) as done:
        if done is None:
            progress.say(f"pre-training {label(architecture)} on {len(pictures.classes)} public classes, seed {seed}")
            with seeds.ambient(seed, "pretraining", "init"):
                model = instantiate(architecture, pictures.shape, len(pictures.classes))
                split = SplitModel(model, cut, normalize=architecture.normalization()).to(place.device)
            checkpoint = place.store.scratch("pretrained", key) / "checkpoint.pt"
            split, history, _ = train(
                split, pictures, pretraining.training, seed=seed, device=place.device, checkpoint=checkpoint
            )
            state = {name: tensor.contiguous() for name, tensor in split.model.state_dict().items()}
            place.store.put("pretrained", key, {"plan": plain, "history": vars(history)}, state)
    entry = place.store.get("pretrained", key)
    assert entry is not None
    return entry.tensors()


def transplant(weights: dict[str, Tensor], split: SplitModel) -> list[str]:
    """Copy every tensor that fits into the network; returns the names that keep their fresh values (the head)."""
    own = split.model.state_dict()
    fitting = {name: weights[name] for name in own if name in weights and weights[name].shape == own[name].shape}
    if not fitting:
        raise UsageError("no pre-trained weight fits this network; pre-train the same architecture")
    split.model.load_state_dict(fitting, strict=False)
    return sorted(set(own) - set(fitting))
