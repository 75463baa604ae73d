"""Recognition of rebuilt identities against loops and hand-made cases."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, stdev

import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from leakscope.core.metric import METRICS, Metric, Reference
from leakscope.core.seeds import generator
from leakscope.core.spec import describe
from leakscope.experiments.experiment import score_key
from leakscope.metrics import recognition as measures
from leakscope.metrics.recognition import IdentityMetric, Judged, neighbourhoods

#: All but the one that reads pictures with a network of its own.
OURS = [METRICS.build(name) for name in METRICS if METRICS[name].goal == "identities" and name != "fid-identities"]


def recognition(it: Judged) -> dict[str, torch.Tensor]:
    return measures.recognition(it, OURS)


def judged(k: int = 4, m: int = 3, classes: int = 7, d: int = 5, per_class: int = 6) -> Judged:
    rng = generator(0, "judged")
    return Judged(
        classes=torch.tensor([0, 2, 3, 6])[:k],
        scores=torch.randn(k, m, classes, generator=rng),
        features=torch.randn(k, m, d, generator=rng),
        believed=torch.randint(classes, (k, m), generator=rng),
        private=torch.randn(classes * per_class, d, generator=rng),
        labels=torch.arange(classes * per_class) % classes,
        ceiling=0.9,
        guess=torch.rand(k * m, 3, 8, 8, generator=rng),
        pictures=torch.rand(classes * per_class, 3, 8, 8, generator=rng),
        embedded=_embedded(k, m, classes, per_class),
    )


def _embedded(k: int, m: int, classes: int, per_class: int) -> Judged:
    """Another opinion on the same reconstructions."""
    rng = generator(0, "embedded")
    return Judged(
        classes=torch.tensor([0, 2, 3, 6])[:k],
        scores=torch.randn(k, m, classes, generator=rng),
        features=torch.randn(k, m, 4, generator=rng),
        believed=torch.zeros(k, m).long(),
        private=torch.randn(classes * per_class, 4, generator=rng),
        labels=torch.arange(classes * per_class) % classes,
        ceiling=0.8,
    )


def test_every_measure_equals_a_loop_over_pictures() -> None:
    it = judged()
    got = recognition(it)
    for i, identity in enumerate(it.classes.tolist()):
        own = it.private[it.labels == identity]
        rows: dict[str, list[float]] = {metric.name: [] for metric in OURS if not metric.of_set}
        for j in range(it.scores.shape[1]):
            ranking = it.scores[i, j].argsort(descending=True).tolist()
            says = int(it.believed[i, j]) == identity
            rows["attack-accuracy"].append(float(ranking[0] == identity))
            rows["attack-accuracy-5"].append(float(identity in ranking[:5]))
            rows["target-accuracy"].append(float(says))
            rows["false-positive"].append(float(says and ranking[0] != identity))
            rows["knn"].append(min(float((it.features[i, j] - other).square().sum()) for other in own))
            rows["centroid"].append(float((it.features[i, j] - own.mean(0)).norm()))
            rows["leak"].append((float(ranking[0] == identity) - 1 / 7) / (0.9 - 1 / 7))
            other = it.embedded
            assert other is not None
            named = int(other.scores[i, j].argmax()) == identity
            rows["attack-accuracy:embedder"].append(float(named))
            rows["leak:embedder"].append((float(named) - 1 / 7) / (0.8 - 1 / 7))
            theirs = other.private[other.labels == identity]
            rows["delta"].append(min(float((other.features[i, j] - one).square().sum()) for one in theirs))
        for name, values in rows.items():
            assert got[name][i].item() == pytest.approx(sum(values) / len(values), rel=1e-4, abs=1e-6), name


def test_leak_is_zero_at_chance_and_one_at_the_accuracy_of_real_pictures() -> None:
    it = judged(k=1, m=10, classes=10)
    scores = torch.zeros(1, 10, 10)
    scores[0, :, 1] = 1.0
    scores[0, 0, 0] = 2.0  # one of ten is recognised: chance
    at_chance = Judged(**{**vars(it), "scores": scores})
    assert recognition(at_chance)["leak"].item() == pytest.approx(0, abs=1e-6)
    scores[0, :9, 0] = 2.0  # nine of ten: as real pictures are
    assert recognition(Judged(**{**vars(it), "scores": scores}))["leak"].item() == pytest.approx(1, abs=1e-6)


def test_an_identity_without_private_pictures_is_refused() -> None:
    it = judged()
    with pytest.raises(ValueError, match="identity 6"):
        recognition(Judged(**{**vars(it), "private": it.private[it.labels != 6], "labels": it.labels[it.labels != 6]}))


@pytest.mark.parametrize("k", [1, 3])
def test_neighbourhoods_equal_a_form_with_sklearn(k: int) -> None:
    rng = generator(1, "sets")
    real, fake = torch.randn(30, 4, generator=rng), 0.5 + torch.randn(25, 4, generator=rng)

    def radii(points: torch.Tensor) -> list[float]:
        finder = NearestNeighbors(n_neighbors=k + 1).fit(points.numpy())
        return [float(row[-1]) for row in finder.kneighbors(points.numpy())[0]]

    in_real = [[float((r - f).norm()) <= radius for f in fake] for r, radius in zip(real, radii(real), strict=True)]
    fake_radii = radii(fake)
    in_fake = [[float((r - f).norm()) <= fake_radii[j] for j, f in enumerate(fake)] for r in real]
    got = neighbourhoods(real, fake, k)
    columns = list(zip(*in_real, strict=True))
    assert got.precision == pytest.approx(sum(any(column) for column in columns) / 25)
    assert got.recall == pytest.approx(sum(any(row) for row in in_fake) / 30)
    assert got.density == pytest.approx(sum(map(sum, columns)) / (k * 25))
    assert got.coverage == pytest.approx(sum(any(row) for row in in_real) / 30)


def test_neighbourhoods_of_one_distribution_have_their_known_expectations() -> None:
    """Naeem et al., 2020: E density = 1 and E coverage = 1 − Π_{i≤k} (N − i)/(N + M − i), for any distribution."""
    n, m, k, rng = 20, 15, 3, generator(2, "same")
    found = [neighbourhoods(torch.randn(n, 2, generator=rng), torch.randn(m, 2, generator=rng), k) for _ in range(400)]
    expected = 1 - math.prod((n - i) / (n + m - i) for i in range(1, k + 1))
    for values, truth in (([f.density for f in found], 1.0), ([f.coverage for f in found], expected)):
        assert fmean(values) == pytest.approx(truth, abs=4 * stdev(values) / len(values) ** 0.5)


def test_a_collapsed_attack_has_precision_and_density_but_no_recall() -> None:
    real = torch.arange(10.0)[:, None]
    fake = torch.full((6, 1), 4.5)
    got = neighbourhoods(real, fake, 1)
    # Balls of radius 1 around 4 and 5 hold 4.5; fake balls have radius 0.
    assert (got.precision, got.recall, got.density) == (1.0, 0.0, 2.0)
    assert got.coverage == pytest.approx(0.2)


def test_set_measures_look_at_all_reconstructions_together() -> None:
    it = judged()
    private = it.private[torch.isin(it.labels, it.classes)]
    got = recognition(it)
    whole = neighbourhoods(private, it.features.flatten(0, 1))
    for name, value in whole._asdict().items():
        assert got[name].item() == pytest.approx(value), name
    same = Judged(**{**vars(it), "features": private[:24].view(4, 6, 5), "scores": torch.zeros(4, 6, 7),
                     "believed": torch.zeros(4, 6, dtype=torch.long)})  # fmt: skip
    assert recognition(same)["fid:evaluator"].item() == pytest.approx(0, abs=1e-6)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="neighbours need"):
        neighbourhoods(torch.zeros(3, 2), torch.zeros(9, 2))


def test_a_changed_formula_changes_the_key_of_its_scores() -> None:
    """A bumped revision reaches the key, so that old results are not reused."""
    plain = [describe(metric) for metric in OURS]
    assert all(entry["revision"] == 1 for entry in plain)

    class Revised(type(OURS[0])):  # type: ignore[misc]
        revision = 2

    assert score_key("a", OURS, None) != score_key("a", [Revised(), *OURS[1:]], None)


def test_pictures_of_identities_are_compared_with_those_of_the_attacked() -> None:
    """The same distance as `fid` gives for the same two sets, in any network."""
    it = judged()
    assert it.guess is not None
    assert it.pictures is not None
    own = it.pictures[torch.isin(it.labels, it.classes)]
    for network in ("random-conv", "pixels"):
        metric = METRICS.build({"kind": "fid-identities", "network": network})
        whole = METRICS.build({"kind": "fid", "network": network})
        assert metric.name == whole.name
        assert isinstance(metric, IdentityMetric)
        assert isinstance(whole, Metric)
        assert float(metric(replace(it, guess=own))) == pytest.approx(0, abs=1e-3)
        guess = torch.cat([it.guess, it.guess.flip(-1)])  # as many as there are originals, which `fid` demands
        expected = whole(guess, own, Reference(own, None))
        torch.testing.assert_close(metric(replace(it, guess=guess)), expected)


def test_without_a_face_embedding_nothing_is_said_in_its_name() -> None:
    with pytest.raises(ValueError, match=r"evaluator\.embedder"):
        measures.recognition(replace(judged(), embedded=None), [METRICS.build("delta")])
