"""Is a picture told from others by symbols: numbers of few values, whose order means nothing?

Symbols may spell a whole picture in a book that only the client has, and follow no small change. Attacks that read
little of them say nothing then: what tells a picture from every other of its label is more than the label. Mixed with
each other, symbols have many values and move a little each; but a change that nobody sees moves none of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.attacks._spectrum import Spectrum

#: A number falls into clusters when at most this share of its variance is inside of them …
_INSIDE = 1e-3
#: … which are parted by the largest gaps between its values, each at least this share of the largest.
_GAPS, _OF_LARGEST = 15, 0.25
#: Or it stays as it is in so many pictures under a change that nobody sees.
_STAYS = 0.9
#: Its second value must be that of this share of the pictures: rare spikes are no symbols.
_HELD = 0.1
#: Where a visible change moves a symbol it goes this far, of what lies between pictures; a scale goes to the next step.
_JUMPS = 0.75
#: Fewer numbers among those that move may be symbols by accident, as some of any ReLU's are on or off; what is sent
#: beside them explains those, to this share of their variance at least.
_SHARE, _EXPLAINED = 0.1, 0.5
#: Strengths of the ridge that explains them, in mean squared lengths of a row.
_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
#: With other random numbers, symbols that correlate less with those before are under a key that is drawn.
_SAME_BOOK = 0.5


def symbols(released: Tensor, nudged: Tensor, changed: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """N×K symbols among the N×D releases of pictures, which were nudged unseen and changed visibly; their places and
    how far one may be off and still be the same.

    All three have the same random numbers for every picture.
    """
    moving = released.std(0) > rounding
    parts = _clusters(released)
    inside = (released - _centres(released, parts)).square().mean(0)
    clustered = inside <= _INSIDE * released.var(0)

    unusual = (released - released.mode(0).values).abs() > rounding
    stays = (nudged - released).abs() <= rounding
    still = moving & ((stays & unusual).sum(0) >= _STAYS * unusual.sum(0))

    held = torch.where(clustered, parts != parts.mode(0).values, unusual).double().mean(0)
    apart = torch.where(clustered, 8 * inside.sqrt(), rounding).maximum(rounding)
    found = moving & (clustered | still) & (held >= _HELD) & (_jump(released, changed, apart) >= _JUMPS)
    if float(stays[:, still].all(1).double().mean()) >= _STAYS:  # steps of a scale: some number of many takes the next
        found |= still
    if 0 < found.sum() < _SHARE * moving.sum():
        found[found.clone()] = _explained(released[:, moving & ~found], released[:, found]) < _EXPLAINED
    read = torch.where(clustered, parts.double(), released)
    return read[:, found], found, torch.where(clustered, 0.0, rounding)[found]


def _explained(others: Tensor, numbers: Tensor) -> Tensor:
    """By column of `numbers`: the share of variance that ridge reads from `others`, each picture left out once."""
    columns, wanted = (others - others.mean(0)) / others.std(0), numbers - numbers.mean(0)
    spectrum, level = Spectrum.of(columns), float(columns.square().sum(1).mean())
    errors = [spectrum.residuals(wanted, strength * level, 1)[1].square().mean((0, 1)) for strength in _STRENGTHS]
    return 1 - torch.stack(errors).nan_to_num(torch.inf).amin(0) / wanted.var(0, unbiased=False)


def _jump(released: Tensor, changed: Tensor, apart: Tensor) -> Tensor:
    """By column: how far numbers go that a change moves, of how far those of another picture are that differ."""

    def distance(others: Tensor) -> Tensor:
        far = (others - released).abs()
        differ = far > apart
        return (far * differ).sum(0) / differ.sum(0)  # no number where none does

    jump = distance(changed) / distance(released.roll(1, 0))
    return jump.nan_to_num(1.0)


def _clusters(released: Tensor) -> Tensor:
    """N×D: in which part of its column a number lies, the column being parted at its largest gaps."""
    ordered = released.sort(0).values
    largest = ordered.diff(dim=0).topk(min(_GAPS, len(released) - 1), dim=0)
    middles = (ordered.gather(0, largest.indices) + ordered.gather(0, largest.indices + 1)) / 2
    counts = (largest.values > 0) & (largest.values >= _OF_LARGEST * largest.values[0])
    parts = torch.zeros_like(released, dtype=torch.long)
    for middle, count in zip(middles, counts, strict=True):
        parts += (released > middle) & count
    return parts


def _centres(released: Tensor, parts: Tensor) -> Tensor:
    """N×D: the mean of all numbers that lie in the same part of the column."""
    total = torch.zeros(_GAPS + 1, released.shape[1], dtype=released.dtype).scatter_add_(0, parts, released)
    count = torch.zeros_like(total).scatter_add_(0, parts, torch.ones_like(released))
    return (total / count.clamp_min(1)).gather(0, parts)


def same_book(first: Tensor, second: Tensor) -> bool:
    """Whether releases of the same pictures, with other random numbers for all, tell them apart in the same way.

    Noise that is drawn is the same for all pictures here, and its symbols keep or exchange their places; a key makes
    others of them. What noise hides from everybody who does not know it is not counted as spelt.
    """
    first, second = first - first.mean(0), second - second.mean(0)
    size = (first.square().sum(0) * second.square().sum(0)).sqrt()
    moving = size > 0
    return not bool(moving.any()) or float(((first * second).sum(0) / size)[moving].abs().median()) >= _SAME_BOOK
