"""What was defended can be used: both halves of an exported target, and weights of rebuilt networks."""

from __future__ import annotations

import hashlib
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import leakscope
from leakscope.cli import app, run
from leakscope.core.errors import UsageError
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.export import export_target
from leakscope.experiments.plan import make_plan
from leakscope.experiments.stages import Target, train_target
from leakscope.experiments.workplace import Workplace
from leakscope.models.resolve import resolve
from leakscope.models.weights import save_weights
from leakscope.store import Store

BASE: dict[str, Any] = {
    "data": "digits", "splits": {"private": 120, "heldout": 60, "public": 60}, "victims": 4, "cuts": ["features.2"],
    "attacks": ["ridge"], "model": {"kind": "convnet", "widths": [4, 4]}, "metrics": ["leak"],
}  # fmt: skip
NARROW = [["bottleneck:channels=1", "gaussian:sigma=0.5"]]
OWN = """
from torch import nn
def build(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(Store(tmp_path_factory.mktemp("store")), torch.device("cpu"))


def _target(place: Workplace, **settings: Any) -> Target:
    plan = make_plan(AuditConfig.checked({**BASE, **settings}))
    return train_target(plan.scene, plan.targets[0], place)


def _rng() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("defense", [NARROW[0], "mid", "none"])
def test_the_halves_of_a_loaded_target_are_those_that_were_trained(
    defense: Any, place: Workplace, tmp_path: Path
) -> None:
    target = _target(place, defenses=[defense], training={"epochs": 1})
    loaded = leakscope.load(export_target(place.store, target.key, tmp_path / "zoo"), device="cpu")
    x = torch.rand(5, 1, 8, 8)
    with torch.no_grad():
        sent, scores = target.split.release(x, _rng()), target.split(x, _rng())
    assert torch.equal(loaded.client(x, _rng()), sent)
    if defense != "mid":  # whose server draws noise of its own
        assert torch.allclose(loaded.server(sent), scores, atol=1e-6)
    assert loaded.server(sent).shape == (5, 10)
    assert loaded.classes == target.record.classes


def test_a_random_release_is_drawn_anew_and_bad_pictures_are_refused(place: Workplace, tmp_path: Path) -> None:
    target = _target(place, defenses=NARROW, training={"epochs": 1})
    loaded = leakscope.load(export_target(place.store, target.key, tmp_path / "zoo"), device="cpu")
    x = torch.rand(2, 1, 8, 8)
    assert not torch.equal(loaded.client(x), loaded.client(x))
    with pytest.raises(UsageError, match="N×1×8×8"):
        loaded.client(torch.rand(2, 3, 8, 8))
    with pytest.raises(UsageError, match=r"\[0, 1\]"):
        loaded.client(x * 255)
    client, server = loaded.halves()
    assert server(client(x)).shape == (2, 10)
    # Neither half holds the other's weights.
    count = sum(p.numel() for p in target.split.parameters())
    assert sum(p.numel() for half in (client, server) for p in half.parameters()) == count


def test_the_example_runs_and_the_card_is_true(
    place: Workplace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = _target(place, defenses=NARROW, training={"epochs": 1})
    folder = export_target(place.store, target.key, tmp_path / "zoo")
    runpy.run_path(str(folder / "example.py"))
    assert "sent: (1, 1, 8, 8) answer: " in capsys.readouterr().out
    text = (folder / "README.md").read_text()
    assert "leakscope.load('FOLDER')" in text
    assert "1 epochs on the private part" in text
    assert "Nothing in this folder is executed" in text
    assert "rebuilt no more" not in text, "it was not attacked"


def test_weights_of_a_rebuilt_network_load_again(place: Workplace, tmp_path: Path) -> None:
    target = _target(place, defenses=NARROW, training={"epochs": 1})
    file = tmp_path / "saved.safetensors"
    save_weights(target.split.model, file)
    again = _target(place, defenses=NARROW, weights=str(file))
    x = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(again.split(x, _rng()), target.split(x, _rng()))
    folder = export_target(place.store, again.key, tmp_path / "zoo", weights=file)
    assert torch.equal(leakscope.load(folder, device="cpu").client(x, _rng()), target.split.release(x, _rng()))
    assert "what they learned from is not known" in (folder / "README.md").read_text()
    with pytest.raises(UsageError, match="does not fit"):  # without the defence that rebuilt it
        _target(place, defenses=["none"], weights=str(file))


def test_given_weights_are_trained_on_with_a_defence(place: Workplace, tmp_path: Path) -> None:
    first = _target(place, training={"epochs": 1})
    save_weights(first.split.model, tmp_path / "w.safetensors")
    further = _target(
        place, weights=str(tmp_path / "w.safetensors"), defenses=["nopeek"], training={"epochs": 1}, seeds=[5]
    )
    begun = _target(place, weights=str(tmp_path / "w.safetensors"), seeds=[5])
    state, before = further.split.state_dict(), begun.split.state_dict()
    assert all(torch.equal(before[name], first.split.state_dict()[name]) for name in before)
    assert any(not torch.equal(state[name], before[name]) for name in before)


def test_the_command_line_trains_given_weights_on_and_exports_an_own_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`train --weights` with a defence, `export` of what it printed, and `load`: nothing else is needed."""
    (tmp_path / "mine.py").write_text(OWN)
    begun = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    save_weights(begun, tmp_path / "own.safetensors")
    store = ["--store", str(tmp_path / "store"), "--quiet"]
    words = ["--model", f"{tmp_path}/mine.py:build", "--weights", str(tmp_path / "own.safetensors"), "--data", "digits"]
    words += ["--cut", "2", "--defense", "nopeek+gaussian:sigma=0.1", "--epochs", "1", "--json"]
    assert run(app, ["train", *words, *store]) == 0
    (trained,) = json.loads(capsys.readouterr().out)
    assert run(app, ["export", trained["key"], "--out", str(tmp_path / "zoo"), "--allow-code", *store]) == 0
    loaded = leakscope.load(tmp_path / "zoo", trust_code=True, device="cpu")
    x = torch.rand(2, 1, 8, 8)
    sent = loaded.client(x)
    assert not torch.equal(sent, loaded.client(x)), "the noise is part of what was exported"
    assert loaded.server(sent).shape == (2, 10)


def test_an_own_file_is_exported_with_its_source_and_runs_only_when_allowed(place: Workplace, tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(OWN)
    target = _target(
        place, model=f"{source}:build", cuts=["2"], defenses=["gaussian:sigma=0.1"], training={"epochs": 1}
    )
    folder = export_target(place.store, target.key, tmp_path / "zoo")
    assert (folder / "network.py").read_text() == OWN
    assert str(tmp_path) not in (folder / "config.json").read_text() + (folder / "README.md").read_text()
    assert hashlib.sha256(OWN.encode()).hexdigest() in (folder / "README.md").read_text()
    with pytest.raises(UsageError, match="trust_code"):
        leakscope.load(folder)
    with pytest.raises(UsageError, match="trust_code"):
        resolve(f"path:{folder}")
    source.unlink()  # the copy is enough
    x = torch.rand(2, 1, 8, 8)
    loaded = leakscope.load(folder, trust_code=True, device="cpu")
    with torch.no_grad():
        assert torch.equal(loaded.client(x, _rng()), target.split.release(x, _rng()))
    audited = _target(place, model=f"path:{folder},trust_code=true", cuts=[])
    assert audited.record.accuracy == target.record.accuracy
    assert not audited.record.undefended
    (folder / "network.py").write_text(OWN + "\nprint('changed')\n")
    with pytest.raises(UsageError, match="changed after its export"):
        leakscope.load(folder, trust_code=True)
