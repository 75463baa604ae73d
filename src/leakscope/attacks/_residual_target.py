"""Which solver a residual encoder calls for."""

from __future__ import annotations

import torch

from leakscope.attacks.e2e_lbfgs import EndToEnd
from leakscope.attacks.peel_exact import PeelExact
from leakscope.attacks.peeling.chain import Block
from leakscope.attacks.peeling.shortcuts import has_shortcuts
from leakscope.attacks.peeling.take_apart import take_apart, why_not
from leakscope.core.model import SplitModel


@torch.no_grad()
def residual_solver(split: SplitModel, image_shape: tuple[int, int, int]) -> PeelExact | EndToEnd | None:
    """The attack that inverts this encoder best, to be called as any other; None where nothing is added to a shortcut.

    `peel-exact` where no block can lose dimensions, else `e2e-lbfgs`, which also serves where a network cannot be
    taken apart.
    """
    if not has_shortcuts(split, image_shape):
        return None
    if why_not(split, image_shape) is None:
        chain = take_apart(split, image_shape)
        if all(_keeps(block) for block in chain.blocks):
            return PeelExact()
    return EndToEnd()


def _keeps(block: Block) -> bool:
    """Whether the shortcut alone, seen through nothing, passes on every dimension of the input."""
    inputs, outputs = block.sizes
    if block.shortcut is None or outputs < inputs or not block.piecewise_linear:
        return False
    if block.outer is not None and not block.outer.invertible:
        return False
    rank = block.shortcut.rank_bound
    return rank is None or rank >= inputs
