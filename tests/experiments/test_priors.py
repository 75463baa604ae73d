"""Fitted priors are kept: once for all targets, or once for each target whose scores they read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakscope.core import seeds
from leakscope.core.errors import UsageError
from leakscope.core.prior import PRIORS
from leakscope.core.threat import Access, ThreatModel, View, grant
from leakscope.experiments.priors import kept_priors, prior_plan
from leakscope.store import Store
from leakscope.testing.synthetic import CLASSES, CPU, image_set, small_split

PUBLIC = image_set(48, "public")
GAN = {"kind": "dcgan", "width": 4, "latent": 4, "steps": 1, "opening": 0}
KEDMI = {"kind": "kedmi-gan", "base": GAN, "steps": 1}
SCORES = frozenset({Access.SCORES})
WEIGHTS = frozenset({Access.ENCODER, Access.HEAD})


def view(store: Store, target: str, access: frozenset[Access], queries: int | None = None) -> View:
    return grant(
        small_split(), ThreatModel(access, queries=queries), PUBLIC, seeds.generator(0, "o"),
        classes=CLASSES, device=CPU, priors=kept_priors(store, PUBLIC, target),
    )  # fmt: skip


def test_a_prior_is_fitted_once_and_for_each_target_only_if_it_must(tmp_path: Path) -> None:
    store = Store(tmp_path)
    gan, kedmi = PRIORS.build(GAN), PRIORS.build(KEDMI)
    pictures = []
    for target in ("one", "two"):
        own = view(store, target, WEIGHTS)
        assert own.budget.spent == 0
        for prior in (gan, kedmi):
            pictures.append(own.prior(prior).pictures(2, seeds.generator(0, "p")))
    assert len(store.keys("prior")) == 3  # one GAN for both, an inversion-specific one each
    assert torch.equal(pictures[0], pictures[2])
    keys = {prior_plan(prior, PUBLIC.digest(), target).key for prior in (gan, kedmi) for target in ("one", "two")}
    assert store.keys("prior") == keys


def test_a_kept_prior_is_the_fitted_one(tmp_path: Path) -> None:
    prior = PRIORS.build("linear:components=4")
    kept = [view(Store(tmp_path), "t", WEIGHTS).prior(prior).pictures(3, seeds.generator(0, "p")) for _ in range(2)]
    memory = grant(small_split(), ThreatModel(WEIGHTS), PUBLIC, seeds.generator(0, "o"), classes=CLASSES, device=CPU)
    kept.append(memory.prior(prior).pictures(3, seeds.generator(0, "p")))
    assert torch.equal(kept[0], kept[1])
    assert torch.equal(kept[0], kept[2])


def test_scores_are_paid_for_whether_kept_or_not(tmp_path: Path) -> None:
    store, kedmi = Store(tmp_path), PRIORS.build(KEDMI)
    for _ in range(2):
        asking = view(store, "t", SCORES, queries=100)
        asking.prior(kedmi)
        asking.prior(kedmi)  # a view pays once
        assert asking.budget.spent == len(PUBLIC)
    at_home = view(store, "t", WEIGHTS | SCORES, queries=100)
    at_home.prior(kedmi)
    assert at_home.budget.spent == 0
    for place in (store, Store(tmp_path / "empty")):
        with pytest.raises(UsageError, match="reads the scores of public pictures"):
            view(place, "t", SCORES, queries=20).prior(kedmi)


def test_labels_alone_teach_no_soft_labels(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose a prior that reads none"):
        view(Store(tmp_path), "t", frozenset({Access.LABELS})).prior(PRIORS.build(KEDMI))


def test_building_a_generator_leaves_the_ambient_generator_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    view(Store(tmp_path), "t", WEIGHTS).prior(PRIORS.build(GAN))
    assert torch.equal(before, torch.random.get_rng_state())
