"""Targets that `leakscope export` wrote: a folder with weights, a description, and what its files must hash to.

    config.json         architecture, cut, defence, pictures it reads, accuracy, SHA-256 of the weights
    model.safetensors   weights
    README.md           the model card
    example.py          one picture through both halves
    network.py          only for a network of somebody else's: the file whose function builds it
    SHA256SUMS          of all above

A checksum tells damage and careless tampering; who may replace all files can replace it too.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from leakscope.core.errors import UsageError
from leakscope.core.files import require_file
from leakscope.core.model import SplitModel
from leakscope.core.own_code import names_code
from leakscope.core.spec import Plain, digest
from leakscope.models.architecture import MODELS, Architecture
from leakscope.models.weights import read_state, sound

DESCRIPTION, WEIGHTS, CARD, SUMS = "config.json", "model.safetensors", "README.md", "SHA256SUMS"
EXAMPLE, CODE = "example.py", "network.py"
SCHEMA = "leakscope/target/1"
#: Bytes of a description; ten thousand class names fit.
LONGEST = 1 << 22
#: Architectures that a description must not name: they exist elsewhere only, or lead on to other folders.
NOT_PORTABLE = frozenset({"given", "path", "hf"})


def sha256(path: Path) -> str:
    try:
        with require_file(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}); copy the whole folder again") from None


@dataclass(frozen=True)
class Exported:
    """A folder that was looked at: its weights are those it was written with."""

    folder: Path
    architecture: Architecture
    cut: str
    defense: Plain
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    seed: int
    pictures: str  # digest of those it was made with
    digest: str  # of the weights, and of the code where it brings some

    @classmethod
    def read(cls, folder: Path, *, trust_code: bool = False) -> Exported:
        """The target in `folder`, or in the current snapshot of a folder of the Hugging Face cache.

        Code that the folder brings is refused unless it is trusted; this runs nothing, `build` does.
        """
        folder = _snapshot(folder)
        tree = _description(folder / DESCRIPTION)
        try:
            found = sha256(folder / WEIGHTS)
            if found != tree["files"][WEIGHTS]:
                raise UsageError(f"{folder / WEIGHTS} was changed after its export (SHA-256 differs); get it again")
            plain = tree["architecture"]
            if names_code(tree["defense"]) or names_code(plain):
                raise UsageError(f"{folder / DESCRIPTION} names code outside the folder, which is refused")
            if plain["kind"] in NOT_PORTABLE:
                raise UsageError(f"{folder / DESCRIPTION} names the architecture {plain['kind']!r}, which is refused")
            architecture = _own_code(folder, tree, trust_code) if plain["kind"] == "file" else MODELS.build(plain)
            if plain["revision"] != architecture.revision:
                raise UsageError(
                    f"{folder} holds revision {plain['revision']} of {plain['kind']}, this version builds revision "
                    f"{architecture.revision}; use the Leakscope that wrote it ({tree['versions']['leakscope']})"
                )
            channels, height, width = tree["input"]["shape"]
            if not all(type(item) is int and item > 0 for item in (channels, height, width)):
                raise ValueError("its shape is no three lengths")
            if not isinstance(tree["cut"], str) or not isinstance(tree["defense"], dict):
                raise TypeError("its cut or its defence is of another type")
            return cls(
                folder, architecture, tree["cut"], tree["defense"], (channels, height, width),
                tuple(map(str, tree["input"]["classes"])), int(tree["seed"]), str(tree["pictures"]),
                found[:24] if CODE not in tree["files"] else digest([found, tree["files"][CODE]]),
            )  # fmt: skip
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise UsageError(f"{folder / DESCRIPTION} is not whole ({reason}); export the target again") from None


def _own_code(folder: Path, tree: dict[str, Any], trusted: bool) -> Architecture:
    """The architecture that the folder's own Python file builds; other files of that name are refused by their hash."""
    path = folder / CODE
    if not trusted:
        raise UsageError(
            f"{folder} brings Python code ({CODE}), which is refused unless you allow it: read it, then give "
            f"--model path:{folder},trust_code=true, or trust_code=True to leakscope.load"
        )
    if sha256(path) != tree["files"][CODE]:
        raise UsageError(f"{path} was changed after its export (SHA-256 differs); get it again")
    return MODELS.build({"kind": "file", "path": str(path), "factory": tree["architecture"]["factory"]})


def _snapshot(folder: Path) -> Path:
    reference = folder / "refs" / "main"
    if not (folder / DESCRIPTION).exists() and reference.is_file():
        commit = reference.read_bytes()[:100].decode("ascii", "replace").strip()
        if not re.fullmatch(r"[0-9a-f]{6,64}", commit):
            raise UsageError(f"{reference} names no snapshot; fetch the repository again")
        return folder / "snapshots" / commit
    return folder


def _description(path: Path) -> dict[str, Any]:
    try:
        with require_file(path).open("rb") as file:
            text = file.read(LONGEST + 1)
        if len(text) > LONGEST:
            raise UsageError(f"{path} is larger than {LONGEST} bytes, which no description is; get it again")
        tree = json.loads(text)
    except PermissionError:
        raise UsageError(f"you may not read {path}; ask the owner of {path.parent}") from None
    except OSError:
        raise UsageError(f"no {path.name} in {path.parent}; give a folder that `leakscope export` wrote") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON ({' '.join(str(error).split())[:120]}); get it again") from None
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        raise UsageError(f"{path} does not describe a target ({SCHEMA}); give a folder that `leakscope export` wrote")
    return tree


class ExportedArchitecture(Architecture):
    """A network that comes with its weights, cut and defence."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Where its files are."""

    trust_code: bool

    @cached_property
    def exported(self) -> Exported:
        return Exported.read(self.folder, trust_code=self.trust_code)

    @property
    def foreign(self) -> bool:
        return self.exported.architecture.foreign

    @property
    def default_cuts(self) -> tuple[str, ...]:
        return (self.exported.cut,)

    @property
    def defense(self) -> Plain | None:
        return self.exported.defense

    def normalization(self) -> nn.Module | None:
        return self.exported.architecture.normalization()

    @property
    def trained(self) -> bool:
        return True

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        own = self.exported
        classes = classes or len(own.classes)
        if (image_shape, classes) != (own.shape, len(own.classes)):
            reads, given = ("×".join(map(str, shape)) for shape in (own.shape, image_shape))
            raise UsageError(
                f"{own.folder} reads {reads} pictures of {len(own.classes)} classes, the data have {given} and "
                f"{classes}; give the data it was trained for"
            )
        return own.architecture.build(image_shape, classes)

    def fill(self, split: SplitModel) -> None:
        own, state = split.state_dict(), read_state(self.exported.folder / WEIGHTS)
        if own.keys() != state.keys() or any(own[name].shape != state[name].shape for name in own):
            raise UsageError(
                f"{self.exported.folder} was built with its own defence and cut; leave --defense and --cut out"
            )
        split.load_state_dict(sound(state, own, self.exported.folder / WEIGHTS))
