"""Pictures whose owners are known: what a network was trained on, what users send, what an attacker has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.seeds import generator
from leakscope.data.splits import SplitIndex, spread

#: How folders of a split set are called, and what they are to an audit.
_TRAIN = ("train", "training")
_OTHERS = ("test", "testing", "val", "valid", "validation", "dev")

#: In the order in which they are joined.
_PARTS = ("private", "heldout", "public")


def split_folders(folder: Path) -> dict[str, Path]:
    """`train`, `val` and `test` below a folder, each with its classes inside; empty when it is not so divided."""
    if not folder.is_dir():
        return {}
    inside = {item.name.lower(): item for item in folder.iterdir() if item.is_dir() and not item.name.startswith(".")}
    if not set(inside) <= {*_TRAIN, *_OTHERS} or len(inside) < 2:
        return {}
    divided = all(any(item.is_dir() for item in own.iterdir()) for own in inside.values())
    return inside if divided else {}


def owners(folders: Mapping[str, Path]) -> dict[str, Path]:
    """Who owns which: `train` is private; `test`, or `val`, is what users send; `val` beside `test` is public."""
    found: dict[str, Path] = {}
    for name in _TRAIN:
        if name in folders:
            found["private"] = folders[name]
    others = [folders[name] for name in _OTHERS if name in folders]
    if others:
        found["heldout"] = others[0]
    if len(others) > 1:
        found["public"] = others[1]
    return found


def joined(parts: Mapping[str, ImageSet]) -> tuple[ImageSet, SplitIndex]:
    """One set with the positions of each part. Held-out pictures are halved where nobody said what is public.

    Without private pictures the split has none: what the network was trained on is not known.
    """
    if "heldout" not in parts:
        raise UsageError("the pictures that users send are missing; give them with --heldout")
    classes = next(parts[name] for name in _PARTS if name in parts).classes
    shapes = {name: part.shape for name, part in parts.items()}
    if len(set(shapes.values())) > 1:
        sizes = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in shapes.items())
        raise UsageError(f"the parts have pictures of different sizes ({sizes}); give one size with --resize")
    aligned = {name: _aligned(part, classes, name) for name, part in parts.items()}
    order = [name for name in _PARTS if name in aligned]
    whole = ImageSet(
        torch.cat([aligned[name].images for name in order]),
        torch.cat([aligned[name].labels for name in order]),
        classes,
    )
    sizes_of = [len(aligned[name]) if name in aligned else 0 for name in _PARTS]
    private, heldout, public = torch.arange(len(whole)).split(sizes_of)
    if "public" not in parts:
        mixed = spread(heldout, whole.labels, generator(0, "parts"))
        heldout, public = mixed.tensor_split([len(mixed) // 2])
    return whole, SplitIndex(private, heldout, public)


def _aligned(part: ImageSet, classes: tuple[str, ...], name: str) -> ImageSet:
    """The part with its classes numbered as the others number them."""
    shown = {part.classes[label] for label in part.labels.unique().tolist()}
    strange = sorted(shown - set(classes))
    if strange:
        raise UsageError(
            f"{name} shows the class {strange[0]!r}, which the others do not have ({', '.join(classes[:5])} …); "
            "give every part the same class folders"
        )
    numbers = torch.tensor([classes.index(own) if own in classes else -1 for own in part.classes])
    return replace(part, labels=numbers[part.labels], classes=classes)
