"""Pictures and labels, and the three splits that keep an audit honest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakscope.core.errors import UsageError
from leakscope.core.spec import Kind


@dataclass(frozen=True)
class ImageSet:
    """Pictures as float32 NCHW in [0, 1], with one class (for faces: one identity) each.

    Points that are not pictures (the `gaussians` set) are stored as N×D×1×1 with `pixels=False`.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    pixels: bool = True

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != torch.float32:
            raise ValueError(f"images must be float32 NCHW, not {self.images.dtype} {tuple(self.images.shape)}")
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            raise ValueError("labels must be int64, one for each image")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def take(self, index: Tensor) -> ImageSet:
        return replace(self, images=self.images[index], labels=self.labels[index])

    def fingerprints(self) -> list[str]:
        """One content hash per image, at 8-bit depth: what a re-encoding would preserve."""
        pixels = self.images if not self.pixels else (self.images * 255).round().to(torch.uint8)
        rows = pixels.contiguous().flatten(1).numpy()
        return [hashlib.blake2b(row.tobytes(), digest_size=12).hexdigest() for row in rows]

    def digest(self) -> str:
        """The identity of the set: its pixels and labels in order."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        whole = hashlib.sha256(self.images.contiguous().numpy().tobytes())
        whole.update(self.labels.contiguous().numpy().tobytes())
        return whole.hexdigest()[:24]


#: The classes of pictures that have none.
UNLABELLED = ("picture",)


def without_labels(data: ImageSet) -> ImageSet:
    """The pictures, all of one class."""
    return replace(data, labels=torch.zeros_like(data.labels), classes=UNLABELLED)


@runtime_checkable
class Dataset(Protocol):
    """A named source of pictures; a frozen dataclass registered in `DATASETS`."""

    def load(self, root: Path | None) -> ImageSet:
        """All images, in a fixed order. `root` is where files live (`--data-root`)."""
        ...


DATASETS: Kind[Dataset] = Kind("dataset", "leakscope.data")


def joined(first: ImageSet, second: ImageSet) -> ImageSet:
    """Both, one after the other; they must name the same classes."""
    if first.classes != second.classes:
        raise ValueError("sets with different classes cannot be joined: their labels mean different things")
    return replace(
        first, images=torch.cat([first.images, second.images]), labels=torch.cat([first.labels, second.labels])
    )


@dataclass(frozen=True)
class Splits:
    """Who owns which pictures: the target trains on `private`, users send `heldout`, the attacker has `public`."""

    private: ImageSet
    heldout: ImageSet
    public: ImageSet

    def attackers(self, whose: Literal["own", "private", "both"]) -> ImageSet:
        """The pictures an attacker has: its own, those the target was trained on, or both."""
        if whose == "both":
            return joined(self.public, self.private)
        return self.public if whose == "own" else self.private

    def require_disjoint_images(self) -> None:
        """Refuse splits that share a picture: an attack that already has the answer is no evidence."""
        seen: dict[str, str] = {}
        for name in ("private", "heldout", "public"):
            part: ImageSet = getattr(self, name)
            marks = set(part.fingerprints())
            for mark in marks:
                if mark in seen:
                    raise UsageError(
                        f"splits {seen[mark]!r} and {name!r} share an image; "
                        "remove the duplicates or draw the splits from one set with --seed"
                    )
            seen.update(dict.fromkeys(marks, name))

    def require_disjoint_identities(self) -> None:
        """Refuse a public set that shows an attacked identity (class attacks)."""
        names = [
            {part.classes[label] for label in part.labels.unique().tolist()} for part in (self.private, self.public)
        ]
        shared = sorted(names[0] & names[1])
        if shared:
            raise UsageError(
                f"private and public share the identities {', '.join(shared[:5])}; "
                "a class attack needs an identity-disjoint public set"
            )

    def digest(self) -> str:
        parts = (self.private, self.heldout, self.public)
        return hashlib.sha256("".join(part.digest() for part in parts).encode()).hexdigest()[:24]
