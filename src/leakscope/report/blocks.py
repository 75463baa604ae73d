"""Which residual blocks leak: one table per target, and the feature maps behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakscope.core.reports import Blocks, BlockTable
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
    shape: tuple[int, ...]
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
    """Feature maps of one attack, one data URI per block; the first strip of a sheet shows the true ones."""

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


def sheets(targets: list[Target], pictures: Mapping[str, NDArray[np.uint8]], names: Mapping[str, str]) -> list[Sheet]:
    """Of those targets whose blocks were compared; `names` are the short names of attacks."""
    return [
        _sheet(target, blocks, pictures, names)
        for target in targets
        if (blocks := target.found.blocks) is not None and blocks.attacks
    ]


def _sheet(
    target: Target, blocks: Blocks, pictures: Mapping[str, NDArray[np.uint8]], names: Mapping[str, str]
) -> Sheet:
    rows = []
    for place, first in enumerate(blocks.attacks[0].rows):
        own = [attack.rows[place] for attack in blocks.attacks]
        lost = next((row.lost for row in own if row.lost is not None), None)
        rows.append(Row(first.block, first.shape, lost, tuple(row.error for row in own)))
    titles = tuple((names.get(attack.attack, attack.attack), attack.peeled) for attack in blocks.attacks)
    return Sheet(target, blocks.victims, titles, tuple(rows), _strips(blocks.attacks, pictures, names))


def _strips(
    attacks: tuple[BlockTable, ...], pictures: Mapping[str, NDArray[np.uint8]], names: Mapping[str, str]
) -> tuple[Strip, ...]:
    drawn = [(attack, pictures[key]) for attack in attacks if (key := f"maps/{attack.result}") in pictures]
    if not drawn:
        return ()
    blocks = [row.block for row in attacks[0].rows]
    count = min(SHOWN, len(blocks))
    places = sorted({round(i * (len(blocks) - 1) / max(1, count - 1)) for i in range(count)})
    strips = [Strip("true", tuple((blocks[i], data_uri(drawn[0][1][i, :1])) for i in places))]
    for attack, maps in drawn:
        title = names.get(attack.attack, attack.attack)
        strips.append(Strip(title, tuple((blocks[i], data_uri(maps[i, 1:])) for i in places)))
    return tuple(strips)
