"""Any classifier of timm."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError, unknown
from leakscope.models.architecture import MODELS, Architecture, normalization_from, normalize_field


@MODELS.register("timm")
@dataclass(frozen=True)
class Timm(Architecture):
    """`timm:vit_tiny_patch16_224` and the like, with random weights, built for the size of the pictures.

    Layers keep timm's names. Give trained weights as a file.
    """

    name: str
    normalize: str = normalize_field()

    def normalization(self) -> nn.Module | None:
        return normalization_from(self.normalize)

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        ensure_torchvision()
        import timm  # deferred: it takes seconds, and most commands build no such network

        if not timm.is_model(self.name):
            raise unknown("timm model", self.name, timm.list_models())
        options = {"pretrained": False, "num_classes": classes, "in_chans": image_shape[0]}
        try:
            try:
                model: nn.Module = timm.create_model(self.name, img_size=image_shape[1:], **options)
            except TypeError as error:
                if "img_size" not in str(error):
                    raise
                # Convolutional networks read any size and have no such argument.
                model = timm.create_model(self.name, **options)
        except Exception as error:
            size = "×".join(str(length) for length in image_shape)
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UsageError(f"{self.name} cannot be built for {size} pictures ({reason}); resize them") from None
        return model
