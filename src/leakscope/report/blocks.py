"""Which residual blocks leak: one table a target, and the feature maps behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.report.pictures import data_uri
from leakscope.report.targets import Target

#: Below this relative error the input of a block counts as recovered, from the next on as hidden.
RECOVERED, HIDDEN = 0.1, 0.5
#: Feature maps a target shows, spread evenly over its blocks.
SHOWN = 8


@dataclass(frozen=True)
class Row:
    """One block: errors in the order of the attacks, and what the best of them amounts to."""

    block: str
    shape: list[int]
    lost: int | None
    errors: tuple[float | None, ...]

    @property
    def word(self) -> str:
        known = [error for error in self.errors if error is not None]
        best = min(known, default=None)
        if best is None:
            return "unknown"
        return "recovered" if best <= RECOVERED else "partly" if best < HIDDEN else "hidden"


@dataclass(frozen=True)
class Strip:
    """Feature maps of one attack, a data URI a block; the first strip of a sheet shows the true ones."""

    title: str
    maps: tuple[tuple[str, str], ...]  # block, picture


@dataclass(frozen=True)
class Sheet:
    """The blocks of one target."""

    target: Target
    victims: int
    attacks: tuple[tuple[str, bool], ...]  # name, whether it peels
    rows: tuple[Row, ...]
    strips: tuple[Strip, ...]


def sheets(targets: list[Target], pictures: Mapping[str, NDArray[np.uint8]]) -> list[Sheet]:
    """Of those targets whose blocks were compared."""
    return [_sheet(target, blocks, pictures) for target in targets if (blocks := _compared(target))]


def _compared(target: Target) -> Mapping[str, Any] | None:
    blocks: Mapping[str, Any] | None = target.facts.get("blocks")
    return blocks if blocks and blocks["attacks"] else None


def _sheet(target: Target, blocks: Mapping[str, Any], pictures: Mapping[str, NDArray[np.uint8]]) -> Sheet:
    attacks = blocks["attacks"]
    rows = []
    for place, first in enumerate(attacks[0]["rows"]):
        own = [attack["rows"][place] for attack in attacks]
        lost = next((row["lost"] for row in own if row.get("lost") is not None), None)
        rows.append(Row(first["block"], first["shape"], lost, tuple(row["error"] for row in own)))
    names = tuple((attack["attack"], attack["peeled"]) for attack in attacks)
    return Sheet(target, blocks["victims"], names, tuple(rows), _strips(attacks, pictures))


def _strips(attacks: list[Any], pictures: Mapping[str, NDArray[np.uint8]]) -> tuple[Strip, ...]:
    drawn = [
        (attack, pictures[f"maps/{attack['result']}"]) for attack in attacks if f"maps/{attack['result']}" in pictures
    ]
    if not drawn:
        return ()
    names = [row["block"] for row in attacks[0]["rows"]]
    places = sorted(
        {round(i * (len(names) - 1) / max(1, min(SHOWN, len(names)) - 1)) for i in range(min(SHOWN, len(names)))}
    )
    strips = [Strip("true", tuple((names[i], data_uri(drawn[0][1][i, :1])) for i in places))]
    for attack, maps in drawn:
        strips.append(Strip(attack["attack"], tuple((names[i], data_uri(maps[i, 1:])) for i in places)))
    return tuple(strips)
