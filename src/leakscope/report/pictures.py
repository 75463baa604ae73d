"""Originals and reconstructions as PNG data URIs, kept small enough that the page can be mailed."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from leakscope.core.errors import UsageError
from leakscope.core.reports import AuditReport, ShownPictures

BUDGET = 2_400_000  # bytes of encoded pictures on one page
SIDES = (128, 96, 64, 48, 32, 24, 16)  # tried in turn when the full size is over budget
#: The group of the one victim that leaked most, where an audit kept it.
WORST = "worst"
DISPLAYED = 84  # CSS pixels per side, rounded to whole multiples so that every pixel stays square


@dataclass(frozen=True)
class Pair:
    """One victim: the original beside what the attack made of it."""

    truth: str
    guess: str
    width: int
    height: int
    leak: float
    victim: int


@dataclass(frozen=True)
class Group:
    """Victims chosen by one rule, such as `most leaked`."""

    name: str
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Galleries:
    """The groups of each result by its key, and the side they were reduced to (None: full size)."""

    groups: Mapping[str, tuple[Group, ...]]
    reduced_to: int | None

    def shown(self, key: str) -> tuple[Group, ...]:
        """The groups of several victims."""
        return tuple(group for group in self.groups[key] if group.name != WORST)

    def worst(self, key: str) -> Pair | None:
        """The single victim that leaked most under a result, where the audit kept it."""
        found = [pair for group in self.groups.get(key, ()) if group.name == WORST for pair in group.pairs]
        return found[0] if found else None

    @property
    def has_worst(self) -> bool:
        return any(group.name == WORST for groups in self.groups.values() for group in groups)


def galleries(report: AuditReport, pictures: Mapping[str, NDArray[np.uint8]], budget: int = BUDGET) -> Galleries:
    """All pictures at the largest size at which they fit the budget together."""
    chosen = {key: _checked(key, rows, pictures) for key, rows in report.pictures.items()}
    largest = max((max(truth.shape[2:]) for _, truth, _ in chosen.values()), default=0)
    *sizes, smallest = [None, *(side for side in SIDES if side < largest)]
    for side in sizes:
        drawn: dict[str, tuple[Group, ...]] = {}
        left = budget
        for key, found in chosen.items():
            drawn[key] = _groups(*found, side)
            left -= _bytes(drawn[key])
            if left < 0:
                break
        else:
            return Galleries(drawn, side)
    return Galleries({key: _groups(*found, smallest) for key, found in chosen.items()}, smallest)


def _bytes(groups: tuple[Group, ...]) -> int:
    return sum(len(pair.truth) + len(pair.guess) for group in groups for pair in group.pairs)


def _checked(
    key: str, rows: ShownPictures, pictures: Mapping[str, NDArray[np.uint8]]
) -> tuple[ShownPictures, NDArray[np.uint8], NDArray[np.uint8]]:
    truth, guess = pictures.get(f"truth/{key}"), pictures.get(f"guess/{key}")
    if truth is None or guess is None:
        raise UsageError(f"pictures.safetensors lacks the pictures of {key}; run the audit again")
    for images in (truth, guess):
        fits = images.dtype == np.uint8 and images.ndim == 4 and images.shape[1] in (1, 3)
        if not fits or len(images) != len(rows.groups):
            raise UsageError(
                f"pictures of {key} are {images.dtype} {images.shape}, not uint8 "
                f"({len(rows.groups)}, 1 or 3, height, width); run the audit again"
            )
    return rows, truth, guess


def _groups(
    rows: ShownPictures, truth: NDArray[np.uint8], guess: NDArray[np.uint8], side: int | None
) -> tuple[Group, ...]:
    height, width = truth.shape[2:]
    times = max(1, round(DISPLAYED / max(height, width)))
    if max(height, width) > DISPLAYED * 2:  # a large photograph: shown whole, not pixel by pixel
        height, width = (round(2 * DISPLAYED * size / max(height, width)) for size in (height, width))
    made: dict[str, list[Pair]] = {}
    for i, name in enumerate(rows.groups):
        drawn = data_uri(truth[i], side), data_uri(guess[i], side)
        pair = Pair(*drawn, width * times, height * times, rows.leak[i], rows.victims[i])
        made.setdefault(name, []).append(pair)
    return tuple(Group(name, tuple(pairs)) for name, pairs in made.items())


def data_uri(image: NDArray[np.uint8], side: int | None = None) -> str:
    """A C×H×W picture as a PNG data URI, averaged down until its longer side is at most `side`."""
    drawn = Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))
    if side is not None and max(drawn.size) > side:
        scale = side / max(drawn.size)
        size = (max(1, round(drawn.width * scale)), max(1, round(drawn.height * scale)))
        drawn = drawn.resize(size, Image.Resampling.BOX)
    buffer = io.BytesIO()
    drawn.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
