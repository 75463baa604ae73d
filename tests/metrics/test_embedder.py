"""The face embedding as an evaluator: against sklearn, loops, and photographs where they are there."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestCentroid
from torch import Tensor, nn

from leakscope.core.errors import UsageError
from leakscope.core.seeds import generator
from leakscope.data.lfw import Lfw
from leakscope.metrics.embedder import (
    CentroidJudge,
    FaceEmbedder,
    centroid_scores,
    centroids,
    least_squared_distance,
)


class Colours(nn.Module):
    """An embedding that can be computed by hand: the mean of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FaceEmbedder]:
    root = tmp_path_factory.mktemp("root")
    (root / "weights").mkdir()
    file = root / "weights" / "colours.pt2"
    batch = torch.export.Dim("batch", min=2, max=4096)
    torch.export.save(torch.export.export(Colours(), (torch.rand(4, 3, 64, 64),), dynamic_shapes=({0: batch},)), file)
    return root, FaceEmbedder("colours.pt2", hashlib.sha256(file.read_bytes()).hexdigest())


@pytest.mark.parametrize("n", [1, 2, 65])
@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 64, 64), (3, 32, 32)])
def test_pictures_of_any_number_and_size_are_embedded(
    n: int, shape: tuple[int, int, int], colours: tuple[Path, FaceEmbedder]
) -> None:
    root, embedder = colours
    images = torch.rand(n, *shape, generator=generator(0, "pictures"))
    expected = images.mean((2, 3)).expand(-1, 3)  # enlarging by bilinear interpolation at twice the size keeps the mean
    torch.testing.assert_close(embedder.load(root)(images), expected, rtol=1e-4, atol=2e-3)


def test_nearest_centroids_are_those_of_sklearn() -> None:
    rng = generator(0, "points")
    labels = torch.arange(60) % 5
    features = torch.randn(60, 4, generator=rng) + labels[:, None]
    fresh = 5 * torch.rand(40, 4, generator=rng)
    theirs = NearestCentroid().fit(features.numpy(), labels.numpy())
    centres = centroids(features, labels, 5)
    np.testing.assert_allclose(centres.numpy(), theirs.centroids_, rtol=1e-5)
    assert centroid_scores(fresh, centres).argmax(1).tolist() == theirs.predict(fresh.numpy()).tolist()


def test_delta_is_its_loop() -> None:
    rng = generator(0, "delta")
    features, private = torch.randn(3, 4, 6, generator=rng), torch.randn(20, 6, generator=rng)
    labels, classes = torch.arange(20) % 4, torch.tensor([0, 1, 3])
    got = least_squared_distance(features, classes, private, labels)
    for row, identity in enumerate(classes.tolist()):
        own = private[labels == identity]
        each = [min(float((made - known).square().sum()) for known in own) for made in features[row]]
        assert got[row].item() == pytest.approx(sum(each) / 4, rel=1e-4)
    again = least_squared_distance(private[labels == 1][None], torch.tensor([1]), private, labels)
    assert again.item() == pytest.approx(0, abs=1e-6)  # private pictures themselves
    with pytest.raises(ValueError, match="identity 9"):
        least_squared_distance(features[:1], torch.tensor([9]), private, labels)


def test_a_judge_scores_and_embeds(colours: tuple[Path, FaceEmbedder]) -> None:
    root, embedder = colours
    red, blue = torch.zeros(2, 3, 64, 64), torch.zeros(2, 3, 64, 64)
    red[:, 0], blue[:, 2] = 0.9, 0.8
    judge = CentroidJudge.fitted(embedder.load(root), torch.cat((red, blue)), torch.tensor([0, 0, 1, 1]), 2)
    scores, features = judge(torch.cat((blue[:1], red[:1])))
    assert scores.argmax(1).tolist() == [1, 0]
    assert scores[0].tolist() == pytest.approx([-(0.9**2 + 0.8**2), 0], abs=1e-5)
    torch.testing.assert_close(features[0], torch.tensor([0.0, 0.0, 0.8]))
    with pytest.raises(ValueError, match="class 1 has no picture"):
        centroids(features, torch.tensor([0, 0]), 2)


def test_an_unknown_file_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "face-embedder-dlib128.pt2").write_bytes(b"anything")
    with pytest.raises(UsageError, match="may run code"):
        FaceEmbedder().load(tmp_path)
    with pytest.raises(UsageError, match="is not there"):
        FaceEmbedder("other.pt2").load(tmp_path)
    for settings in ({"file": "../a.pt2"}, {"sha256": "abc"}):
        with pytest.raises(ValueError, match=r"file|sha256"):
            FaceEmbedder(**settings)


def test_it_tells_photographs_of_eight_people_apart(shared_data: Path) -> None:
    """Six pictures each for the centroids, three others to name, without any training.

    At the measured rate of one error in ninety, more than two errors in 24 have a probability of 0.002; by chance 21.
    """
    faces = Lfw(min_images=50, max_images=50).load(shared_data)
    known: list[int] = []
    asked: list[int] = []
    for person in range(8):
        own = (faces.labels == person).nonzero()[:, 0].tolist()
        known += own[:6]
        asked += own[6:9]
    embed = FaceEmbedder().load(shared_data)
    judge = CentroidJudge.fitted(embed, faces.images[known], faces.labels[known], 8)
    scores, features = judge(faces.images[asked])
    assert features.shape[1] == 128
    assert (scores.argmax(1) != faces.labels[asked]).sum() <= 2
