"""The blind sheet: a person sees a real photo and two reconstructions in random order, and chooses.

The page does not know which attack or defence made which picture: the key stays in a file beside it,
and answers are joined with it afterwards.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError
from safetensors.numpy import load_file

from leakscope.core.errors import UsageError
from leakscope.core.files import read_json, require_file
from leakscope.core.results import from_json, to_json
from leakscope.report import templating

Pictures = NDArray[np.float32]  # N×C×H×W in [0, 1]


@dataclass(frozen=True)
class Hidden:
    """What a row of the page does not say: whose picture is on the left."""

    number: int
    victim: int
    left: str


@dataclass(frozen=True)
class BlindKey:
    """The key of a sheet: the two results that are compared, and every row."""

    first: str
    second: str
    trials: tuple[Hidden, ...]


@dataclass(frozen=True)
class Answer:
    trial: int
    choice: Literal["left", "right"]


@dataclass(frozen=True)
class Answers:
    """What the page saved."""

    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Trial:
    """One row of the page, with three data URIs."""

    number: int
    real: str
    left: str
    right: str


@dataclass(frozen=True)
class Preference:
    """How often the first was chosen, with its 95 % interval (Wilson, 1927)."""

    first: str
    second: str
    chosen: int
    answers: int
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.chosen / self.answers


def read_reconstructions(folder: Path) -> dict[str, Pictures]:
    """What `leakscope attack --out` wrote: `truth`, and reconstructions by result key."""
    path = folder / "reconstructions.safetensors"
    try:
        pictures: dict[str, Pictures] = load_file(require_file(path))
    except (OSError, SafetensorError, ValueError, KeyError):
        raise UsageError(f"no readable {path}; write it with `leakscope attack … --out {folder}`") from None
    return pictures


def write_blind(folder: Path, first: str, second: str, out: Path, *, seed: int = 0, most: int = 60) -> list[Path]:
    """Write `blind.html` and `blind-key.json` for two results of a folder, named by the beginnings of their keys."""
    pictures = read_reconstructions(folder)
    truth = pictures.pop("truth")
    keys = [_find(name, pictures) for name in (first, second)]
    if keys[0] == keys[1]:
        raise UsageError("the two results are the same; name two")
    # A class attack made several pictures of each identity; its first is shown.
    shown = [pictures[key][:: len(pictures[key]) // len(truth)] for key in keys]
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(truth))[:most]
    swapped = rng.random(len(order)) < 0.5
    trials, hidden = [], []
    for number, (index, swap) in enumerate(zip(order, swapped, strict=True), 1):
        left, right = shown[::-1] if swap else shown
        trials.append(Trial(number, uri(truth[index]), uri(left[index]), uri(right[index])))
        hidden.append(Hidden(number, int(index), keys[int(swap)]))
    key = BlindKey(keys[0], keys[1], tuple(hidden))
    out.mkdir(parents=True, exist_ok=True)
    page, answers = out / "blind.html", out / "blind-key.json"
    page.write_text(_page(trials), encoding="utf-8")
    answers.write_text(json.dumps(to_json(key), indent=1), encoding="utf-8")
    return [page, answers]


def _find(prefix: str, pictures: Mapping[str, Any]) -> str:
    found = [key for key in pictures if key.startswith(prefix)]
    if len(found) != 1:
        raise UsageError(f"{len(found)} results begin with {prefix!r}; there are: {', '.join(sorted(pictures))}")
    return found[0]


def uri(picture: Pictures) -> str:
    """A picture as a PNG data URI."""
    pixels = (picture * 255).round().clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _page(trials: list[Trial]) -> str:
    style, script = templating.source("blind.css"), templating.source("blind.js")
    return (
        templating.environment()
        .get_template("blind.html")
        .render(
            trials=trials,
            style=Markup(style),  # noqa: S704 (our own files, hashed into the page's policy)
            script=Markup(script),  # noqa: S704
            style_hash=templating.policy_hash(style),
            script_hash=templating.policy_hash(script),
        )
    )


def score_blind(key_file: Path, answers_file: Path) -> Preference:
    """How often people chose the first of the two results."""
    key = from_json(BlindKey, _read(key_file), str(key_file))
    rows = from_json(Answers, _read(answers_file), str(answers_file)).answers
    left = {trial.number: trial.left for trial in key.trials}
    if not rows:
        raise UsageError(f"{answers_file} holds no answers; choose on the page and save them")
    chosen = 0
    for row in rows:
        if row.trial not in left:
            raise UsageError(f"{answers_file} does not belong to {key_file}: {row}; give the file the page saved")
        chosen += (left[row.trial] == key.first) == (row.choice == "left")
    low, high = wilson(chosen, len(rows))
    return Preference(key.first, key.second, chosen, len(rows), low, high)


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % score interval of a share."""
    share, square = successes / trials, z * z / trials
    centre = (share + square / 2) / (1 + square)
    spread = z * math.sqrt(share * (1 - share) / trials + square / (4 * trials)) / (1 + square)
    return centre - spread, centre + spread


def _read(path: Path) -> object:
    try:
        tree: object = read_json(path, "give the files of one blind sheet")
    except FileNotFoundError:
        raise UsageError(f"there is no {path}; give the files of one blind sheet") from None
    return tree
