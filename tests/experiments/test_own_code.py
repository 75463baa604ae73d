"""Attacks and defences of the user's: from a file, as a class, as an instance; never out of a description."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import leakscope
from leakscope.cli import app, run
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.defense import Defense, Stack, build_defense
from leakscope.core.errors import UsageError
from leakscope.core.spec import describe, label
from leakscope.core.threat import Access, View
from leakscope.defenses.gaussian import Gaussian
from leakscope.models.resolve import resolve

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "cut": "features.2", "victims": 4, "metrics": ["leak"], "training": {"epochs": 0},
    "splits": {"private": 60, "heldout": 40, "public": 60},
}  # fmt: skip
CODE = '''
from dataclasses import dataclass
from typing import ClassVar
from leakscope.core.attack import Attack, Prepared, Reconstruction
from leakscope.core.defense import Defense
from leakscope.core.threat import Access

@dataclass(frozen=True)
class Mean(Attack):
    """The mean public picture."""
    needs: ClassVar = frozenset({Access.FEATURES})
    scale: float = 1.0
    def prepare(self, view, rng):
        return Prepared({"mean": view.public.images.mean(0)})
    def reconstruct(self, view, prepared, seen, rng):
        mean = self.scale * prepared.tensors["mean"]
        return Reconstruction(mean.expand(len(seen), *mean.shape))

@dataclass(frozen=True)
class Zero(Defense):
    """Sends a multiple."""
    factor: float = 0.0
    def release(self, z, rng, *, training=False):
        return z * self.factor

class Plain(Attack):
    pass

class Stranger:
    pass
'''


BROKEN = """
from dataclasses import dataclass
from math import nan
from typing import ClassVar
import torch
from leakscope.core.attack import Attack, Prepared, Reconstruction
from leakscope.core.threat import Access

@dataclass(frozen=True)
class Broken(Attack):
    needs: ClassVar = frozenset({Access.FEATURES})
    def prepare(self, view, rng):
        return Prepared()
    def reconstruct(self, view, prepared, seen, rng):
        return Reconstruction(torch.ones(len(seen), *view.image_shape)MADE)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my.py"
    path.write_text(CODE)
    return path


def test_a_class_of_a_file_is_a_method(file: Path) -> None:
    built = ATTACKS.build(f"{file}:Mean:scale=0.5")
    assert label(built) == f"{file}:Mean:scale=0.5"
    assert ATTACKS.build(label(built)) == built
    assert ATTACKS.build(describe(built)) == built
    del sys.modules[type(built).__module__]  # as in another process
    assert describe(ATTACKS.build(describe(built))) == describe(built)
    before = describe(built)["code"]
    file.write_text(CODE + "\n# changed\n")
    assert describe(ATTACKS.build(label(built)))["code"] != before
    stacked = build_defense(f"{file}:Zero:factor=2+gaussian")
    assert isinstance(stacked, Stack)
    assert [part.kind_name for part in stacked.parts] == [f"{file}:Zero", "gaussian"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Nobody", r"its classes: (?!.*Attack)"),
        ("Stranger", "is no attack"),
        ("Plain", "frozen dataclass"),
        ("Mean:size=3", "size"),
    ],
)
def test_what_is_no_attack_is_one_line(name: str, words: str, file: Path) -> None:
    with pytest.raises(UsageError, match=words):
        ATTACKS.build(f"{file}:{name}")
    with pytest.raises(UsageError, match="cannot read"):
        ATTACKS.build("nowhere.py:Mean")
    with pytest.raises(UsageError, match=r"write .*my\.py:CLASS"):
        ATTACKS.build(str(file))


@pytest.mark.parametrize(
    ("made", "words"), [("[:1]", "shape 1 × 1 × 8 × 8, and 4 × 1 × 8 × 8"), (" * nan", "not finite")]
)
def test_an_attack_that_returns_nonsense_is_one_line(
    made: str, words: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(BROKEN.replace("MADE", made))
    options = [
        "--data",
        "digits",
        "--cut",
        "features.2",
        "--victims",
        "4",
        "--epochs",
        "0",
        "--attack",
        f"{file}:Broken",
    ]
    assert run(app, ["attack", *options, "--set", "metrics=[leak]", "--store", str(tmp_path), "--quiet"]) == 3
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_the_command_line_takes_them(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    splits = json.dumps(SMALL["splits"])
    words = [
        "--data", "digits", "--cut", "features.2", "--victims", "4", "--epochs", "0", "--attack", f"{file}:Mean",
        "--defense", f"{file}:Zero", "--set", f"splits={splits}", "--set", "metrics=[leak]",
        "--store", str(tmp_path / "store"), "--json",
    ]  # fmt: skip
    assert run(app, ["attack", *words]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["result"]["attack"]["label"] == f"{file}:Mean"
    assert entry["target"]["defense"]["label"] == f"{file}:Zero"


def test_classes_and_instances_go_through_the_interface() -> None:
    @dataclass(frozen=True)
    class Doubled(Defense):
        factor: float = 2.0

        def release(self, z: torch.Tensor, rng: Any, *, training: bool = False) -> torch.Tensor:
            return self.factor * z

    stack = Stack((Doubled(3.0), Gaussian(sigma=0.1)))
    found = leakscope.attack("convnet", "digits", defenses=[Doubled, Doubled(4.0), stack], attacks=["ridge"],
                             **{**SMALL, "threat": {"knows_defense": False}})  # fmt: skip
    labels = [entry.target.defense.label for entry in found]
    assert labels == ["Doubled", "Doubled:factor=4.0", "Doubled:factor=3.0+gaussian"]
    with pytest.raises(UsageError, match="is no attack"):
        leakscope.attack("convnet", "digits", attacks=[Doubled], **SMALL)


def test_so_do_attacks() -> None:
    @dataclass(frozen=True)
    class Flat(Attack):
        needs: ClassVar[frozenset[Access]] = frozenset({Access.FEATURES})
        level: float = 0.5

        def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
            return Reconstruction(torch.full((len(seen), *view.image_shape), self.level))

    found = leakscope.attack("convnet", "digits", attacks=[Flat, Flat(0.25)], **SMALL)
    assert [entry.result.attack.label for entry in found] == ["Flat", "Flat:level=0.25"]
    assert found[0].result.leak != found[1].result.leak


def test_the_how_to_pages_run() -> None:
    for page in ("own-attack.md", "own-defence.md", "own-training-loop.md"):
        (code, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / page).read_text(), re.DOTALL)
        exec(compile(code, page, "exec", dont_inherit=True), {"__name__": "__main__"})


def test_a_description_cannot_name_a_file(file: Path, tmp_path: Path) -> None:
    from leakscope.experiments.config import AuditConfig
    from leakscope.experiments.export import export_target
    from leakscope.experiments.plan import make_plan
    from leakscope.experiments.stages import train_target
    from leakscope.experiments.workplace import Workplace
    from leakscope.store import Store

    place = Workplace(Store(tmp_path / "store"), torch.device("cpu"))
    small = {key: value for key, value in SMALL.items() if key != "cut"}
    small |= {"cuts": ["features.2"], "data": "digits", "attacks": ["ridge"]}

    def made(defense: str) -> str:
        plan = make_plan(AuditConfig.checked({**small, "defenses": [defense]}))
        return train_target(plan.scene, plan.targets[0], place).key

    with pytest.raises(UsageError, match="does not carry"):
        export_target(place.store, made(f"{file}:Zero"), tmp_path / "no")
    folder = export_target(place.store, made("gaussian"), tmp_path / "zoo")
    for number, defense in enumerate(({"kind": f"{file}:Zero"}, {"kind": "stack", "parts": [f"{file}:Zero"]})):
        changed = shutil.copytree(folder, tmp_path / f"changed{number}")
        tree = json.loads((changed / "config.json").read_text())
        (changed / "config.json").write_text(json.dumps({**tree, "defense": defense}))
        with pytest.raises(UsageError, match="refused"):
            resolve(f"path:{changed}")
