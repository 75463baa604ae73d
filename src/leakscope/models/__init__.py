"""Networks with named cuts: our own, torchvision's, timm's, and the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakscope.core.lazy_exports import lazily

#: Where each class is; its module is imported when the class is first used.
EXPORTS = {
    "AllConv": "allconv", "BehindHttp": "behind_http", "ConvNet": "convnet", "ExportedProgram": "exported_program",
    "ExportedTarget": "exported",
    "FaceNet": "face_net", "HubTarget": "hub", "IRArchitecture": "ir", "LeNet5": "lenet5", "MLP": "mlp",
    "OnnxFile": "onnx_file", "OwnFile": "own_file",
    "PreactResNetArchitecture": "preact", "ScaConvNet": "sca_net", "ScaNet": "sca_net", "Timm": "timm_zoo",
    "Torchvision": "torchvision_zoo", "VGG11SGM": "vgg11_sgm", "VGG16": "vgg16",
}  # fmt: skip

__all__ = list(EXPORTS)

if TYPE_CHECKING:
    from leakscope.models.allconv import AllConv as AllConv
    from leakscope.models.behind_http import BehindHttp as BehindHttp
    from leakscope.models.convnet import ConvNet as ConvNet
    from leakscope.models.exported import ExportedTarget as ExportedTarget
    from leakscope.models.exported_program import ExportedProgram as ExportedProgram
    from leakscope.models.face_net import FaceNet as FaceNet
    from leakscope.models.hub import HubTarget as HubTarget
    from leakscope.models.ir import IRArchitecture as IRArchitecture
    from leakscope.models.lenet5 import LeNet5 as LeNet5
    from leakscope.models.mlp import MLP as MLP
    from leakscope.models.onnx_file import OnnxFile as OnnxFile
    from leakscope.models.own_file import OwnFile as OwnFile
    from leakscope.models.preact import PreactResNetArchitecture as PreactResNetArchitecture
    from leakscope.models.sca_net import ScaConvNet as ScaConvNet
    from leakscope.models.sca_net import ScaNet as ScaNet
    from leakscope.models.timm_zoo import Timm as Timm
    from leakscope.models.torchvision_zoo import Torchvision as Torchvision
    from leakscope.models.vgg11_sgm import VGG11SGM as VGG11SGM
    from leakscope.models.vgg16 import VGG16 as VGG16
else:
    __getattr__ = lazily(__name__, EXPORTS)
