"""Any classifier of torchvision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError, unknown
from leakscope.core.model import Normalize
from leakscope.models.architecture import IMAGENET, MODELS, Architecture, normalization_from, normalize_field
from leakscope.models.weights import read_state

#: Channel means and standard deviations that torchvision's weights were trained with.

#: Networks that score with helpers in training, which one loss cannot train; they warn unless told how to start.
_NO_HELPERS: dict[str, dict[str, Any]] = {
    name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")
}


class GreyConv2d(nn.Conv2d):
    """A first convolution that also reads grey pictures, repeated to the channels it has.

    A layer of its own in front would rename every cut of the network behind it.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.expand(-1, self.in_channels, -1, -1))


@MODELS.register("torchvision")
@dataclass(frozen=True)
class Torchvision(Architecture):
    """`torchvision:resnet18` and the like; layers keep torchvision's names.

    `pretrained` reads ImageNet weights from torch's hub folder (nothing is downloaded); a head for
    another number of classes starts afresh.
    """

    name: str
    pretrained: bool = False
    normalize: str = normalize_field()

    @property
    def trained(self) -> bool:
        return self.pretrained

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        ensure_torchvision()
        from torchvision import models  # deferred: it takes seconds, and most commands build no such network

        names = models.list_models(module=models)
        if self.name not in names:
            raise unknown("torchvision model", self.name, names)
        options = dict(_NO_HELPERS.get(self.name, {}))
        if self.name.startswith("vit_"):
            options["image_size"] = image_shape[1]
        try:
            model: nn.Module = models.get_model(self.name, weights=None, num_classes=classes, **options)
        except (AssertionError, ValueError) as error:
            size = "×".join(str(length) for length in image_shape)
            raise UsageError(f"{self.name} cannot be built for {size} pictures ({error}); resize them") from None
        if self.pretrained:
            url: str = models.get_model_weights(self.name).DEFAULT.url
            fill(model, Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2]))
        if image_shape[0] == 1:
            read_grey(model, self.name)
        elif image_shape[0] != 3:
            raise UsageError(f"{self.name} reads grey or colour pictures, not {image_shape[0]} channels; take convnet")
        return model

    def normalization(self) -> nn.Module | None:
        return normalization_from(self.normalize, Normalize(*IMAGENET) if self.pretrained else None)


def read_grey(model: nn.Module, name: str) -> None:
    """Exchange the first convolution for one that reads grey, with the same name and weights."""
    for path, layer in model.named_modules():
        if type(layer) is nn.Conv2d and layer.in_channels == 3:
            grey = GreyConv2d(
                layer.in_channels,
                layer.out_channels,
                layer.kernel_size,  # type: ignore[arg-type]
                layer.stride,  # type: ignore[arg-type]
                layer.padding,  # type: ignore[arg-type]
                bias=layer.bias is not None,
            )
            grey.load_state_dict(layer.state_dict())
            parent, _, own = path.rpartition(".")
            setattr(model.get_submodule(parent), own, grey)
            return
    raise UsageError(f"{name} reads colour pictures only; take convnet or lenet5 for grey ones")


def fill(model: nn.Module, path: Path, fresh: frozenset[str] | set[str] = frozenset()) -> None:
    """Copy the weights on disk into `model`, except into `fresh` layers and a last layer of another size."""
    if not path.is_file():
        raise UsageError(f"no pretrained weights at {path}; put the file there or drop pretrained=true")
    own, state = model.state_dict(), read_state(path)
    fitting = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    left = {name.rpartition(".")[0] for name in own if name not in fitting and not name.endswith("tracked")}
    last = list(own)[-1].rpartition(".")[0]
    if not left <= {last, *fresh}:
        raise UsageError(f"{path} does not fit the network: {', '.join(sorted(left)[:3])} differ; fetch it again")
    model.load_state_dict(fitting, strict=False)
