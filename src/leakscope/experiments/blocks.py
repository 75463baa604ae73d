"""Which residual blocks leak: the true input of each block against the input that the attacks rebuilt.

For an attack that peels, that is the input it solved for; for any other attack, the block's input
when the network sees the rebuilt picture. As in table VI and figure 4 of Arif et al., "PEEL the layers", 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.attacks.peel_exact import block_inputs
from leakscope.core.attack import Observed
from leakscope.core.reports import BlockRow, Blocks, BlockTable
from leakscope.core.results import AttackResult, from_json, to_json
from leakscope.core.spec import digest
from leakscope.core.threat import View
from leakscope.experiments.stages import Case, Target, reconstruct
from leakscope.experiments.workplace import Workplace
from leakscope.store import Store

#: Victims whose features are compared; peeling them again costs that share of the attack.
VICTIMS = 3
#: Longest side of a feature map in the report.
SIDE = 64


@runtime_checkable
class Peeling(Protocol):
    """An attack that solves for what every block read."""

    def block_inputs(self, view: View, seen: Observed, rng: torch.Generator) -> dict[str, Tensor]: ...


def blocks_key(results: Sequence[str]) -> str:
    """Identity of a table of blocks: the results whose guesses it compares."""
    return digest({"blocks": sorted(results)})


def keep_blocks(target: Target, cases: Sequence[tuple[Case, AttackResult]], place: Workplace) -> None:
    """The table of one target with its feature maps; an empty one when no attack peeled it.

    Feature maps, one row per block: the channel that varies most, the true one and the guess.
    """
    key = blocks_key([result.key for _, result in cases])
    with place.store.claim("blocks", key) as done:
        if done is None:
            table, maps = _compared(target, cases, place)
            place.store.put("blocks", key, {"blocks": None if table is None else to_json(table)}, maps)


def read_blocks(store: Store, results: Sequence[str]) -> tuple[Blocks | None, dict[str, Tensor]]:
    """The table of a target's results, and feature maps by result key."""
    entry = store.get("blocks", blocks_key(results))
    if entry is None or entry.record["blocks"] is None:
        return None, {}
    return from_json(Blocks, entry.record["blocks"]), entry.tensors()


def _compared(
    target: Target, cases: Sequence[tuple[Case, AttackResult]], place: Workplace
) -> tuple[Blocks | None, dict[str, Tensor]]:
    peeling = next((case.attack for case, _ in cases if isinstance(case.attack, Peeling)), None)
    if peeling is None or target.record.seed != cases[0][0].scene.config.first_seed:
        return None, {}
    plain = bool(getattr(peeling, "plain_layers", False))
    victims = cases[0][0].victims
    truth = block_inputs(target.split, victims.images[:VICTIMS].to(place.device), plain_layers=plain)
    attacks, maps = [], {}
    for case, result in cases:
        guess = _guessed(case, place, plain)
        if guess.keys() != truth.keys():
            continue
        lost = result.diagnostics.lost_dimensions
        rows = tuple(_row(name, guess[name], truth[name], lost.get(name)) for name in truth)
        attacks.append(BlockTable(result.attack.label, result.key, isinstance(case.attack, Peeling), rows))
        if all(value.ndim in (3, 4) for value in truth.values()):
            maps[result.key] = _maps(truth, guess)
    return Blocks(min(VICTIMS, len(victims)), tuple(attacks)), maps


def _guessed(case: Case, place: Workplace, plain: bool) -> dict[str, Tensor]:
    """The blocks' inputs as the attack rebuilt them."""
    device = place.device
    if not isinstance(case.attack, Peeling):
        guess = reconstruct(case, place).images[:VICTIMS]
        return block_inputs(case.target.split, guess.to(device), plain_layers=plain)
    features = case.observe(device).features
    assert features is not None
    seen = Observed(features[:VICTIMS])
    found = case.attack.block_inputs(case.view(place), seen, case.rng("blocks", device))
    return {name: value.detach() for name, value in found.items()}


def _row(name: str, guess: Tensor, truth: Tensor, lost: int | None) -> BlockRow:
    gap = (guess - truth).flatten(1)
    error = gap.norm(dim=1) / truth.flatten(1).norm(dim=1).clamp_min(torch.finfo(truth.dtype).tiny)
    return BlockRow(name, tuple(truth.shape[1:]), _finite(error.mean()), _finite(gap.square().mean()), lost)


def _finite(value: Tensor) -> float | None:
    return float(value) if bool(value.isfinite()) else None


def _maps(truth: dict[str, Tensor], guess: dict[str, Tensor]) -> Tensor:
    """Blocks × 2 × height × width bytes of the first victim: true and guessed, on the scale of the true one."""
    pairs = []
    for name, value in truth.items():
        own, other = (x[0] if x.ndim == 4 else x[0, None] for x in (value, guess[name]))  # tokens: one map
        channel = int(own.flatten(1).var(1).argmax())
        pairs.append(torch.stack((own[channel], other[channel])).nan_to_num())
    height, width = (min(SIDE, max(pair.shape[axis] for pair in pairs)) for axis in (1, 2))
    drawn = []
    for pair in pairs:
        low, high = pair[0].min(), pair[0].max()
        scaled = ((pair - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
        drawn.append(F.interpolate(scaled[None], size=(height, width), mode="nearest")[0])
    return (torch.stack(drawn) * 255).round().to(torch.uint8).cpu()
