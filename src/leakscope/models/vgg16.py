"""The VGG16 of the model-inversion literature: thirteen convolutions and one linear layer."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError
from leakscope.core.model import Normalize
from leakscope.models.architecture import IMAGENET, MODELS, Architecture
from leakscope.models.torchvision_zoo import fill, read_grey

#: Five poolings halve each side.
_REDUCTION = 32
_CHANNELS = 512


@MODELS.register("vgg16")
@dataclass(frozen=True)
class VGG16(Architecture):
    """VGG16 with batch normalisation, whose maps are normalised and read by one linear layer.

    16.8 million parameters for 64×64 pictures and 1,000 identities (torchvision's `vgg16_bn` has three linear
    layers and 138 million). Layers: `features.0` to `features.43` as in torchvision, `flatten`, `norm` (the
    penultimate features that attacks on identities read) and `fc`.

    `pretrained` reads torchvision's ImageNet weights of `vgg16_bn` from torch's hub folder (nothing is
    downloaded); `norm` and `fc` start afresh.

    Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015;
    in this form in Zhang et al., "The secret revealer", CVPR 2020, and in all later work on its targets.

    Differs from the published code: the shift of `norm`, which the bias of `fc` absorbs, is trained too
    (2,048 parameters); pictures are normalised when the weights are pretrained.
    """

    pretrained: bool = False

    @property
    def trained(self) -> bool:
        return self.pretrained

    @property
    def default_cuts(self) -> tuple[str, ...]:
        return "features.6", "features.23"

    def normalization(self) -> nn.Module | None:
        return Normalize(*IMAGENET) if self.pretrained else None

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        channels, height, width = image_shape
        if min(height, width) < _REDUCTION:
            raise UsageError(f"vgg16 needs pictures of 32×32 or more, not {height}×{width}; take convnet")
        if channels not in (1, 3):
            raise UsageError(f"vgg16 reads grey or colour pictures, not {channels} channels; take convnet")
        ensure_torchvision()
        from torchvision.models import VGG16_BN_Weights  # deferred: it takes seconds
        from torchvision.models.vgg import cfgs, make_layers

        features = _CHANNELS * (height // _REDUCTION) * (width // _REDUCTION)
        parts: OrderedDict[str, nn.Module] = OrderedDict(features=make_layers(cfgs["D"], batch_norm=True))
        parts["flatten"] = nn.Flatten()
        parts["norm"] = nn.BatchNorm1d(features)
        parts["fc"] = nn.Linear(features, classes)
        model = nn.Sequential(parts)
        for layer in model.modules():  # as torchvision starts it
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
        if self.pretrained:
            url: str = VGG16_BN_Weights.DEFAULT.url
            fill(model, Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2]), fresh={"norm", "fc"})
        if channels == 1:
            read_grey(model, "vgg16")
        return model
