"""Can a release be read in a small world, where every part of a picture is one of a few?

A code that keeps no small change (symbols of coarse content under a secret table) is read by nobody who sees each
symbol once. Its server may never decode it either: a table from symbols to votes is enough. But in pictures put
together from the parts of a dozen others each symbol comes again and again, and any code is linear in "which of the
dozen is it".
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.core import seeds

#: Rows and columns of parts, and pictures that they come from; each world has about 45 things to tell.
_WORLDS = ((2, 2, 12), (4, 4, 4), (4, 1, 12), (1, 4, 12))
#: Mosaics of a world, and those of them on which a reader is judged.
_MOSAICS, _JUDGED = 240, 60
#: How exactly the release is read, in deviations of each feature; and the strength of the ridge, of its mean diagonal.
_READING, _STRENGTH = 1.5e-3, 1e-3
#: Pictures by which a random release is known, and the share that a reader keeps when random numbers are only added.
_FEW, _KEPT = 8, 0.5


def read_in_mosaics(release: Callable[[Tensor, int], Tensor], images: Tensor) -> float:
    """The share of "which picture does this part come from" that ridge reads from releases of mosaics.

    `release(images, seed)` has the same random numbers for every picture. The best of worlds cut in squares, in rows
    and in columns. D numbers tell at most D of the 45 things, and a label at most as many as there are classes.
    A reader that reads as well when other numbers were drawn for all pictures shows that those are only added: what
    noise hides from everybody who does not know it is not counted. A key that is drawn makes a reader useless.
    """
    rng = seeds.generator(0, "probe", "mosaics")
    few = images[:_FEW]
    random = not torch.equal(release(few, 5), release(few, 6))
    found = [0.0]
    for rows, columns, donors in _WORLDS:
        if len(images) < donors or images.shape[2] < rows or images.shape[3] < columns:
            continue
        chosen = torch.randint(donors, (_MOSAICS, rows, columns), generator=rng)
        mosaics = _put_together(images[:donors], chosen)
        moves = release(mosaics, 5)
        moves = moves if random else _with_low_digits(moves)
        spread = moves.std(0)
        scale = torch.where(spread > 0, spread, torch.inf)
        moves = (moves - moves[:1]) / scale
        moves = moves + _READING * torch.randn(moves.shape, generator=rng, dtype=moves.dtype)
        which = F.one_hot(chosen.flatten(1), donors).double().flatten(1)
        read = _read(moves, which)
        if random and read > 0:
            judged = release(torch.cat((mosaics[:1], mosaics[-_JUDGED:])), 6)
            moved = torch.cat((moves[:-_JUDGED], (judged[1:] - judged[:1]) / scale))
            read = read if _read(moved, which) < _KEPT * read else 0.0
        found.append(read)
    return max(found)


def _with_low_digits(released: Tensor) -> Tensor:
    """Beside each number what is below its first eight bits: a message there is lost beside what is above."""
    return torch.cat((released, released - released.bfloat16().double()), 1)


def _put_together(donors: Tensor, chosen: Tensor) -> Tensor:
    """Pictures whose part (r, c) is that of donor `chosen[:, r, c]`."""
    height, width = donors.shape[2:]
    row = torch.arange(height) * chosen.shape[1] // height
    column = torch.arange(width) * chosen.shape[2] // width
    source = chosen[:, row][:, :, column].to(donors.device)  # N×H×W
    places = torch.arange(height)[:, None], torch.arange(width)
    return donors.movedim(1, 3)[source, *places].movedim(3, 1).contiguous()


def _read(moves: Tensor, which: Tensor) -> float:
    """Share of the variance of `which` that ridge on `moves` explains for rows that it was not fitted on."""
    fit = slice(0, len(moves) - _JUDGED)
    mean = which[fit].mean(0)
    moves = moves - moves[fit].mean(0)
    gram = moves @ moves.T
    strength = _STRENGTH * gram[fit, fit].diagonal().mean()
    weights = torch.linalg.solve(gram[fit, fit] + strength * torch.eye(fit.stop), which[fit] - mean)
    missed = gram[fit.stop :, fit] @ weights - (which[fit.stop :] - mean)
    return float(1 - missed.square().sum() / (which[fit.stop :] - mean).square().sum())
