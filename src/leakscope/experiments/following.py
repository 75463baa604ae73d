"""Are small changes of a picture read from what they change in its release?

All of them where every pixel is in the release, however it is coded; none where the label alone is. With the same
random numbers for every change, this is asked of the code; with others for each, of the noise as well.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.core import seeds

#: Pictures around which changes are followed, directions of change, and changes around each picture …
_CENTRES, _DIRECTIONS, _CHANGES = 4, 32, 128
#: … of which so many are known to the reader, and how exactly it reads the release, in deviations of each feature.
_KNOWN, _READING = 96, 1.5e-3
#: A change that a code is asked for, and those that noise must hide: deviations in pixels of range one.
SMALL, HIDDEN = 0.01, (0.01, 0.03, 0.1)


@torch.no_grad()
def followed(release: Callable[[Tensor], Tensor], images: Tensor, spread: Tensor, size: float) -> float:
    """x + Uc with 32 random directions U: the share of c that ridge reads from r(x + Uc) − r(x), on changes new to it.

    `spread` is the deviation of each feature between pictures.
    """
    rng = seeds.generator(0, "probe", "small changes")
    directions = min(_DIRECTIONS, images[0].numel())
    found = []
    for x in images[:_CENTRES]:
        ways = torch.linalg.qr(torch.randn(x.numel(), directions, generator=rng)).Q
        amounts = torch.randn(_CHANGES, directions, generator=rng)
        length = size * (x.numel() / directions) ** 0.5
        changed = x + length * (amounts @ ways.T).view(-1, *x.shape)
        released = release(torch.cat((x[None], changed)))
        moves = (released[1:] - released[0]) / torch.where(spread > 0, spread, torch.inf)
        # A border crossed (a wrap, another key) throws a value far out; what the others tell stays.
        usual = moves.abs().median(0).values
        moves = torch.where(moves.abs() <= 8 * usual, moves, 0.0)
        moves = moves + _READING * torch.randn(moves.shape, generator=rng)
        gram, known, new = moves @ moves.T, amounts[:_KNOWN].double(), amounts[_KNOWN:]
        strength = 1e-3 * gram.diagonal()[:_KNOWN].mean()
        weights = torch.linalg.solve(gram[:_KNOWN, :_KNOWN] + strength * torch.eye(_KNOWN), known)
        missed = (gram[_KNOWN:, :_KNOWN] @ weights - new).square().mean()
        found.append(float(1 - missed / new.square().mean()))
    return float(torch.tensor(found).median()) if found else 0.0
