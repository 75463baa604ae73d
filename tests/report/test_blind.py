"""The blind sheet hides who made what, and its answers are joined with the key."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from scipy.stats import binomtest

from leakscope.core.errors import UsageError
from leakscope.report.blind import score_blind, uri, wilson, write_blind


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    pictures = {name: rng.random((12, 1, 8, 8), dtype=np.float32) for name in ("truth", "aaa111")}
    pictures["bbb222"] = rng.random((36, 1, 8, 8), dtype=np.float32)  # three of each identity
    save_file(pictures, tmp_path / "reconstructions.safetensors")
    return tmp_path


def test_the_page_does_not_tell_and_the_key_does(folder: Path) -> None:
    page, key_file = write_blind(folder, "aaa", "bbb", folder / "out", seed=3)
    text, key = page.read_text(), json.loads(key_file.read_text())
    assert "aaa111" not in text
    assert "bbb222" not in text
    assert {trial["left"] for trial in key["trials"]} == {"aaa111", "bbb222"}  # the order is mixed
    # Somebody who always prefers the first result, wherever it lies.
    answers = [
        {"trial": trial["number"], "choice": "left" if trial["left"] == "aaa111" else "right"}
        for trial in key["trials"]
    ]
    (folder / "answers.json").write_text(json.dumps({"answers": answers}))
    preference = score_blind(key_file, folder / "answers.json")
    assert (preference.chosen, preference.answers, preference.share) == (12, 12, 1.0)
    assert preference.low > 0.5


def test_the_page_runs_its_own_script_and_loads_nothing(folder: Path) -> None:
    page, _ = write_blind(folder, "aaa", "bbb", folder / "out")
    text = page.read_text()
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert found is not None
    policy = dict(part.split(maxsplit=1) for part in found[1].split("; "))
    assert policy.pop("default-src") == "'none'"
    assert policy.pop("img-src") == "data:"
    for name, tag in (("style-src", "style"), ("script-src", "script")):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert policy.pop(name) == f"'sha256-{digest}'"
    assert set(policy.values()) <= {"'none'"}


def test_pictures_lie_where_the_key_says(folder: Path) -> None:
    from safetensors.numpy import load_file

    page, key_file = write_blind(folder, "aaa", "bbb", folder / "out")
    pictures, text = load_file(folder / "reconstructions.safetensors"), page.read_text()
    for trial in json.loads(key_file.read_text())["trials"]:
        row = text.split(f"<legend>{trial['number']}</legend>")[1].split("</fieldset>")[0]
        made = {"aaa111": pictures["aaa111"][trial["victim"]], "bbb222": pictures["bbb222"][3 * trial["victim"]]}
        other = next(name for name in made if name != trial["left"])
        assert row.index(uri(made[trial["left"]])) < row.index(uri(made[other]))


@given(trials=st.integers(1, 200), data=st.data())
def test_the_interval_is_wilsons(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    reference = binomtest(successes, trials).proportion_ci(method="wilson")
    assert wilson(successes, trials) == pytest.approx((reference.low, reference.high), abs=1e-6)


@pytest.mark.parametrize(("first", "second", "word"), [("zzz", "aaa", "0 results"), ("aaa", "aaa111", "same")])
def test_wrong_names_are_refused(folder: Path, first: str, second: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        write_blind(folder, first, second, folder / "out")


def test_answers_of_another_sheet_are_refused(folder: Path) -> None:
    _, key_file = write_blind(folder, "aaa", "bbb", folder / "out")
    (folder / "answers.json").write_text('{"answers": [{"trial": 99, "choice": "left"}]}')
    with pytest.raises(UsageError, match="does not belong"):
        score_blind(key_file, folder / "answers.json")
    (folder / "answers.json").write_text('{"answers": []}')
    with pytest.raises(UsageError, match="no answers"):
        score_blind(key_file, folder / "answers.json")
    for wrong in ("[]", '{"answers": [{"trial": 1, "choice": "both"}]}', '{"answers": [{"trial": 1}]}'):
        (folder / "answers.json").write_text(wrong)
        with pytest.raises(UsageError, match="make it again") as caught:
            score_blind(key_file, folder / "answers.json")
        assert "\n" not in str(caught.value)
