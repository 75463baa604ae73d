from __future__ import annotations

import pytest
import torch

from leakscope.core.data import DATASETS
from leakscope.core.errors import UsageError
from leakscope.data.face_canvas import Look, Window
from leakscope.data.face_drawing import draw
from leakscope.data.toyfaces import PERSON, PICTURE, ToyFaces


def test_a_picture_depends_on_its_own_numbers_alone() -> None:
    large = ToyFaces(identities=5, images=9, size=24).load(None)
    small = ToyFaces(identities=2, images=3, first_identity=3, size=24).load(None)
    assert small.classes == ("id00003", "id00004")
    shown = large.images.view(5, 9, 3, 24, 24)[3:, :3].flatten(0, 1)
    torch.testing.assert_close(small.images, shown, rtol=0, atol=1e-6)  # vector and scalar sines may differ by an ulp


def test_the_same_configuration_gives_the_same_bytes() -> None:
    first, again = (ToyFaces(identities=3, images=4, size=32).load(None) for _ in range(2))
    assert first.digest() == again.digest()
    other = ToyFaces(identities=3, images=4, size=32, seed=1).load(None)
    assert (other.images - first.images).abs().mean() > 0.05


def test_all_pictures_differ() -> None:
    data = ToyFaces(identities=20, images=10, size=24).load(None)
    assert len(set(data.fingerprints())) == 200
    assert data.labels.bincount().tolist() == [10] * 20


def test_grey_is_the_luminance_of_colour() -> None:
    colour = ToyFaces(identities=2, images=2, size=24).load(None).images
    grey = ToyFaces(identities=2, images=2, size=24, grey=True).load(None).images
    red, green, blue = colour.unbind(1)
    torch.testing.assert_close(grey[:, 0], 0.299 * red + 0.587 * green + 0.114 * blue)


def test_identity_shows_in_the_face_and_not_in_the_background() -> None:
    people, each, size = 40, 20, 24
    images = ToyFaces(identities=people, images=each, size=size).load(None).images.view(people, each, 3, size, size)
    truth = torch.arange(people).repeat_interleave(each - 12)

    def accuracy(view: torch.Tensor) -> float:
        """Nearest class mean, from twelve pictures a person to the other eight."""
        means, rest = view[:, :12].mean(1), view[:, 12:].flatten(0, 1)
        return float((torch.cdist(rest, means).argmin(1) == truth).float().mean())

    corners = torch.cat([images[..., :6, :3], images[..., :6, -3:]], dim=-1)
    assert 0.15 < accuracy(images.flatten(2)) < 0.9  # chance is 0.025
    assert accuracy(corners.flatten(2)) < 0.025 + 5 * (0.025 * 0.975 / len(truth)) ** 0.5


def test_a_drawn_disc_has_the_area_of_a_circle() -> None:
    size = 64
    axis = (torch.arange(size) + 0.5) * (2 / size) - 1
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    window = Window(
        torch.zeros(1, 3, size, size), x[None], y[None], torch.full((1, 1, 1), size / 2), torch.zeros(1, size, size)
    )
    for radius in (0.11, 0.35, 0.8):
        cover = window.disc(x[None], y[None], torch.tensor([[[radius]]]), torch.tensor([[[radius]]]))
        area = float(cover.sum()) * (2 / size) ** 2
        assert area == pytest.approx(torch.pi * radius**2, rel=0.02)


@pytest.mark.parametrize("spec", ["toyfaces:identities=1", "toyfaces:size=4", "toyfaces:images=0"])
def test_impossible_sets_are_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="must be"):
        DATASETS.build(spec)


def test_features_are_drawn_wherever_the_pose_can_put_them() -> None:
    """Drawing in small windows only saves time: windows as large as the picture give the same pixels."""
    rng = torch.Generator().manual_seed(0)
    low, high = torch.tensor([*PERSON.values(), *PICTURE.values()]).unbind(1)
    values = torch.lerp(low, high, torch.rand(256, len(low), generator=rng).round())  # extremes only
    small, large = torch.empty(2, 256, 3, 32, 32).unbind(0)
    draw(Look(values, (*PERSON, *PICTURE)), small, PICTURE)
    everywhere = dict(PICTURE, shift_x=(-9.0, 9.0), shift_y=(-9.0, 9.0))
    draw(Look(values, (*PERSON, *PICTURE)), large, everywhere)
    torch.testing.assert_close(small, large, rtol=0, atol=1e-5)
