from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from leakscope.core.errors import UsageError
from leakscope.core.metric import METRICS, Reference
from leakscope.metrics.identity import IdentityDistance, Reidentified


class Colours(nn.Module):
    """An embedding that can be computed by hand: the mean of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, IdentityDistance]:
    root = tmp_path_factory.mktemp("root")
    (root / "weights").mkdir()
    file = root / "weights" / "colours.pt2"
    batch = torch.export.Dim("batch", min=2, max=4096)
    torch.export.save(torch.export.export(Colours(), (torch.rand(4, 3, 64, 64),), dynamic_shapes=({0: batch},)), file)
    return root, IdentityDistance("colours.pt2", hashlib.sha256(file.read_bytes()).hexdigest())


@pytest.mark.parametrize("n", [1, 2, 33])
def test_distance_of_embeddings(n: int, colours: tuple[Path, IdentityDistance]) -> None:
    root, metric = colours
    assert metric.unavailable(root) is None
    guess, truth = torch.rand(n, 3, 64, 64), torch.rand(n, 3, 64, 64)
    expected = (guess.mean((2, 3)) - truth.mean((2, 3))).square().sum(1).sqrt()
    torch.testing.assert_close(metric(guess, truth, Reference(truth, root)), expected)
    grey = guess[:, :1], truth[:, :1]
    expected = 3**0.5 * (grey[0].mean((1, 2, 3)) - grey[1].mean((1, 2, 3))).abs()
    torch.testing.assert_close(metric(*grey, Reference(truth, root)), expected)


def test_other_sizes_are_refused(colours: tuple[Path, IdentityDistance]) -> None:
    root, metric = colours
    small = torch.rand(2, 3, 32, 32)
    with pytest.raises(UsageError, match="needs 64×64 face pictures, not 32×32; use --resize 64"):
        metric(small, small, Reference(small, root))


def test_larger_squares_are_reduced(colours: tuple[Path, IdentityDistance]) -> None:
    root, metric = colours
    small, other = torch.rand(2, 2, 3, 64, 64)
    guess, truth = (images.repeat_interleave(2, -1).repeat_interleave(2, -2) for images in (small, other))
    torch.testing.assert_close(
        metric(guess, truth, Reference(truth, root)), metric(small, other, Reference(other, root)), rtol=1e-4, atol=1e-4
    )
    with pytest.raises(UsageError, match="not 64×96"):
        metric(torch.rand(2, 3, 64, 96), torch.rand(2, 3, 64, 96), Reference(truth, root))


def test_who_is_picked_out_again(colours: tuple[Path, IdentityDistance]) -> None:
    """Against the distances of all pairs of mean colours; one guess for everybody picks out at most one."""
    root, own = colours
    metric = Reidentified(own.file, own.sha256)
    torch.manual_seed(0)
    truth = torch.rand(12, 3, 1, 1).expand(-1, -1, 64, 64).contiguous()
    guess = (truth + 0.3 * torch.randn(12, 3, 1, 1)).clamp(0, 1).contiguous()
    means = guess.mean((2, 3)).numpy(), truth.mean((2, 3)).numpy()
    nearest = [int(np.argmin([np.linalg.norm(rebuilt - other) for other in means[1]])) for rebuilt in means[0]]
    expected = torch.tensor([float(place == row) for row, place in enumerate(nearest)])
    assert 0 < expected.sum() < 12
    reference = Reference(truth, root)
    torch.testing.assert_close(metric(guess, truth, reference), expected)
    assert metric(truth, truth, reference).sum() == 12
    assert metric(truth[3:4].expand(12, -1, -1, -1), truth, reference).tolist() == [float(n == 3) for n in range(12)]


def test_an_unknown_file_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "face-embedder-dlib128.pt2").write_bytes(b"anything")
    metric = IdentityDistance()
    assert "may run code" in str(metric.unavailable(tmp_path))
    truth = torch.rand(2, 3, 64, 64)
    with pytest.raises(UsageError, match="identity:sha256="):
        metric(truth, truth, Reference(truth, tmp_path))


def test_a_file_that_changed_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    file = tmp_path / "weights" / "mine.pt2"
    file.write_bytes(b"trusted")
    metric = IdentityDistance("mine.pt2", hashlib.sha256(b"trusted").hexdigest())
    assert metric.unavailable(tmp_path) is None
    file.write_bytes(b"swapped for a longer one")
    assert "may run code" in str(metric.unavailable(tmp_path))


@pytest.mark.parametrize(("fields", "message"), [("file=../x.pt2", "is a path"), ("sha256=abc", "64 lower-case")])
def test_fields_are_checked(fields: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        METRICS.build(f"identity:{fields}")


def test_people_are_told_apart(shared_data: Path) -> None:
    """Six people of LFW, two pictures each: one person lies nearer than about 0.6, two people farther."""
    metric = IdentityDistance()
    reason = metric.unavailable(shared_data)
    if reason:
        pytest.skip(reason)
    people = ("Ariel_Sharon", "Colin_Powell", "Hugo_Chavez", "Jacques_Chirac", "Serena_Williams", "Vladimir_Putin")
    with zipfile.ZipFile(shared_data / "lfw64.zip") as archive:
        first, second = (
            torch.stack(
                [
                    torch.from_numpy(
                        np.array(Image.open(io.BytesIO(archive.read(f"lfw64/{name}/{name}_{number:04}.jpg"))))
                    )
                    for name in people
                ]
            )
            .permute(0, 3, 1, 2)
            .float()
            / 255
            for number in (1, 2)
        )
    reference = Reference(first, shared_data)
    same, other = metric(second, first, reference), metric(second.roll(1, 0), first, reference)
    assert same.median() < 0.6 < other.median()
    assert same.mean() < other.min()
    assert metric(first, first, reference).max() < 1e-5
