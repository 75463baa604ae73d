"""Attacks: what was handed over becomes reconstructions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.core.model import SplitModel
from leakscope.core.results import Diagnostics
from leakscope.core.spec import Kind
from leakscope.core.threat import Access, View


@dataclass(frozen=True)
class Prepared:
    """What an attack learnt before seeing a victim: plain tensors, so that it can be cached."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)


@dataclass(frozen=True)
class Observed:
    """What the target gave away about the victims; a field is None when it was not granted.

    For an instance attack, row i belongs to victim i. For a class attack, `classes` are the classes
    to rebuild, and nothing else is set.
    """

    features: Tensor | None = None  # released, at the cut
    classes: Tensor | None = None
    repeats: Tensor | None = None  # k×N×…: further releases of the same victims, beside `features`

    def __len__(self) -> int:
        present = self.features if self.features is not None else self.classes
        return 0 if present is None else len(present)


@dataclass(frozen=True)
class Reconstruction:
    """Pictures in [0, 1], one per victim (`per_class` for each class), and what the attack says about itself."""

    images: Tensor
    diagnostics: Diagnostics = field(default_factory=Diagnostics)


class Attack(ABC):
    """A frozen dataclass whose fields are the attack's hyper-parameters."""

    kind_name: ClassVar[str]
    revision: ClassVar[int]
    #: What it must be handed.
    needs: ClassVar[frozenset[Access]]
    #: Rebuilds classes rather than observed inputs.
    rebuilds_classes: ClassVar[bool] = False
    #: Differentiates through the encoder; compared with black-box attacks by the audit.
    white_box: ClassVar[bool] = False
    #: Takes the expectation over a random release, or trains on fresh draws of it.
    averages_noise: ClassVar[bool] = False

    #: Its positive control: a bare pixel path, or the easiest network with the structure that it needs.
    control: ClassVar[str] = "identity"

    def unsuited(self, split: SplitModel, image_shape: tuple[int, int, int]) -> str | None:
        """Why this attack cannot run on a network, with the remedy; asked before anything is trained."""
        return None

    def least_queries(self, victims: int) -> int:
        """How many pictures it must be allowed to send to start at all."""
        return 0

    def prepare(self, view: View, rng: torch.Generator) -> Prepared:
        """Everything that does not depend on the victims: train a decoder, a GAN, a surrogate."""
        return Prepared()

    @abstractmethod
    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        """One picture for each row of `seen`."""


ATTACKS: Kind[Attack] = Kind("attack", "leakscope.attacks")
