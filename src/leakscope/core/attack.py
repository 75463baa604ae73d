"""Attacks: what was handed over becomes reconstructions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.model import SplitModel
from leakscope.core.results import Diagnostics
from leakscope.core.spec import Kind
from leakscope.core.threat import Access, ThreatModel, View, grant


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
    #: What it rebuilds, by the name of a goal: pictures that were sent, or identities that were learnt.
    goal: ClassVar[str] = "pictures"
    #: Fits a linear map: a stronger attack that loses to it is badly tuned.
    linear: ClassVar[bool] = False
    #: Differentiates through the encoder; compared with black-box attacks by the audit.
    white_box: ClassVar[bool] = False
    #: Takes the expectation over a random release, or trains on fresh draws of it.
    averages_noise: ClassVar[bool] = False

    #: Trains on what the defence releases, with all that the threat grants: an attack made against any defence.
    adapts: ClassVar[bool] = False
    #: Suites that it joins beside those that Leakscope lists; for attacks of other packages.
    suites: ClassVar[tuple[str, ...]] = ()

    #: Whether what it learnt is kept in the store; false where learning it again costs less than keeping it.
    keep_prepared: ClassVar[bool] = True
    #: Its positive control: a bare pixel path, or the easiest network with the structure that it needs.
    control: ClassVar[str] = "identity"

    def unsuited(self, split: SplitModel, image_shape: tuple[int, int, int]) -> str | None:
        """Why this attack cannot run on a network, with the remedy; asked before anything is trained."""
        return None

    def unneeded(self, threat: ThreatModel) -> str | None:
        """Why a suite leaves this attack out although it could run: others do better with what is granted."""
        return None

    def redundant(self, split: SplitModel, image_shape: tuple[int, int, int]) -> str | None:
        """Why a suite leaves this attack out on a network although it could run: others do better there."""
        return None

    def longer(self) -> Attack | None:
        """The same attack with a larger budget; None: it has none to enlarge."""
        steps = getattr(self, "steps", None)
        if not isinstance(steps, int) or steps < 1:
            return None
        enlarged: Attack = replace(self, steps=2 * steps)  # type: ignore[type-var]
        return enlarged

    def least_queries(self, victims: int) -> int:
        """How many pictures it must be allowed to send to start at all."""
        return 0

    def prepare(self, view: View, rng: torch.Generator) -> Prepared:
        """Everything that does not depend on the victims: train a decoder, a GAN, a surrogate."""
        return Prepared()

    @abstractmethod
    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        """One picture for each row of `seen`."""

    def __call__(
        self,
        target: SplitModel,
        features: Tensor | None = None,
        *,
        public: ImageSet | Tensor,
        classes: Tensor | None = None,
        threat: ThreatModel | None = None,
        seed: int = 0,
    ) -> Reconstruction:
        """Attack a network without any configuration: `Ridge()(SplitModel(net, "layer2"), features, public=pictures)`.

        `features` are what the target released for its victims (`target.release(x)`); attacks on classes take the
        numbers of `classes` instead. `public` are the attacker's own pictures.
        """
        if isinstance(public, Tensor):
            public = ImageSet(public.float(), torch.zeros(len(public), dtype=torch.int64), ("unknown",))
        device = next((p.device for p in target.parameters()), torch.device("cpu"))
        threat = threat or ThreatModel()
        threat.require(self.needs, self.kind_name)
        with torch.no_grad():
            outputs = target(public.images[:2].to(device)).shape[1]
        rngs = {n: seeds.generator(seed, "attack", n, device=device) for n in ("oracle", "prepare", "reconstruct")}
        view = grant(target, threat, public, rngs["oracle"], classes=outputs, device=device)
        prepared = self.prepare(view, rngs["prepare"])
        return self.reconstruct(view, prepared, Observed(features, classes), rngs["reconstruct"])


ATTACKS: Kind[Attack] = Kind("attack", "leakscope.attacks", Attack)
