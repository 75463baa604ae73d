"""A face embedding as an evaluator: it tells people apart without any training on the private pictures."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.errors import UsageError
from leakscope.nn.alexnet import to_rgb
from leakscope.nn.weights import missing, sha256, weights_path

#: Side in pixels of what the program reads.
SIDE = 64
#: Pictures embedded at once; on one core, larger batches are not faster.
AT_ONCE = 64

#: Pictures N×C×H×W in [0, 1] to one row of features each.
Embed = Callable[[Tensor], Tensor]


@lru_cache(maxsize=1)
def _program(path: Path, digest: str) -> nn.Module:
    return torch.export.load(path).module()


@dataclass(frozen=True)
class FaceEmbedder:
    """dlib's face embedding (King, 2017), x ↦ e(x) ∈ R¹²⁸, read from `weights/<file>`.

    Two pictures of one person lie below a distance of about 0.6. The file is a `torch.export` program, and reading
    one may run code that it carries: only a file with the SHA-256 given here is read. To use an embedding of your
    own for 64×64 RGB pictures, give both its name and its digest. It runs on the CPU.
    """

    file: str = "face-embedder-dlib128.pt2"
    sha256: str = "13c5884a96b3353b741ae00938fa71ea8b2e137b6426f79ecf6e232b0ba99df9"

    def __post_init__(self) -> None:
        if Path(self.file).name != self.file:
            raise ValueError(f"file {self.file!r} is a path; name a file in <data root>/weights")
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError("sha256 must be 64 lower-case hexadecimal digits; `sha256sum FILE` prints them")

    def unavailable(self, root: Path | None) -> str | None:
        """Why the file cannot be read, with the remedy; None when it can."""
        problem = missing(root, self.file)
        if problem is None and sha256(weights_path(root, self.file)) != self.sha256:
            return (
                f"weights/{self.file} is not the file this embedding knows and reading it may run code; "
                "if you trust it, give its digest as sha256=…"
            )
        return problem

    def load(self, root: Path | None) -> Embed:
        """The embedding of pictures of any size and number: grey is repeated to RGB, sizes are brought to 64×64."""
        problem = self.unavailable(root)
        if problem is not None:
            raise UsageError(problem)
        program = _program(weights_path(root, self.file), self.sha256)

        @torch.no_grad()
        def embed(images: Tensor) -> Tensor:
            parts = [_embedded(program, part) for part in images.split(AT_ONCE)]
            return torch.cat(parts).to(images.device)

        return embed


def _embedded(program: nn.Module, images: Tensor) -> Tensor:
    x = to_rgb(images).float().cpu()
    if x.shape[-2:] != (SIDE, SIDE):
        x = F.interpolate(x, size=(SIDE, SIDE), mode="bilinear", align_corners=False, antialias=True)
    if len(x) == 1:  # the program takes two pictures or more
        return program(x.repeat(2, 1, 1, 1).contiguous())[:1]  # type: ignore[no-any-return]
    return program(x.clamp(0, 1).contiguous())  # type: ignore[no-any-return]


def centroids(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The mean row of each class: classes×d. Every class must have one."""
    counts = torch.bincount(labels, minlength=classes)
    if len(counts) > classes or not counts.all():
        empty = int((counts == 0).int().argmax())
        raise ValueError(f"class {empty} has no picture to compute a centroid from, or labels go beyond {classes - 1}")
    sums = features.new_zeros(classes, features.shape[1]).index_add(0, labels, features)
    return sums / counts[:, None]


def centroid_scores(features: Tensor, centres: Tensor) -> Tensor:
    """−‖e − c‖² for every class, N×C: the largest is the nearest centroid."""
    return -torch.cdist(features, centres, compute_mode="donot_use_mm_for_euclid_dist").square()


def least_squared_distance(features: Tensor, classes: Tensor, private: Tensor, labels: Tensor) -> Tensor:
    """δ: for each of K identities, the mean over its M reconstructions of min ‖e(x̂) − e(x)‖² over its own pictures.

    `features` are K×M×d, `private` P×d. With FaceNet's embedding this is δ_FaceNet, with the features of the evaluation
    network δ_Eval (Struppek et al., "Plug & play attacks", ICML 2022) and the KNN distance.
    """
    own = labels[None] == classes[:, None]  # K×P
    if not own.any(1).all():
        absent = int(classes[~own.any(1)][0])
        raise ValueError(f"no private picture of identity {absent}; its distance is not defined")
    k, m, d = features.shape
    distances = torch.cdist(features.reshape(k * m, d), private).square().view(k, m, -1)
    return distances.masked_fill(~own[:, None], float("inf")).amin(-1).mean(1)


@dataclass(frozen=True)
class CentroidJudge:
    """Names the person whose mean embedding is nearest; called as an evaluation network is.

    Private pictures are embedded once, for the centroids and for δ. Nothing is trained.
    """

    embed: Embed
    centres: Tensor  # C×d
    private: Tensor = field(repr=False)  # P×d
    labels: Tensor = field(repr=False)  # P

    @classmethod
    def fitted(cls, embed: Embed, images: Tensor, labels: Tensor, classes: int) -> CentroidJudge:
        private = embed(images)
        return cls(embed, centroids(private, labels, classes), private, labels)

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Scores N×C and features N×d."""
        features = self.embed(images)
        return centroid_scores(features, self.centres), features
