"""Every release and architecture defence passes the shipped contract."""

from __future__ import annotations

import pytest

from leakscope.core.defense import Defense
from leakscope.defenses.bottleneck import Bottleneck
from leakscope.defenses.dropout import Dropout
from leakscope.defenses.gaussian import Gaussian
from leakscope.defenses.laplace import Laplace
from leakscope.defenses.none import NoDefense
from leakscope.defenses.topk import TopK
from leakscope.testing import DefenseContract


class TestNone(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return NoDefense()

    @pytest.fixture
    def neutral(self) -> Defense:
        return NoDefense()


class TestGaussian(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return Gaussian(0.1)

    @pytest.fixture
    def neutral(self) -> Defense:
        return Gaussian(0.0)


class TestLaplace(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return Laplace(0.1)

    @pytest.fixture
    def neutral(self) -> Defense:
        return Laplace(0.0)


class TestDropout(DefenseContract):
    @pytest.fixture(params=[False, True])
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        return Dropout(0.3, rescale=request.param)

    @pytest.fixture
    def neutral(self) -> Defense:
        return Dropout(0.0)


class TestTopK(DefenseContract):
    @pytest.fixture(params=[False, True])
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        return TopK(0.25, signed=request.param)

    @pytest.fixture
    def neutral(self) -> Defense:
        return TopK(1.0)


class TestBottleneck(DefenseContract):
    @pytest.fixture(params=[Bottleneck(2), Bottleneck(8, stride=2, relu=True)], ids=repr)
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        made: Defense = request.param
        return made
