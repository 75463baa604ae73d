"""Random views against what they are: shifted and mirrored copies."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from leakscope.attacks._views import NUMBERS, Views
from leakscope.testing.synthetic import smooth_images

#: Uniform numbers whose view is the largest shift to the right, to the left, and none.
ENDS = {1.0: 2, 0.0: -2, 0.5: 0}


@pytest.mark.parametrize(("across", "by"), ENDS.items())
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_shift_is_a_shift_with_the_border_continued(across: float, by: int, *, mirrored: bool) -> None:
    x = smooth_images(3, "views")
    side = x.shape[-1]
    uniform = torch.tensor([0.5, 0.5, across, 0.5, 0.0 if mirrored else 0.9]).expand(3, NUMBERS)
    found = Views(area=(1.0, 1.0), mirrored=0.5, shift=2 / side)(x, uniform)
    columns = (torch.arange(side) + by).clamp(0, side - 1)
    moved = x[..., columns]
    # A mirror image looks along the same window from its other end.
    torch.testing.assert_close(found, moved.flip(-1) if mirrored else moved, atol=1e-5, rtol=0)


def test_views_of_all_numbers_stay_within_the_shift() -> None:
    """A single bright pixel is seen at most two pixels from where it is."""
    x = F.pad(torch.ones(500, 1, 1, 1), (8, 7, 8, 7))
    rng = torch.Generator().manual_seed(0)
    found = Views(area=(1.0, 1.0), shift=2 / 16)(x, torch.rand(500, NUMBERS, generator=rng))
    seen = found.sum(0)[0]
    assert seen[6:11, 6:11].sum() > 0.99 * seen.sum()
    assert (seen[6:11, 6:11] > 0).all()  # and everywhere there
