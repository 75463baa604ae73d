"""PEEL and what came after it, on finished audits of residual networks."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor

from leakscope.studies._crossed import crossed_interval
from leakscope.studies._peel_page import page
from leakscope.studies.study import STUDIES, Claim, Figures, Outcome, Run, Runs, Study

#: Fewer decide nothing.
LEAST_IMAGES, LEAST_SEEDS = 20, 3
#: Decibels that a change may cost before it counts as a cost.
MARGIN = 1.0


@dataclass(frozen=True)
class Comparison:
    """PSNR on one variant less that on another: `more`, or `no less` within the margin.

    Under one attack, or under `attack` on the first and `other` on the second.
    """

    text: str
    first: str
    second: str
    wanted: Literal["more", "no less"] = "more"
    attack: str = "peel"
    other: str | None = None


PAPER = (
    Comparison("Random weights are easier to invert than trained ones", "U", "P"),
    Comparison("Random weights are easier to invert than trained ones, with pooling", "MU", "MP"),
    Comparison("Pooling hurts the attack on random weights", "U", "MU"),
    Comparison("Pooling hurts the attack on trained weights", "P", "MP"),
    Comparison("Depth does not hurt: twice as many blocks", "deeper", "U", "no less"),
    Comparison("Depth does not hurt: 152 against 18", "U", "shallower", "no less"),
    Comparison("Depth does not hurt: 34 against 18", "depth-34", "depth-18", "no less"),
    Comparison("Depth does not hurt: 50 against 18", "depth-50", "depth-18", "no less"),
    Comparison("Width hardly matters: HRN-5x5x3x against ResNet-18", "HRN-5x5x3x", "ResNet-18", "no less"),
    Comparison("Width hardly matters: HRN-2x5x3x against ResNet-18", "HRN-2x5x3x", "ResNet-18", "no less"),
    Comparison("Without shortcuts less is rebuilt (no skip, no peel)", "U", "no-skip"),
    Comparison("PEEL rebuilds more than embedding inversion from random weights", "U", "U", other="embedding"),
    Comparison("PEEL rebuilds more than embedding inversion from trained weights", "P", "P", other="embedding"),
)
#: Not the paper's: whether what holds for PEEL also holds for the strongest attack.
OURS = tuple(replace(item, attack="best") for item in PAPER if item.other is None)


@STUDIES.register("peel")
@dataclass(frozen=True)
class PeelStudy(Study):
    """What residual networks give away to PEEL and to ours, beside the paper's tables II to IV, VI, VII and IX."""

    part: Literal["faces", "depths", "widths", "xray", "demo"] = "faces"

    def measure(self, runs: Runs) -> Figures:
        tables = {name: _psnr(run) for name, run in runs.runs.items()}
        return {
            "configurations": [{"name": name, **_configuration(run)} for name, run in runs.runs.items()],
            "layers": [{"name": name, "rows": rows} for name, run in runs.runs.items() if (rows := _layers(run))],
            "claims": [claim.as_dict() for item in PAPER if (claim := judged(item, tables))],
            "strongest": [claim.as_dict() for item in OURS if (claim := judged(item, tables))],
        }

    def page(self, parts: Mapping[str, Figures]) -> str:
        return page(parts)

    def pictures(self, runs: Runs) -> dict[str, bytes]:
        """None of people's faces, which have no place in a repository: the report of the audit shows them."""
        if self.part == "faces":
            return {}
        drawn = {f"{name}.png": _faces(run) for name, run in runs.runs.items()}
        first = next(iter(runs.runs.values()))
        maps = _feature_maps(first)
        return drawn | ({} if maps is None else {"maps.png": maps})


def _kind(row: Mapping[str, Any]) -> str:
    """The attack without its settings, with the defence it met."""
    name = str(row["attack"]).partition(":")[0]
    defense = str(row["defense"])
    return name if defense == "none" else f"{name}, {defense}"


def _grouped(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The rows of every attack, one for each seed in the order of the seeds."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(run.rows, key=lambda row: int(row["seed"])):
        groups.setdefault(_kind(row), []).append(row)
    return groups


def _table(run: Run, rows: list[dict[str, Any]], metric: str) -> Tensor:
    """Seeds × pictures."""
    return torch.stack([run.values(row)[metric] for row in rows])


def _psnr(run: Run) -> dict[str, Tensor]:
    """Seeds × pictures of every attack, and of the best one picture by picture."""
    tables = {kind: _table(run, rows, "psnr") for kind, rows in _grouped(run).items()}
    undefended = [table for kind, table in tables.items() if ", " not in kind]
    return tables | ({"best": torch.stack(undefended).amax(0)} if undefended else {})


def _configuration(run: Run) -> Figures:
    features = run.targets[0]["feature_shape"]
    pixels = run.audit.document["data"]["shape"]
    return {
        "model": run.targets[0]["model"],
        "trained": run.plan.config.training.epochs > 0,
        "accuracy": {
            str(defense): fmean(t["accuracy"] for t in run.targets if t["defense"] == defense)
            for defense in dict.fromkeys(t["defense"] for t in run.targets)
        },
        "ratio": float(torch.Size(features).numel() / torch.Size(pixels).numel()),
        "side": pixels[1],
        "attacks": [{"name": kind, **_attack(run, rows)} for kind, rows in _grouped(run).items()],
    }


def _attack(run: Run, rows: list[dict[str, Any]]) -> Figures:
    count = len(run.plan.victims)
    worked = [row["notes"].get("cpu_seconds") for row in rows]
    return {
        "mse": crossed_interval(_table(run, rows, "mse") * 255**2),
        "psnr": crossed_interval(_table(run, rows, "psnr")),
        "leak": crossed_interval(_table(run, rows, "leak")),
        "cpu_seconds": None if None in worked else fmean(worked) / count,  # a picture
        "unexplained": fmean(row["notes"].get("unexplained") or 0.0 for row in rows),
        "flags": sorted({flag for row in rows for flag in row["flags"]}),
    }


def _layers(run: Run) -> list[Figures]:
    """Relative error of every block's input by attack, on the first seed; of runs without a defence."""
    if any(target["defense"] != "none" for target in run.targets):
        return []  # its undefended twin is a variant of its own
    rows: dict[str, dict[str, float | None]] = {}
    for target in run.targets:
        for attack in target.get("blocks", {}).get("attacks", []):
            for row in attack["rows"]:
                rows.setdefault(row["block"], {})[attack["attack"].partition(":")[0]] = row["error"]
    return [{"block": block, "errors": errors} for block, errors in rows.items()]


def judged(item: Comparison, tables: Mapping[str, Mapping[str, Tensor]]) -> Claim | None:
    """The claim with its outcome; None when one of its variants was not run."""
    first = tables.get(item.first, {}).get(item.attack)
    second = tables.get(item.second, {}).get(item.other or item.attack)
    if first is None or second is None:
        return None
    names = (item.first, item.second) if item.other is None else (f"`{item.attack}`", f"`{item.other}`")
    difference = crossed_interval(first - second)
    because = (
        f"{names[0]} less {names[1]}: {difference['mean']:+.1f} dB "
        f"[{difference['low']:+.1f}, {difference['high']:+.1f}], {difference['images']} pictures, "
        f"{difference['seeds']} seeds"
    )
    return Claim(item.text, outcome(difference, item.wanted), because)


def outcome(difference: Mapping[str, float | int], wanted: Literal["more", "no less"]) -> Outcome:
    """By the interval: a gain must exclude zero, a loss must stay within the margin."""
    if difference["images"] < LEAST_IMAGES or difference["seeds"] < LEAST_SEEDS:
        return "cannot tell"
    limit = 0.0 if wanted == "more" else -MARGIN
    if difference["low"] > limit:
        return "holds"
    return "does not hold" if difference["high"] < limit else "cannot tell"


#: Victims in a picture, and pixels each is enlarged to.
SHOWN, SIDE = 8, 64


def _faces(run: Run) -> bytes:
    """Originals above what each attack made of them, on the first seed."""
    strips = [run.plan.victims.images[:SHOWN]]
    strips += [run.guess(rows[0])[:SHOWN] for rows in _grouped(run).values()]
    return _png(torch.stack(strips))


def _feature_maps(run: Run) -> bytes | None:
    """Of one victim, a column a block: the true input, then that of each attack."""
    blocks = run.targets[0].get("blocks")
    maps = [run.audit.pictures.get(f"maps/{attack['result']}") for attack in blocks["attacks"]] if blocks else []
    drawn = [item.float() / 255 for item in maps if item is not None]
    if not drawn:
        return None
    return _png(torch.stack([drawn[0][:, :1], *(item[:, 1:] for item in drawn)]))


def _png(grid: Tensor) -> bytes:
    """Rows × columns × channels × height × width in [0, 1] as one picture."""
    from PIL import Image

    times = max(1, SIDE // grid.shape[-1])
    large = grid.repeat_interleave(times, -1).repeat_interleave(times, -2)
    sheet = torch.nn.functional.pad(large, (1, 1, 1, 1), value=1.0).permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2)
    pixels = (sheet.clamp(0, 1) * 255).round().to(torch.uint8)
    buffer = io.BytesIO()
    Image.fromarray((pixels[..., 0] if pixels.shape[-1] == 1 else pixels).numpy()).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
