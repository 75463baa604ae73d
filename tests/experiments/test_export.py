"""A target leaves the store as a folder and comes back with the same accuracy, to the last bit; or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from leakscope.core.errors import UsageError
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.export import export_target
from leakscope.experiments.plan import Plan, make_plan
from leakscope.experiments.stages import Target, train_target
from leakscope.experiments.workplace import Workplace
from leakscope.models.resolve import resolve
from leakscope.store import Store

BASE: dict[str, Any] = {
    "data": "digits", "splits": {"private": 120, "heldout": 60, "public": 60}, "victims": 4, "cuts": ["features.2"],
    "attacks": ["ridge"],
    "model": {"kind": "convnet", "widths": [4, 4]}, "metrics": ["leak"],
}  # fmt: skip
DEFENSES: list[Any] = ["none", [{"kind": "bottleneck", "channels": 1}, {"kind": "gaussian", "sigma": 0.5}], "unicon"]


def _realised(place: Workplace, **settings: Any) -> tuple[Plan, Target]:
    plan = make_plan(AuditConfig.checked({**BASE, **settings}))
    return plan, train_target(plan.scene, plan.targets[0], place)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(Store(tmp_path_factory.mktemp("store")), torch.device("cpu"))


@pytest.fixture(scope="module")
def zoo(place: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The second defence, exported."""
    _, target = _realised(place, defenses=DEFENSES[1:2], training={"epochs": 1})
    return export_target(place.store, target.key, tmp_path_factory.mktemp("zoo") / "digits")


@pytest.mark.parametrize("number", range(3))
def test_the_same_target_comes_back(number: int, place: Workplace, tmp_path: Path) -> None:
    plan, target = _realised(place, defenses=DEFENSES[number : number + 1], training={"epochs": 1})
    folder = export_target(place.store, target.key[:10], tmp_path / "deep" / "target")
    again, loaded = _realised(place, model=f"path:{folder}")
    assert again.config.training.epochs == 0
    assert loaded.record.accuracy == target.record.accuracy
    assert loaded.record.defense == target.record.defense
    assert loaded.record.cut == target.record.cut
    pictures = plan.scene.splits.heldout.images
    rngs = [torch.Generator().manual_seed(1) for _ in range(2)]
    with torch.no_grad():
        assert torch.equal(target.split(pictures, rngs[0]), loaded.split(pictures, rngs[1]))
    # Where the folder lies does not matter to what it is.
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    assert _realised(place, model={"kind": "path", "path": str(moved)})[1].key == loaded.key


def test_an_untrained_target_comes_back(place: Workplace, tmp_path: Path) -> None:
    _, target = _realised(place, training={"epochs": 0}, seeds=[3])
    folder = export_target(place.store, target.key, tmp_path / "target")
    _, loaded = _realised(place, model=f"path:{folder}")
    assert loaded.record.accuracy == target.record.accuracy


def test_the_folder_is_a_model_repository(zoo: Path) -> None:
    assert sorted(path.name for path in zoo.iterdir()) == [
        "README.md",
        "SHA256SUMS",
        "config.json",
        "example.py",
        "model.safetensors",
    ]
    for line in (zoo / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((zoo / name).read_bytes()).hexdigest() == digest
    text = (zoo / "README.md").read_text()
    front = yaml.safe_load(text.split("---")[1])
    assert front["library_name"] == "leakscope"
    config = json.loads((zoo / "config.json").read_text())
    assert front["model-index"][0]["results"][0]["metrics"] == [{"type": "accuracy", "value": config["accuracy"]}]
    assert "It has not been attacked yet." in text
    hub = pytest.importorskip("huggingface_hub")
    assert hub.ModelCard(text).data.eval_results[0].metric_value == config["accuracy"]


def test_a_snapshot_of_the_hub_loads(zoo: Path, tmp_path: Path, place: Workplace) -> None:
    cache = tmp_path / "models--someone--digits"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0123abcd")
    (cache / "blobs").mkdir()
    (cache / "snapshots" / "0123abcd").mkdir(parents=True)
    for file in zoo.iterdir():  # the cache holds links to blobs
        blob = cache / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, blob)
        (cache / "snapshots" / "0123abcd" / file.name).symlink_to(blob)
    assert _realised(place, model=f"path:{cache}")[1].key == _realised(place, model=f"path:{zoo}")[1].key


def _changed(zoo: Path, tmp_path: Path, **changes: Any) -> str:
    folder = shutil.copytree(zoo, tmp_path / "changed")
    tree = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps(tree))
    return f"path:{folder}"


def test_tampered_weights_are_refused(zoo: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(zoo, tmp_path / "changed")
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match="SHA-256 differs"):
        resolve(f"path:{folder}")


def test_a_description_cannot_run_code(zoo: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef build(): pass\n")
    with pytest.raises(UsageError, match="refused"):
        resolve(_changed(zoo, tmp_path, architecture={"kind": "file", "revision": 1, "path": str(evil)}))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": {"kind": "convnet", "revision": 99}}, "revision 99"),
        ({"schema": "leakscope/target/9"}, "does not describe a target"),
        ({"files": {}}, "not whole"),
        ({"input": {"shape": [1, 8], "classes": []}}, "not whole"),
        ({"architecture": {"kind": "nonsense", "revision": 1}}, "nonsense"),
    ],
)
def test_what_does_not_fit_is_one_line(changes: dict[str, Any], words: str, zoo: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        resolve(_changed(zoo, tmp_path, **changes))


def test_other_pictures_and_other_defences_are_refused(zoo: Path, place: Workplace) -> None:
    with pytest.raises(UsageError, match="1×8×8"):
        _realised(place, model=f"path:{zoo}", resize=12)
    with pytest.raises(UsageError, match="leave --defense"):
        _realised(place, model=f"path:{zoo}", defenses=["none"])
    with pytest.raises(UsageError, match="leakscope export"):
        resolve(f"path:{zoo.parent}")


def test_what_cannot_be_exported(place: Workplace, tmp_path: Path, zoo: Path) -> None:
    _, target = _realised(place, training={"epochs": 1})
    with pytest.raises(UsageError, match="not empty"):
        export_target(place.store, target.key, zoo)
    _, loaded = _realised(place, model=f"path:{zoo}")
    with pytest.raises(UsageError, match="no architecture of Leakscope's"):
        export_target(place.store, loaded.key, tmp_path / "twice")
    with pytest.raises(UsageError, match="starts with"):
        export_target(place.store, "0123456789", tmp_path / "none")
    assert not list(tmp_path.iterdir()), "nothing half written is left"


def test_the_hub_is_one_line_when_it_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def unreachable(*args: Any, **kwargs: Any) -> str:
        raise OSError("no route to host\nand more")

    monkeypatch.setattr(hub, "snapshot_download", unreachable)
    with pytest.raises(UsageError, match=r"cannot get hf:someone/none \(no route to host\); check") as raised:
        resolve("hf:someone/none")
    assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match="owner/name"):
        resolve("hf:nobody")


def test_the_hub_gives_the_same_target(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub, "snapshot_download", lambda *args, **kwargs: str(zoo))
    found, local = resolve("hf:someone/digits"), resolve(f"path:{zoo}")
    assert found.default_cuts == local.default_cuts
    assert found.weights == local.weights  # type: ignore[attr-defined]
