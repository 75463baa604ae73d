"""Linear layers that add noise to what they give out, once deployed."""

from __future__ import annotations

import copy
import hashlib

import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel


class NoisyLinear(nn.Linear):
    """A linear layer with fresh noise N(0, σ²) on its outputs in eval mode; in training it is the layer it was.

    A layer inside a network is handed no generator. Each call therefore seeds one of its own, from the layer's name,
    the number of the call and the exact input: repeated calls differ, repeated runs agree, and the ambient
    generator is left alone.
    """

    def __init__(self, layer: nn.Linear, name: str, sigma: float) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias  # its own: nothing is drawn anew
        self.name, self.sigma, self.calls = name, sigma, 0

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if self.training:
            return out
        self.calls += 1
        content = hashlib.blake2b(x.detach().cpu().contiguous().numpy().tobytes(), digest_size=8).hexdigest()
        rng = seeds.generator(self.calls, self.name, content)
        noise = torch.randn(out.shape, generator=rng, dtype=out.dtype)
        return out + self.sigma * noise.to(out.device)


def with_noisy_layers(split: SplitModel, example: Tensor, sigma: float) -> SplitModel:
    """A copy of the network whose linear layers are noisy, but for the last, which gives the scores."""
    ran: list[str] = []
    handles = [
        layer.register_forward_hook(lambda module, args, output, name=name: ran.append(name))
        for name, layer in split.model.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    was_training = split.training
    try:
        with torch.no_grad():
            split.eval().run(example)
    finally:
        split.train(was_training)
        for handle in handles:
            handle.remove()
    names = list(dict.fromkeys(ran))[:-1]
    if not names:
        raise UsageError("gaussian with layers=dense needs a linear layer before the scores; take layers=cut")
    model = copy.deepcopy(split.model)
    for name in names:
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, NoisyLinear(layer, name, sigma).train(layer.training))
    rebuilt = SplitModel(model, split.cut, normalize=split.normalize, defense=split.defense)
    return rebuilt.train(was_training)
