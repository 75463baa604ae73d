"""The largest network of ours runs on an accelerator as on the CPU: scores, released features, gradients."""

from __future__ import annotations

import copy

import torch
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.model import SplitModel
from leakscope.models.vgg16 import VGG16
from leakscope.testing import device
from leakscope.testing.synthetic import smooth_images

from .methods import DEVICE


def test_vgg16_is_the_cpus_without_float64() -> None:
    with seeds.ambient(0, "vgg16"):
        network = VGG16().build((3, 32, 32), 5)
    x, y = smooth_images(4, "pictures", (3, 32, 32)), torch.arange(4)

    def ran(place: str) -> list[torch.Tensor]:
        split = SplitModel(copy.deepcopy(network), "features.6").to(place)
        out = split.run(x.to(place), seeds.generator(0, "release", device=place))
        gradient = torch.autograd.grad(F.cross_entropy(out.scores, y.to(place)), split.model.get_parameter("fc.weight"))
        return [part.detach().cpu() for part in (out.released, out.scores, *gradient)]

    wanted = ran("cpu")
    with device.without_float64():
        found = ran(DEVICE)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
