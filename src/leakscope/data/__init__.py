"""Sources of pictures, each a frozen dataclass registered in `core.data.DATASETS`, and the splits drawn from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakscope.core.lazy_exports import lazily

#: Where each class is; its module is imported when the class is first used.
EXPORTS = {
    "CelebA": "torchvision_sets", "Cifar10": "torchvision_sets", "Digits": "embedded",
    "FashionMnist": "torchvision_sets", "Folder": "folder", "Gaussians": "gaussians", "Lfw": "lfw",
    "MedicalMnist": "npz", "Mnist": "torchvision_sets", "Mnist5k": "embedded", "Npz": "npz", "Olivetti": "npz",
    "PneumoniaMnist": "npz", "Svhn": "torchvision_sets", "ToyFaces": "toyfaces",
}  # fmt: skip

__all__ = list(EXPORTS)

if TYPE_CHECKING:
    from leakscope.data.embedded import Digits as Digits
    from leakscope.data.embedded import Mnist5k as Mnist5k
    from leakscope.data.folder import Folder as Folder
    from leakscope.data.gaussians import Gaussians as Gaussians
    from leakscope.data.lfw import Lfw as Lfw
    from leakscope.data.npz import MedicalMnist as MedicalMnist
    from leakscope.data.npz import Npz as Npz
    from leakscope.data.npz import Olivetti as Olivetti
    from leakscope.data.npz import PneumoniaMnist as PneumoniaMnist
    from leakscope.data.torchvision_sets import CelebA as CelebA
    from leakscope.data.torchvision_sets import Cifar10 as Cifar10
    from leakscope.data.torchvision_sets import FashionMnist as FashionMnist
    from leakscope.data.torchvision_sets import Mnist as Mnist
    from leakscope.data.torchvision_sets import Svhn as Svhn
    from leakscope.data.toyfaces import ToyFaces as ToyFaces
else:
    __getattr__ = lazily(__name__, EXPORTS)
