"""Who owns which pictures: the private, held-out and public parts of one set."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from leakscope.core.data import ImageSet, Splits
from leakscope.core.errors import UsageError
from leakscope.core.seeds import generator


@dataclass(frozen=True)
class SplitIndex:
    """Positions in one image set, three parts; with `by_identity` each side has classes of its own."""

    private: Tensor
    heldout: Tensor
    public: Tensor
    by_identity: bool = False

    def splits(self, data: ImageSet) -> Splits:
        """The pictures at these positions, refused when two parts share one.

        With `by_identity`, labels are renumbered from 0 on each side, so that a target has one output
        for each private identity and none for a public one.
        """
        parts = [data.take(index) for index in (self.private, self.heldout, self.public)]
        if self.by_identity:
            known = parts[0].labels.unique()
            parts = [_renumbered(parts[0], known), _renumbered(parts[1], known), _renumbered(parts[2], None)]
        splits = Splits(*parts)
        splits.require_disjoint_images()
        if self.by_identity:
            splits.require_disjoint_identities()
        return splits


@dataclass(frozen=True)
class SplitPlan:
    """How large each part is: a count of images, or a share of the set when below 1.

    Each part has every class in proportion, and so has each beginning of a part: its first hundred
    images are a fair sample. With `by_identity` the shares are of classes: public classes are not
    private ones, while `heldout` shows other pictures of private identities. `least` makes all classes
    with so many images private, and no other. `limit` uses that many images of the set. Exact copies of
    an image are dropped first; when copies carry different labels, all of them are, since no label can
    be trusted.
    """

    private: float | int = 0.5  # what the target trains on
    heldout: float | int = 0.1  # what users send; victims are drawn from it
    public: float | int = 0.4  # what the attacker has
    by_identity: bool = False  # public classes are not private ones, as class attacks demand
    limit: int | None = None  # use so many images of the set
    least: int | None = None  # with by_identity: classes with so many images are private, others public

    def __post_init__(self) -> None:
        sizes = {"private": self.private, "heldout": self.heldout, "public": self.public}
        for name, size in sizes.items():
            if size <= 0 or (size >= 1 and not float(size).is_integer()):
                raise ValueError(f"{name} must be a share between 0 and 1 or a whole number of images, not {size}")
        shares = sum(size for size in sizes.values() if size < 1)
        if shares > 1 + 1e-9:
            raise ValueError(f"the shares of private, heldout and public add up to {shares:g}; make it at most 1")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1 image, not {self.limit}")
        if self.least is not None and (self.least < 1 or not self.by_identity):
            raise ValueError("least counts images of a class, 1 or more, and needs by_identity=true")

    def draw(self, data: ImageSet, seed: int) -> Splits:
        """The three parts of `data`; the same seed draws the same parts."""
        return self.index(data, seed).splits(data)

    def index(self, data: ImageSet, seed: int) -> SplitIndex:
        """The positions of the three parts in `data`."""
        rng = generator(seed, "splits")
        usable = distinct(data)
        if self.limit is not None:
            usable = spread(usable, data.labels, rng)[: self.limit]
        return self._by_class(data, usable, rng) if self.by_identity else self._by_image(data, usable, rng)

    def _counts(self, total: int) -> list[int]:
        return [round(size * total) if size < 1 else int(size) for size in (self.private, self.heldout, self.public)]

    def _by_image(self, data: ImageSet, usable: Tensor, rng: torch.Generator) -> SplitIndex:
        counts = self._counts(len(usable))
        excess = sum(counts) - len(usable)
        if 0 < excess <= 2 and self.public < 1:  # three shares that were all rounded up
            counts[2] -= excess
        _require_room(sum(counts), len(usable), "")
        parts = spread(usable, data.labels, rng)[: sum(counts)].split(counts)
        _require_classes(data, usable, parts[0], parts[1], parts[2])
        return SplitIndex(*parts)

    def _by_class(self, data: ImageSet, usable: Tensor, rng: torch.Generator) -> SplitIndex:
        classes = data.labels[usable].unique()
        if len(classes) < 3:
            raise UsageError(
                f"identity-disjoint splits need three classes or more, not {len(classes)}; use a set with more people"
            )
        private, heldout, public = self._counts(len(usable))
        if self.least is None:
            theirs = min(max(round(len(classes) * public / (private + heldout + public)), 1), len(classes) - 2)
            others_classes = classes[torch.randperm(len(classes), generator=rng)[:theirs]]
        else:
            sizes = torch.bincount(data.labels[usable])[classes]
            others_classes = classes[sizes < self.least]
            theirs = len(others_classes)
            if len(classes) - theirs < 2 or theirs == 0:
                raise UsageError(
                    f"{len(classes) - theirs} of {len(classes)} classes have {self.least} images or more; "
                    "choose `least` so that two are private and one is public"
                )
        is_public = torch.isin(data.labels[usable], others_classes)
        ours, others = usable[~is_public], usable[is_public]
        # Classes differ in size: a share is what there is at most, a count is exact.
        excess = private + heldout - len(ours)
        if excess > 0 and self.private < 1 and self.heldout < 1:
            private = round(len(ours) * private / (private + heldout))
            heldout = len(ours) - private
        if self.public < 1:
            public = min(public, len(others))
        _require_room(private + heldout, len(ours), f" of the {len(classes) - theirs} private identities")
        _require_room(public, len(others), f" of the {theirs} public identities")
        first, second = spread(ours, data.labels, rng)[: private + heldout].split([private, heldout])
        third = spread(others, data.labels, rng)[:public]
        _require_classes(data, ours, first, second, third)
        return SplitIndex(first, second, third, by_identity=True)


def distinct(data: ImageSet) -> Tensor:
    """Positions of the images that stay when exact copies are dropped."""
    _, first, which = np.unique(np.array(data.fingerprints()), return_index=True, return_inverse=True)
    labels = data.labels.numpy()
    agrees = np.ones(len(first), dtype=bool)
    agrees[which[labels != labels[first][which]]] = False
    return torch.from_numpy(np.sort(first[agrees]))


def spread(index: Tensor, labels: Tensor, rng: torch.Generator) -> Tensor:
    """`index` in a random order in which every beginning has the classes in proportion.

    The r-th image of a class of n, in random order, is placed at r/n: between two places every class
    has its share, to within one image, and the first image of each class comes first of all.
    """
    index = index[torch.randperm(len(index), generator=rng)]
    owner, sizes = labels[index].unique(return_inverse=True, return_counts=True)[1:]
    grouped = torch.argsort(owner, stable=True)
    starts = sizes.cumsum(0) - sizes
    rank = torch.empty_like(owner)
    rank[grouped] = torch.arange(len(index)) - starts[owner[grouped]]
    place = rank.double() / sizes[owner].double()
    return index[torch.argsort(place, stable=True)]  # equal places keep their random order


def _require_room(wanted: int, there: int, whose: str) -> None:
    if wanted > there:
        raise UsageError(
            f"the splits ask for {wanted} images{whose} and there are {there} distinct ones; ask for fewer"
        )


def _require_classes(data: ImageSet, pool: Tensor, private: Tensor, heldout: Tensor, public: Tensor) -> None:
    """Every class is trained on, and no part is too small to be used."""
    missing = data.labels[pool][~torch.isin(data.labels[pool], data.labels[private])]
    if len(missing):
        raise UsageError(
            f"the private split has {len(private)} images and none of class {data.classes[int(missing[0])]!r}; "
            "make it larger, or leave out small classes"
        )
    if len(heldout) < 2 or len(public) < 2:
        raise UsageError(
            f"the splits have {len(private)} private, {len(heldout)} heldout and {len(public)} public images; "
            "each needs two or more: use more images"
        )


def _renumbered(part: ImageSet, known: Tensor | None) -> ImageSet:
    """`part` with its classes numbered from 0, in the order of `known` (or of those it has)."""
    known = part.labels.unique() if known is None else known
    if not bool(torch.isin(part.labels, known).all()):
        raise UsageError("the heldout split shows identities that private does not; draw the splits again")
    names = tuple(part.classes[label] for label in known.tolist())
    return replace(part, labels=torch.searchsorted(known, part.labels), classes=names)
