"""Which layers matter for recognising, and which for rebuilding: Fisher information, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

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

    Ho et al., "Model Inversion Robustness: Can Transfer Learning Help?", 2024; the centres are not
    differentiated. Layers behind the cut get zero: Φ does not use them.
    """
    return _profile(
        _Features(split), rebuilt, centres,
        lambda features, centre: torch.linalg.vector_norm(features[0] - centre, ord=power), chunk,
    )  # fmt: skip


def _profile(model: nn.Module, images: Tensor, against: Tensor, loss: SampleLoss, chunk: int) -> Profile:
    model.eval()
    # Only layers with a weight matrix or kernel: normalisation has a handful of numbers and no direction.
    owners = [name for name, m in model.named_modules() if isinstance(getattr(m, "weight", None), nn.Parameter)
              and m.weight.ndim > 1]  # fmt: skip
    parameters = {name: p.detach() for name, p in model.named_parameters() if name.rpartition(".")[0] in owners}
    others = {name: p.detach() for name, p in model.named_parameters() if name not in parameters}
    others |= dict(model.named_buffers())

    def of_one(weights: dict[str, Tensor], image: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(model, {**weights, **others}, (image[None],))
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
