"""Priors: what pictures look like, learnt from public ones; class attacks search inside it.

The life of a prior:

    prior = PRIORS.build("dcgan:width=24")                       # a specification; nothing is trained
    prior.require(public.shape)                                  # refuses other sizes before any work
    state = prior.fit(public, rng, device=…, checkpoint=folder)  # plain tensors, kept under PriorPlan.key
    generator = prior.generator(state, device)                   # the network, in eval mode, frozen

    z = generator.sample(60, rng)                                # N×latent, drawn from the prior
    images = generator.decode(z)                                 # N×C×H×W in [0, 1], differentiable in z
    loss = generator.implausibility(images)                      # N, low where the prior believes a picture
    w = generator.to_style(z)                                    # N×style: the W space
    images = generator.from_style(w)                             # also N×layers×style, one w for each layer

Every generator answers all of these. Without a mapping network W is Z; without a critic
`implausibility` is the Gaussian one of the latent, or zero. So an attack asks nothing about the
prior it is given, except `prior.has_critic` or `prior.has_mapping` when its idea depends on one.
Every answer about a picture depends on that picture alone, never on the rest of its batch.

An attack declares its prior as a field, `prior: PriorField = …`; the pipeline fits it (first the one
it `begins_with`; with the target's scores when it `reads_scores`) and keeps the state.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator
from torch import Tensor, nn

from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.spec import Kind, describe, digest

#: Class scores (logits) of pictures, as the target gives them.
Scores = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class PriorState:
    """What a prior learnt: plain tensors and JSON-able notes, so that it can be kept.

    `notes["shape"]` is the C×H×W of its pictures. Others, where they apply: `curve` (a dict of loss
    curves), `seconds`.
    """

    tensors: dict[str, Tensor]
    notes: dict[str, Any]

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.notes["shape"]
        return channels, height, width


class Generator(nn.Module, ABC):
    """A trained prior as a network: latents in, pictures out."""

    #: C×H×W of the pictures.
    shape: tuple[int, int, int]
    #: Numbers in a latent.
    latent: int
    #: Slope of the leaky rectifier that ends the mapping network; 1: it ends in none, or there is none.
    slope: float = 1.0

    def sample(self, count: int, rng: torch.Generator) -> Tensor:
        """Latents as the prior has them: standard normal, count×latent, on the generator's device."""
        return torch.randn(count, self.latent, generator=rng, device=rng.device).to(self.device)

    @abstractmethod
    def decode(self, z: Tensor) -> Tensor:
        """Pictures of latents."""

    def implausibility(self, images: Tensor) -> Tensor:
        """One number per picture, low where the prior believes it: the critic's loss as the generator sees it."""
        return images.new_zeros(len(images))

    @property
    def style(self) -> int:
        """Numbers in a style w."""
        return self.latent

    @property
    def layers(self) -> int:
        """How many styles `from_style` takes when each layer has its own."""
        return 1

    def to_style(self, z: Tensor, truncation: float = 1.0) -> Tensor:
        """Styles of latents, N×style, drawn towards the mean style: w̄ + ψ(w − w̄)."""
        return truncation * z

    def from_style(self, w: Tensor) -> Tensor:
        """Pictures of styles: N×style, the same in every layer, or N×layers×style."""
        return self.decode(w[:, 0] if w.ndim == 3 else w)

    @property
    def blocks(self) -> int:
        """Hidden maps between styles and picture that can be changed one by one; 0: none."""
        return 0

    def hidden(self, w: Tensor, block: int, changes: Mapping[int, Tensor]) -> Tensor:
        """The hidden map of a block, N×c×h×w, when `changes` are added to those of the blocks before it."""
        raise IndexError(f"this generator has {self.blocks} hidden maps, not {block + 1}")

    def from_hidden(self, w: Tensor, changes: Mapping[int, Tensor]) -> Tensor:
        """Pictures of styles, N×layers×style, with `changes` added to the hidden maps of some blocks."""
        return self.from_style(w)

    @torch.no_grad()
    def pictures(self, count: int, rng: torch.Generator, batch: int = 128) -> Tensor:
        """Random pictures, count×C×H×W on the CPU: what FID and nearest-neighbour checks read."""
        z = self.sample(count, rng)
        return torch.cat([self.decode(part).float().cpu() for part in z.split(batch)])

    def sheet(self, rng: torch.Generator, rows: int = 8, columns: int = 8) -> Tensor:
        """Random pictures in one C×(rows·H)×(columns·W) picture, to look at."""
        channels, height, width = self.shape
        tiles = self.pictures(rows * columns, rng).view(rows, columns, channels, height, width)
        return tiles.permute(2, 0, 3, 1, 4).reshape(channels, rows * height, columns * width)

    def forward(self, z: Tensor) -> Tensor:
        return self.decode(z)

    @property
    def device(self) -> torch.device:
        return next(itertools.chain(self.parameters(), self.buffers())).device


@dataclass(frozen=True)
class Material:
    """What a prior is fitted with.

    `checkpoint` is a folder for work under way: killed and called again with a generator in the same
    state, `fit` gives the numbers of a run that was never killed.
    """

    public: ImageSet
    rng: torch.Generator
    device: torch.device
    checkpoint: Path | None = None
    scores: Scores | None = None  # the target's, for a prior that `reads_scores`
    start: PriorState | None = None  # of the prior it `begins_with`

    def seed(self) -> int:
        """Draw a seed for child generators."""
        return int(torch.randint(2**31, (1,), generator=self.rng, device=self.rng.device))


class Prior(ABC):
    """A frozen dataclass whose fields are the prior's hyper-parameters."""

    kind_name: ClassVar[str]
    revision: ClassVar[int]
    #: `implausibility` is a trained critic's opinion.
    has_critic: ClassVar[bool] = False
    #: Styles differ from latents.
    has_mapping: ClassVar[bool] = False
    #: Learns from the target's scores too: `fit` needs `scores`, and each target needs its own fit.
    reads_scores: ClassVar[bool] = False

    @property
    def begins_with(self) -> Prior | None:
        """The prior whose state `fit` takes as `start`; fitted once and cached for all priors that share it."""
        return None

    def require(self, shape: tuple[int, int, int]) -> None:
        """Refuse pictures this prior cannot make: one line, with the remedy. The default makes any."""
        return

    def fit(
        self,
        public: ImageSet,
        rng: torch.Generator,
        *,
        device: torch.device,
        checkpoint: Path | None = None,
        scores: Scores | None = None,
        start: PriorState | None = None,
    ) -> PriorState:
        """Learn from public pictures alone."""
        return self.learn(Material(public, rng, device, checkpoint, scores, start))

    @abstractmethod
    def learn(self, given: Material) -> PriorState:
        """`fit`, as each prior does it."""

    @abstractmethod
    def generator(self, state: PriorState, device: torch.device) -> Generator:
        """The network of a state, in eval mode, its weights frozen."""

    def require_fit(self, state: PriorState, shape: tuple[int, int, int]) -> None:
        """Refuse a state whose pictures are not those of the target."""
        if state.shape != shape:
            raise UsageError(
                f"prior {self.kind_name} makes {written(state.shape)} pictures and the target reads {written(shape)}; "
                "fit it on public pictures of the target's size and channels"
            )


PRIORS: Kind[Prior] = Kind("prior", "leakscope.priors")

#: The type of a field that holds a prior: a configuration may write `prior: dcgan` or a mapping with a `kind`.
PriorField = Annotated[Prior, BeforeValidator(PRIORS.build)]


@dataclass(frozen=True)
class PriorPlan:
    """One fitted prior: what decides its tensors, and so the key they are kept under."""

    prior: Prior
    public: str  # digest of the public pictures
    seed: int
    target: str | None = None  # key of the target whose scores it reads; None when it reads none
    start: str | None = None  # key of the prior it begins with

    @property
    def key(self) -> str:
        return digest(describe(self))


def written(shape: tuple[int, ...]) -> str:
    """3×32×32."""
    return "×".join(str(length) for length in shape)
