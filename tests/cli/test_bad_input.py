"""Everything a user can get wrong: one line with a remedy, exit code 2, store untouched."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file

from leakscope.cli import app, run
from leakscope.core import seeds
from leakscope.data.split_index import write_index
from leakscope.data.splits import SplitPlan
from leakscope.data.toyfaces import ToyFaces
from leakscope.priors._mapping import Mapping
from leakscope.priors._stylegan2 import Synthesis2


class _Bomb:
    """Would leave a mark if unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, (f"open({str(self.mark)!r}, 'w')",))


def _folder(root: Path, classes: dict[str, list[tuple[int, int]]]) -> str:
    for name, sizes in classes.items():
        (root / name).mkdir(parents=True)
        for number, size in enumerate(sizes):
            pixels = np.random.default_rng(number).integers(0, 255, (*size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return f"folder:{root}"


def _npz(path: Path, images: np.ndarray) -> str:
    labels = np.arange(len(images)) % 2
    np.savez(path, train_images=images, train_labels=labels, test_images=images[:0], test_labels=labels[:0])
    return f"npz:{path}"


def _weights(path: Path) -> str:
    save_file({"0.weight": torch.zeros(3, 3)}, path)
    return str(path)


def _cases(tmp: Path) -> dict[str, tuple[list[str], str]]:
    truncated = tmp / "truncated.safetensors"
    truncated.write_bytes(Path(_weights(tmp / "whole.safetensors")).read_bytes()[:20])
    bomb = tmp / "bomb.pt"
    bomb.write_bytes(pickle.dumps(_Bomb(tmp / "exploded")))
    index = tmp / "index.json"
    typo = tmp / "typo.yaml"
    typo.write_text("data: digits\ntrainning: {epochs: 1}\n")
    deep = tmp / "deep.yaml"
    deep.write_text("data: digits\ntraining: {epoch: 1}\n")
    index.write_text("{}")
    noise = np.random.default_rng(0).random((20, 8, 8)).astype(np.float32)
    noise[3, 2, 2] = np.nan
    (tmp / "file").write_text("")
    return {
        "attack": (["--attack", "rigde"], "ridge"),
        "defence": (["--defense", "gausian"], "gaussian"),
        "cut": (["--cut", "features.99"], "features."),
        "dataset": (["--data", "digts"], "digits"),
        "model": (["--model", "convnt"], "convnet"),
        "torchvision": (["--model", "torchvision:resnet19"], "resnet18"),
        "shape": (["--weights", _weights(tmp / "other.safetensors")], "other.safetensors"),
        "truncated": (["--weights", str(truncated)], "truncated.safetensors"),
        "pickle": (["--weights", str(bomb)], "safetensors"),
        "no weights": (["--weights", str(tmp / "absent.safetensors")], "absent"),
        "empty folder": (["--data", _folder(tmp / "empty", {})], "empty"),
        "one class": (["--data", _folder(tmp / "one", {"a": [(8, 8)] * 4})], "class"),
        "mixed sizes": (["--data", _folder(tmp / "mixed", {"a": [(8, 8)] * 3, "b": [(9, 8)] * 3})], "resize"),
        "nan": (["--data", _npz(tmp / "nan.npz", noise)], "NaN"),
        "index": (["--set", f"split_index={index}"], "index"),
        "yaml key": ([str(typo)], "training"),
        "nested yaml key": ([str(deep)], "epochs"),
        "output": (["--out", str(tmp / "file" / "out")], "--out"),
        "gate": (["--no-isolate", "--gate", "leak>=0.5"], "leak<="),
        "metric of gate": (["--no-isolate", "--gate", "leek<=0.5"], "leak"),
        "device": (["--device", "gpu7"], "cpu"),
        "seed of set": (["--set", "victims"], "name=value"),
        "scale": (["--scale", "tiny"], "scale"),
        "option": (["--epoch", "3"], "--epochs"),
        "idle defence": (["--epochs", "0", "--defense", "mixcon"], "training only"),
        "threat": (["--set", "threat.access=[labels]", "--attack", "ridge"], "grants: labels"),
    }


NAMES = [
    "attack", "defence", "cut", "dataset", "model", "torchvision", "shape", "truncated", "pickle", "no weights",
    "empty folder", "one class", "mixed sizes", "nan", "index", "yaml key", "nested yaml key", "output", "gate",
    "metric of gate", "device", "seed of set", "scale", "option", "idle defence", "threat",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_one_line_with_a_remedy(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = _cases(tmp_path)
    assert set(cases) == set(NAMES)
    arguments, remedy = cases[name]
    store = tmp_path / "store"
    base = [] if arguments[0].endswith(".yaml") or "--data" in arguments else ["--data", "digits"]
    out = [] if "--out" in arguments else ["--out", str(tmp_path / "out")]
    code = run(app, ["audit", *arguments, *base, *out, "--store", str(store), "--quiet"])
    said = capsys.readouterr().err.strip()
    assert code == 2, said
    assert said.count("\n") == 0, said
    assert remedy in said
    assert not list(store.glob("entries/*/*"))
    assert not (tmp_path / "exploded").exists()


def _generator(path: Path, **more: torch.Tensor) -> str:
    """A StyleGAN2 of 16 pixels, three channels."""
    with seeds.ambient(0, "generator"):
        parts = {"mapping": Mapping(6, 5, 8), "synthesis": Synthesis2({4: 4, 8: 3, 16: 2}, 3, 5)}
    tensors = {f"{part}.{k}": v.contiguous() for part, net in parts.items() for k, v in net.state_dict().items()}
    save_file({**tensors, **more}, path)
    return str(path)


def _class_cases(tmp: Path) -> dict[str, tuple[dict[str, object], str]]:
    """What may be wrong with an audit of classes, changed in one that is right."""
    shared = tmp / "shared.json"
    data = ToyFaces(**FACES).load(None)
    write_index(SplitPlan(0.5, 0.1, 0.4).index(data, 0), data, shared)
    file, strange = (str(tmp / name) for name in ("g.safetensors", "strange.safetensors"))
    _generator(Path(file))
    _generator(Path(strange), **{"mapping.embed.weight": torch.zeros(2)})
    ppa = {"kind": "ppa", "candidates": 4, "starts": 2, "images": 1, "steps": 1}
    return {
        "size of a prior": ({"attacks": [{"kind": "gmi", "prior": {"kind": "dcgan", "size": 64}}]}, "leave size out"),
        "channels of a prior": ({"attacks": [{**ppa, "prior": {"kind": "stylegan2", "file": file}}]}, "set grey"),
        "unknown tensors": ({"attacks": [{**ppa, "prior": {"kind": "stylegan2", "file": strange}}]}, "mapping.embed"),
        "shared identity": ({"split_index": str(shared)}, "identit"),
        "one class": ({"splits": {"private": 0.5, "heldout": 0.1, "public": 0.4, "by_identity": True, "least": 9}},
                      "two are private"),
        "too few queries": ({"attacks": ["brepmi:prior=linear"], "threat": {"queries": 3}}, "raise it"),
        "untrained first layers": ({"defenses": ["tl-dmi:features.0"]}, "set pretraining"),
    }  # fmt: skip


CLASS_NAMES = [
    "size of a prior", "channels of a prior", "unknown tensors", "shared identity", "one class", "too few queries",
    "untrained first layers",
]  # fmt: skip
FACES: dict[str, Any] = {"identities": 20, "images": 8, "size": 16, "grey": True}


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_bad_audits_of_classes_are_refused_before_training(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = _class_cases(tmp_path)
    assert set(cases) == set(CLASS_NAMES)
    change, remedy = cases[name]
    right = {
        "data": {"kind": "toyfaces", **FACES}, "model": "convnet", "victims": 4,
        "splits": {"private": 0.4, "heldout": 0.1, "public": 0.5, "by_identity": True},
        "attacks": ["gmi:prior=linear"],
    }  # fmt: skip
    config, store = tmp_path / "audit.yaml", tmp_path / "store"
    for settings, wanted in ((right, 0), ({**right, **change}, 2)):
        config.write_text(yaml.safe_dump(settings))
        given = ["--dry-run"] if wanted == 0 else []
        code = run(
            app, ["audit", str(config), "--out", str(tmp_path / "out"), "--store", str(store), "--quiet", *given]
        )
        assert code == wanted
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0, said
    assert remedy in said
    assert not list(store.glob("entries/*/*"))


def test_all_problems_come_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["audit", "--attack", "rigde", "--defense", "gausian", "--model", "convnt"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("ridge", "gaussian", "convnet"))
