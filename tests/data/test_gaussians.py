from __future__ import annotations

import math

import pytest
import torch

from leakscope.core.data import DATASETS
from leakscope.core.errors import UsageError
from leakscope.data.gaussians import Gaussians


def test_it_has_the_means_and_unit_variance_of_the_paper() -> None:
    n = 20_000
    data = Gaussians(count=n, flipped=0.0).load(None)
    assert data.shape == (10, 1, 1)
    assert not data.pixels
    for label, mean in ((0, -1.0), (1, 0.0)):
        points = data.images[data.labels == label].flatten(1)
        assert len(points) == n // 2
        # The mean of m unit normals has deviation 1/√m; 5 of those, over 10 dimensions.
        assert (points.mean(0) - mean).abs().max() < 5 / math.sqrt(len(points))
        covariance = torch.cov(points.T)
        assert (covariance - torch.eye(10)).abs().max() < 7 / math.sqrt(len(points))


def test_the_bayes_rule_errs_as_its_closed_form_says() -> None:
    n = 20_000
    data = Gaussians(count=n, flipped=0.0).load(None)
    guess = (data.images.flatten(1).mean(1) > -0.5).long()
    error = float((guess != data.labels).double().mean())
    expected = 0.5 * math.erfc(math.sqrt(10) / 2 / math.sqrt(2))
    assert abs(error - expected) < 5 * math.sqrt(expected * (1 - expected) / n)


def test_exactly_one_label_in_twenty_is_flipped() -> None:
    clean, flipped = Gaussians(flipped=0.0).load(None), Gaussians().load(None)
    assert torch.equal(clean.images, flipped.images)
    assert int((clean.labels != flipped.labels).sum()) == 50
    assert not torch.equal(Gaussians(seed=1).load(None).images, clean.images)


def test_a_bad_share_is_refused() -> None:
    with pytest.raises(UsageError, match="flipped"):
        DATASETS.build("gaussians:flipped=0.7")
