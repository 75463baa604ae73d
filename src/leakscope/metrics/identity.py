"""Whether a face network takes the reconstruction for the same person."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakscope.core.errors import UsageError
from leakscope.core.metric import METRICS, Metric, Reference
from leakscope.metrics.embedder import SIDE, FaceEmbedder
from leakscope.metrics.pictures import require_pictures


@METRICS.register("identity")
@dataclass(frozen=True)
class IdentityDistance(Metric):
    """‖e(x̂) − e(x)‖₂ in the embedding e of a face network read from `weights/<file>`.

    The default is dlib's 128-number embedding (King, 2017) of 64×64 crops, in which pictures of one
    person lie below a distance of about 0.6. Grey pictures are repeated to RGB, larger squares are reduced;
    other sizes are refused, since a face that is aligned otherwise is another face. It runs on the CPU.

    The file is a `torch.export` program, and reading one may run code that it carries. Only a file
    with the SHA-256 given here is read; to use an embedding of your own, give both its name and its
    digest.
    """

    file: str = "face-embedder-dlib128.pt2"
    sha256: str = "13c5884a96b3353b741ae00938fa71ea8b2e137b6426f79ecf6e232b0ba99df9"

    more_leak: ClassVar[Literal["high", "low"]] = "low"

    def __post_init__(self) -> None:
        FaceEmbedder(self.file, self.sha256)  # says what is wrong with either

    def unavailable(self, root: Path | None) -> str | None:
        problem = FaceEmbedder(self.file, self.sha256).unavailable(root)
        return None if problem is None else problem.replace("as sha256=…", f"as {self.kind_name}:sha256=…")

    @torch.no_grad()
    def __call__(self, guess: Tensor, truth: Tensor, reference: Reference) -> Tensor:
        rebuilt, original = self._embedded(guess, truth, reference)
        distance: Tensor = torch.linalg.vector_norm(rebuilt - original, dim=1)
        return distance

    def _embedded(self, guess: Tensor, truth: Tensor, reference: Reference) -> tuple[Tensor, Tensor]:
        require_pictures(guess, truth)
        height, width = truth.shape[-2:]
        if height != width or height < SIDE:
            raise UsageError(
                f"{self.kind_name} needs {SIDE}×{SIDE} face pictures, not {height}×{width}; "
                f"use --resize {SIDE} or leave the metric out"
            )
        problem = self.unavailable(reference.root)
        if problem is not None:
            raise UsageError(problem)
        embed = FaceEmbedder(self.file, self.sha256).load(reference.root)
        return embed(guess), embed(truth)


@METRICS.register("reidentified")
@dataclass(frozen=True)
class Reidentified(IdentityDistance):
    """1 where the reconstruction's nearest original among all victims is its own, in a face network's embedding.

        [ ‖e(x̂ᵢ) − e(xᵢ)‖ < minⱼ≠ᵢ ‖e(x̂ᵢ) − e(xⱼ)‖ ]

    Its mean is the share of victims whom somebody who holds the N photographs picks out again; one in N without
    looking, since one guess for all is nearest to one of them. Network and file are those of `identity`.
    """

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    @torch.no_grad()
    def __call__(self, guess: Tensor, truth: Tensor, reference: Reference) -> Tensor:
        rebuilt, originals = self._embedded(guess, truth, reference)
        distances = torch.cdist(rebuilt, originals, compute_mode="donot_use_mm_for_euclid_dist")
        own = distances.diagonal()
        others = distances.clone().fill_diagonal_(torch.inf).amin(1)
        return (own < others).float()
