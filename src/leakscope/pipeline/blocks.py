"""Which residual blocks leak: what each block read, against what the attacks take it to have read.

For an attack that peels, that is the input it solved for; for any other attack, what its picture makes
the network compute there. As in table VI and figure 4 of Arif et al., "PEEL the layers", 2025.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.attacks.peel_exact import block_inputs
from leakscope.core.attack import Observed
from leakscope.core.spec import digest
from leakscope.core.threat import View
from leakscope.pipeline.desk import Desk, Finding
from leakscope.pipeline.execute import Target, observe

#: Victims whose features are compared; peeling them again costs that share of the attack.
VICTIMS = 3
#: Longest side of a feature map in the report.
SIDE = 64


@runtime_checkable
class Peeling(Protocol):
    """An attack that solves for what every block read."""

    def block_inputs(self, view: View, seen: Observed, rng: torch.Generator) -> dict[str, Tensor]: ...


def block_tables(
    desk: Desk, target: Target, findings: list[Finding]
) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """The table of one target of the first seed, with its feature maps; None when no attack peeled it.

    `error` is ‖x̂ − x‖ / ‖x‖ and `mse` the mean of (x̂ − x)², both averaged over victims, x being what the
    block read. `maps/RESULT` holds, a row a block, the channel that varies most: the true one, the guess.
    """
    peeling = next((f.case.attack for f in findings if isinstance(f.case.attack, Peeling)), None)
    if peeling is None or target.record["seed"] != desk.plan.seeds[0]:
        return None, {}
    plain = bool(getattr(peeling, "plain_layers", False))
    device = desk.place.device
    truth = block_inputs(target.split, desk.plan.victims.images[:VICTIMS].to(device), plain_layers=plain)
    attacks, maps = [], {}
    for finding in findings:
        guess = _guessed(desk, finding, target, plain)
        if guess.keys() != truth.keys():
            continue
        attacks.append(
            {
                "attack": finding.row["attack"],
                "result": finding.key,
                "peeled": isinstance(finding.case.attack, Peeling),
                "rows": [_row(name, guess[name], truth[name], finding.row["notes"]) for name in truth],
            }
        )
        if all(value.ndim in (3, 4) for value in truth.values()):
            maps[f"maps/{finding.key}"] = _maps(truth, guess)
    return {"victims": min(VICTIMS, len(desk.plan.victims)), "attacks": attacks}, maps


def _guessed(desk: Desk, finding: Finding, target: Target, plain: bool) -> dict[str, Tensor]:
    """What the attack takes the blocks to have read; peeled once, then kept."""
    attack, device = finding.case.attack, desk.place.device
    if not isinstance(attack, Peeling):
        return block_inputs(target.split, finding.guess[:VICTIMS].to(device), plain_layers=plain)
    store, key = desk.place.store, digest({"block inputs": finding.case.plan.key(finding.case.victims.digest())})
    with store.claim("blocks", key) as done:
        if done is not None:
            return {name: value.to(device) for name, value in done.tensors().items()}
        features = observe(finding.case, device).features
        assert features is not None
        seen = Observed(features[:VICTIMS])
        found = attack.block_inputs(finding.case.view(desk.place), seen, finding.case.rng("blocks", device))
        kept = {name: value.detach().cpu().contiguous() for name, value in found.items()}
        store.put("blocks", key, {"result": finding.key}, kept)
    return {name: value.to(device) for name, value in kept.items()}


def _row(name: str, guess: Tensor, truth: Tensor, notes: dict[str, Any]) -> dict[str, Any]:
    gap = (guess - truth).flatten(1)
    error = gap.norm(dim=1) / truth.flatten(1).norm(dim=1).clamp_min(torch.finfo(truth.dtype).tiny)
    known = (notes.get("blocks") or {}).get(name, {})
    return {
        "block": name,
        "shape": list(truth.shape[1:]),
        "error": _finite(error.mean()),
        "mse": _finite(gap.square().mean()),
        "lost": known.get("deficiency"),
    }


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
