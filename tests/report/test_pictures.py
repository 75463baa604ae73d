"""Pictures on the page: the audit's own, pixel by pixel, and few enough bytes to be mailed."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from leakscope.core.errors import UsageError
from leakscope.report import render_html
from leakscope.report.pictures import data_uri, galleries

from .sample import many, sample
from .test_page import Page


def decoded(uri: str) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,")))))


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_the_audits_pixel_by_pixel(channels: int) -> None:
    audit, pictures = sample(channels=channels)
    drawn = [decoded(image["src"]) for image in Page(render_html(audit, pictures)).all("img")]
    worst, expected = [], []
    for target in audit.targets:
        own = sorted(audit.of_target(target.record.key), key=lambda result: -result.leak)  # the strongest first
        for result in own:
            rows = zip(pictures[f"truth/{result.key}"], pictures[f"guess/{result.key}"], strict=True)
            pairs = [[np.squeeze(image.transpose(1, 2, 0)) for image in row] for row in rows]
            worst += pairs[0] if result is own[0] else []
            expected += [image for pair in pairs[1:] for image in pair]
    assert len(worst) + len(expected) == 4 * 2 + 12 * 9 * 2
    # The summary shows the worst pair of all once more, before everything else.
    summary, drawn = drawn[:2], drawn[2:]
    pairs_of_targets = [worst[place : place + 2] for place in range(0, len(worst), 2)]
    assert any(all(map(np.array_equal, summary, pair)) for pair in pairs_of_targets)
    assert all(np.array_equal(a, b) for a, b in zip(drawn, worst + expected, strict=True))


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 80)])
def test_forty_results_stay_under_three_megabytes(channels: int, side: int) -> None:
    audit, pictures = many(40, channels, side)
    text = render_html(audit, pictures)
    assert len(text.encode()) < 3_000_000
    assert ("pixels per side; the full size is in" in text) == (side > 28)


def test_reduced_pictures_average_what_they_replace() -> None:
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8) * 4
    expected = image.reshape(4, 2, 4, 2).mean((1, 3))
    assert np.abs(decoded(data_uri(image, 4)) - expected).max() <= 0.5


def test_pictures_too_many_for_the_budget_are_still_all_there() -> None:
    audit, pictures = sample()
    drawn = galleries(audit, pictures, budget=1)
    assert drawn.reduced_to == 16
    assert [len(group.pairs) for groups in drawn.groups.values() for group in groups] == [1, 3, 3, 3] * 12


def test_pictures_that_do_not_match_are_refused() -> None:
    audit, pictures = sample()
    key = audit.results[0].key
    with pytest.raises(UsageError, match="lacks the pictures"):
        galleries(audit, {name: rows for name, rows in pictures.items() if name != f"guess/{key}"})
    with pytest.raises(UsageError, match="not uint8"):
        galleries(audit, {**pictures, f"guess/{key}": pictures[f"guess/{key}"][:4]})


def test_an_audit_that_kept_no_worst_picture_says_so() -> None:
    audit, pictures = sample()
    shown = {key: replace(rows, groups=("most leaked", *rows.groups[1:])) for key, rows in audit.pictures.items()}
    drawn = Page(render_html(replace(audit, pictures=shown), pictures))
    assert "the one that leaked most stands among" not in drawn.text
    assert "The worst picture" not in drawn.text
