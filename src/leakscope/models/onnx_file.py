"""An ONNX network, converted to PyTorch layers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from torch import nn

from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError
from leakscope.models.architecture import MODELS, Brought, normalize_field
from leakscope.models.weights import file_digest


@MODELS.register("onnx")
@dataclass(frozen=True)
class OnnxFile(Brought):
    """The network in the ONNX file `path`, as `onnx2torch` converts it; needs `pip install 'leakscope[onnx]'`.

    ONNX is data and runs no code. Operators that the converter does not know are refused by their name.
    """

    path: str
    content: str = field(default="", metadata={"shown": False})
    normalize: str = normalize_field()

    def __post_init__(self) -> None:
        found = file_digest(self.path)
        if self.content and self.content != found:
            raise UsageError(f"{self.path} has changed since this was configured; configure it anew")
        object.__setattr__(self, "content", found)

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        try:
            ensure_torchvision()  # the converter imports it
            import onnx
            import onnx2torch
        except ImportError:
            raise UsageError(
                f"{self.path} is ONNX, which needs a converter: pip install 'leakscope[onnx]' (onnx2torch), or convert "
                "it yourself and audit the module through leakscope.audit(module, …)"
            ) from None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                network: nn.Module = onnx2torch.convert(onnx.load(self.path))
        except Exception as error:  # the converter, protobuf and onnx raise what they like
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise UsageError(f"{self.path} cannot be converted to PyTorch ({reason}); give the Python code") from None
        return network
