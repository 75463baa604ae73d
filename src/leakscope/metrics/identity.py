"""Whether a face network takes the reconstruction for the same person."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from leakscope.core.errors import UsageError
from leakscope.core.metric import METRICS, Metric, Reference
from leakscope.metrics.pictures import require_pictures
from leakscope.nn.alexnet import to_rgb
from leakscope.nn.weights import missing, sha256, weights_path

#: Pictures embedded at once. Even, because the program takes two pictures or more: 2N pictures then
#: never leave one over.
AT_ONCE = 64
SIDE = 64


@lru_cache(maxsize=1)
def _program(path: Path, digest: str) -> nn.Module:
    return torch.export.load(path).module()


@METRICS.register("identity")
@dataclass(frozen=True)
class IdentityDistance(Metric):
    """‖e(x̂) − e(x)‖₂ in the embedding e of a face network read from `weights/<file>`.

    The default is dlib's 128-number embedding (King, 2017) of 64×64 crops, in which pictures of one
    person lie below a distance of about 0.6. Grey pictures are repeated to RGB; other sizes are
    refused, since a face that is aligned otherwise is another face. It runs on the CPU.

    The file is a `torch.export` program, and reading one may run code that it carries. Only a file
    with the SHA-256 given here is read; to use an embedding of your own, give both its name and its
    digest.
    """

    file: str = "face-embedder-dlib128.pt2"
    sha256: str = "13c5884a96b3353b741ae00938fa71ea8b2e137b6426f79ecf6e232b0ba99df9"

    more_leak: ClassVar[Literal["high", "low"]] = "low"

    def __post_init__(self) -> None:
        if Path(self.file).name != self.file:
            raise ValueError(f"file {self.file!r} is a path; name a file in <data root>/weights")
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError("sha256 must be 64 lower-case hexadecimal digits; `sha256sum FILE` prints them")

    def unavailable(self, root: Path | None) -> str | None:
        problem = missing(root, self.file)
        if problem is None and sha256(weights_path(root, self.file)) != self.sha256:
            return (
                f"weights/{self.file} is not the file this metric knows and reading it may run code; "
                "if you trust it, give its digest as identity:sha256=…"
            )
        return problem

    @torch.no_grad()
    def __call__(self, guess: Tensor, truth: Tensor, reference: Reference) -> Tensor:
        require_pictures(guess, truth)
        height, width = truth.shape[-2:]
        if (height, width) != (SIDE, SIDE):
            raise UsageError(
                f"identity needs {SIDE}×{SIDE} face pictures, not {height}×{width}; "
                f"use --resize {SIDE} or leave the metric out"
            )
        problem = self.unavailable(reference.root)
        if problem is not None:
            raise UsageError(problem)
        embed = _program(weights_path(reference.root, self.file), self.sha256)
        both = to_rgb(torch.cat((guess, truth))).cpu()
        embedded = torch.cat([embed(part.contiguous()) for part in both.split(AT_ONCE)])
        distance: Tensor = torch.linalg.vector_norm(embedded[: len(guess)] - embedded[len(guess) :], dim=1)
        return distance.to(truth.device)
