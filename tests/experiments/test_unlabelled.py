"""Pictures without labels: leak against the mean picture, use told by a function or left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import leakscope
from leakscope.cli import app, run
from leakscope.core.errors import UsageError
from leakscope.data.embedded import Digits
from leakscope.experiments.stages import read_rebuilt
from leakscope.store import Store

SMALL: dict[str, Any] = {
    "attacks": ["ridge"], "victims": 8, "metrics": ["leak"], "splits": {"private": 60, "heldout": 60, "public": 300},
}  # fmt: skip


def _pictures() -> Tensor:
    return Digits().load(None).images[:600]


def _colourist() -> nn.Module:
    """From pictures to pictures: no scores anywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.ReLU(), nn.Upsample(8), nn.Conv2d(2, 1, 3, padding=1)).eval()


def test_leak_is_measured_against_the_mean_picture(tmp_path: Path) -> None:
    found = leakscope.attack(_colourist(), _pictures(), cut="1", store=tmp_path, **SMALL)[0]
    plan = leakscope.api.plan_for(_colourist(), _pictures(), "1", dict(SMALL))
    victims, public = plan.scene.first_victims, plan.scene.public
    rebuilt = read_rebuilt(Store(tmp_path), found.result.reconstruction)
    assert rebuilt is not None
    guess = rebuilt.images
    rest = (victims.images - guess).square().sum() / (victims.images - public.images.mean(0)).square().sum()
    assert found.result.leak == pytest.approx(float(1 - rest), abs=1e-4)
    assert found.result.goal == "unlabelled"
    assert found.target.accuracy is None
    assert found.target.utility == "not measured"


def test_a_function_takes_the_place_of_accuracy(tmp_path: Path) -> None:
    def drawn_again(outputs: Tensor, pictures: Tensor) -> float:
        assert outputs.shape == (60, 64)
        assert pictures.shape == (60, 1, 8, 8)
        return 0.25

    audit = leakscope.audit(_colourist(), _pictures(), cut="1", utility=drawn_again, out=tmp_path / "out", **SMALL)
    record = audit.report.targets[0].record
    assert (record.accuracy, record.utility) == (0.25, "drawn_again")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "drawn_again" in page
    assert "average picture" in audit.report.sentence
    assert "mean picture" in page


def test_another_function_is_asked_anew(tmp_path: Path) -> None:
    for value in (0.25, 0.75):
        function = {0.25: lambda o, p: 0.25, 0.75: lambda o, p: 0.75}[value]
        found = leakscope.attack(_colourist(), _pictures(), cut="1", store=tmp_path, utility=function, **SMALL)
        assert found[0].target.accuracy == value


def test_a_page_without_use_says_so(tmp_path: Path) -> None:
    leakscope.audit(_colourist(), _pictures(), cut="1", out=tmp_path, **SMALL)
    assert "not measured" in (tmp_path / "report.html").read_text()


def test_labelled_pictures_may_be_asked_without_them() -> None:
    """Digits of one class each: against the mean picture more is left to rebuild than against the class mean."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 10))
    free = leakscope.attack(net, "digits", cut="1", goal="unlabelled", **SMALL)[0].result
    with_labels = leakscope.attack(net, "digits", cut="1", **SMALL)[0].result
    assert free.leak > with_labels.leak


def test_a_flat_folder_of_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    for number, picture in enumerate(_pictures()[:200]):
        pixels = (picture[0].numpy() * 255).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def build(channels):\n"
        "    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(2))\n"
        "def sharp(outputs, pictures):\n    return 0.5\n"
    )
    words = ["attack", "--model", f"{tmp_path}/net.py:build", "--data", f"folder:{tmp_path}/photos", "--cut", "1"]
    words += ["--attack", "ridge", "--victims", "4", "--store", str(tmp_path / "store"), "--epochs", "0"]
    assert run(app, words) == 2
    assert "--set goal=unlabelled" in capsys.readouterr().err
    free = ["--set", "goal=unlabelled"]
    assert run(app, [*words, *free, "--dry-run"]) == 0
    assert "net.py" in capsys.readouterr().out
    assert run(app, [*words, *free, "--set", f"utility={tmp_path}/net.py:sharp"]) == 0
    assert "0.500" in capsys.readouterr().out
    assert run(app, [*words, *free, "--set", f"utility={tmp_path}/net.py:blunt"]) == 2
    assert "no function 'blunt'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"training": {"epochs": 1}}, "train it yourself"),
        ({"utility": lambda o, p: 2.0}, "between 0"),
        ({"utility": lambda o, p: o / "x"}, "failed"),
        ({"goal": "pictures"}, "have no labels"),
        ({"goal": "nothing"}, "unknown goal"),
        ({"goal": "identities"}, "different goals"),
    ],
)
def test_what_cannot_be_is_one_line(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        leakscope.attack(_colourist(), _pictures(), cut="1", **{**SMALL, **settings})


def test_networks_of_ours_need_classes() -> None:
    with pytest.raises(UsageError, match="built for a number of classes"):
        leakscope.attack("convnet", _pictures(), training={"epochs": 0}, **SMALL)


def test_what_returns_no_tensor_is_one_line() -> None:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Flatten()

        def forward(self, x: Tensor) -> list[dict[str, Tensor]]:
            return [{"boxes": row} for row in self.first(x)]

    with pytest.raises(UsageError, match="wrap it so"):
        leakscope.attack(Detector(), _pictures(), cut="first", **SMALL)
