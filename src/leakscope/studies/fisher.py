"""Which layers matter for recognising, and which for rebuilding: Fisher information, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from leakscope.core.data import ImageSet, Splits
from leakscope.core.devices import widened
from leakscope.core.model import SplitModel

#: One sample's loss from the outputs of a network for that sample alone, and what the sample is compared with.
SampleLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Profile:
    """Fisher information of each layer's weights, in the order of the network.

    `mean` is (1/|P_l|) Σ_p F_p with the diagonal F_p = (1/N) Σ_n (∂ℓ_n/∂θ_p)². Early layers have few,
    widely shared weights, so a mean favours them by construction; `total` (the sum) and `weighted`
    (Σ_p θ_p² F_p, what removing the layer would cost to second order) do not.
    """

    layers: tuple[str, ...]
    mean: Tensor
    total: Tensor
    weighted: Tensor

    def normalised(self, which: str = "mean") -> Tensor:
        """A profile with a maximum of 1, as it is drawn; zeros stay zeros."""
        values: Tensor = getattr(self, which)
        return values / values.max().clamp(min=torch.finfo(values.dtype).tiny)


class _Scores(nn.Module):
    def __init__(self, split: SplitModel) -> None:
        super().__init__()
        self.split = split

    def forward(self, x: Tensor) -> Tensor:
        return self.split.run(x, None).scores


class _Features(_Scores):
    def forward(self, x: Tensor) -> Tensor:
        return self.split.encode(x).flatten(1)


def classification_profile(split: SplitModel, images: Tensor, labels: Tensor, *, chunk: int = 32) -> Profile:
    """Fisher information of recognising: ℓ_n = CE(T(x_n), y_n)."""
    return _profile(_Scores(split), images, labels, lambda scores, label: F.cross_entropy(scores, label), chunk)


def inversion_profile(
    split: SplitModel, rebuilt: Tensor, centres: Tensor, *, power: int = 2, chunk: int = 32
) -> Profile:
    """Fisher information of rebuilding: ℓ_j = ‖Φ(x̂_j) − c_j‖ with features Φ at the cut and class centres c_j.

    Ho et al., "Model Inversion Robustness: Can Transfer Learning Help?", 2024. Centres of J×d numbers are constants;
    given as pictures of each class, J×K×C×H×W, they are c_j = mean_k Φ(x_jk) and move with the weights. Which of the
    two was published is not said. Layers behind the cut get zero: Φ does not use them.
    """
    if centres.ndim == 2:
        return _profile(
            _Features(split), rebuilt, centres,
            lambda features, centre: torch.linalg.vector_norm(features[0] - centre, ord=power), chunk,
        )  # fmt: skip
    # The picture and those of its class go through the network together, under the same weights.
    together = torch.cat([rebuilt[:, None], centres], 1)
    return _profile(
        _Features(split), together, torch.zeros(len(together)),
        lambda features, _: torch.linalg.vector_norm(features[0] - features[1:].mean(0), ord=power),
        max(1, chunk // together.shape[1]),
    )  # fmt: skip


@torch.no_grad()
def class_centres(split: SplitModel, images: Tensor, labels: Tensor, classes: Tensor, batch: int = 256) -> Tensor:
    """Mean features of each class under this very network, in the order of `classes`: J×d."""
    features = torch.cat([split.encode(part).flatten(1) for part in images.split(batch)])
    return torch.stack([features[labels == one].mean(0) for one in classes])


def pictures_by_class(data: ImageSet, classes: Tensor, count: int) -> Tensor:
    """The first `count` pictures of each class in the order of `classes`: J×K×C×H×W, K as small as the least class."""
    places = [(data.labels == one).nonzero().flatten() for one in classes]
    least = min(count, *(len(own) for own in places))
    return torch.stack([data.images[own[:least]] for own in places])


@dataclass(frozen=True)
class Comparison:
    """Profiles of one network by name, each with a maximum of 1, over its layers."""

    layers: tuple[str, ...]
    profiles: Mapping[str, tuple[float, ...]]

    def correlation(self) -> float:
        """Pearson's, of recognising and rebuilding, over the layers that features pass."""
        one, other = (np.array(self.profiles[name]) for name in (CLASSIFICATION, INVERSION))
        before = np.array(other) > 0
        return float(np.corrcoef(one[before], other[before])[0, 1]) if before.sum() > 1 else 0.0

    def early_share(self, name: str) -> float:
        """Share of a profile in the first half of the layers that features pass."""
        before = np.array(self.profiles[INVERSION]) > 0
        values = np.array(self.profiles[name])[before]
        return float(values[: len(values) // 2].sum() / max(values.sum(), 1e-300))


CLASSIFICATION, INVERSION = "classification", "inversion"
#: Pictures of a class whose centre moves with the weights.
_OF_A_CLASS = 4


def compare(
    split: SplitModel, fresh: SplitModel, splits: Splits, classes: Tensor, rebuilt: Mapping[str, Tensor], count: int
) -> Comparison:
    """Recognising beside rebuilding, with controls that rebuild nothing.

    `rebuilt` are one picture of each class by name, the last of them the attack's result; `fresh` is the network
    before training, which is compared with class centres of its own.
    """
    private, heldout, public = splits.private, splits.heldout, splits.public
    own = class_centres(split, private.images, private.labels, classes)
    random = class_centres(fresh, private.images, private.labels, classes)
    final = list(rebuilt.values())[-1]
    each = pictures_by_class(private, classes, _OF_A_CLASS)
    few = min(len(classes), len(public))
    found = {
        CLASSIFICATION: classification_profile(split, heldout.images[:count], heldout.labels[:count]),
        INVERSION: inversion_profile(split, final, own),
        "inversion, l1": inversion_profile(split, final, own, power=1),
        "inversion, centres move": inversion_profile(split, final, each),
        **{name: inversion_profile(split, images, own) for name, images in list(rebuilt.items())[:-1]},
        "control: random weights": inversion_profile(fresh, final, random),
        "control: public pictures": inversion_profile(split, public.images[:few], own[:few]),
        "control: private pictures": inversion_profile(split, each[:, 0], own),
    }
    lines = {name: tuple(round(value, 6) for value in profile.normalised().tolist()) for name, profile in found.items()}
    return Comparison(found[INVERSION].layers, lines)


def _profile(model: nn.Module, images: Tensor, against: Tensor, loss: SampleLoss, chunk: int) -> Profile:
    model.eval()
    # Only layers with a weight matrix or kernel: normalisation has a handful of numbers and no direction.
    owners = [name for name, m in model.named_modules() if isinstance(getattr(m, "weight", None), nn.Parameter)
              and m.weight.ndim > 1]  # fmt: skip
    parameters = {name: p.detach() for name, p in model.named_parameters() if name.rpartition(".")[0] in owners}
    others = {name: p.detach() for name, p in model.named_parameters() if name not in parameters}
    others |= dict(model.named_buffers())

    def of_one(weights: dict[str, Tensor], image: Tensor, target: Tensor) -> Tensor:
        # One picture, or one with those it is compared with.
        outputs = functional_call(model, {**weights, **others}, (image[None] if image.ndim == 3 else image,))
        return loss(outputs, target[None] if target.ndim == 0 else target)

    each = vmap(grad(of_one), in_dims=(None, 0, 0))
    sums = {name: widened(torch.zeros_like(p)) for name, p in parameters.items()}
    for part, own in zip(images.split(chunk), against.split(chunk), strict=True):
        for name, gradients in each(parameters, part, own).items():
            sums[name] += widened(gradients).square().sum(0)
    fisher = {name: total / len(images) for name, total in sums.items()}

    def over(layer: str, value: Callable[[str], Tensor]) -> Tensor:
        return torch.cat([value(name).flatten() for name in parameters if name.rpartition(".")[0] == layer])

    return Profile(
        layers=tuple(layer.removeprefix("split.model.") for layer in owners),
        mean=torch.stack([over(layer, fisher.__getitem__).mean() for layer in owners]),
        total=torch.stack([over(layer, fisher.__getitem__).sum() for layer in owners]),
        weighted=torch.stack(
            [over(layer, lambda n: fisher[n] * widened(parameters[n]) ** 2).sum() for layer in owners]
        ),
    )
