"""Distance between two sets of pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakscope.core.metric import METRICS, Metric, Reference
from leakscope.metrics.networks import EMBEDDINGS
from leakscope.metrics.pictures import require_pictures

#: Pictures a network sees at once.
AT_ONCE = 64


def frechet_distance(a: Tensor, b: Tensor) -> Tensor:
    """Fréchet distance of the Gaussians fitted to the rows of `a` and of `b`, in double precision.

        d² = ‖μ_a − μ_b‖² + Tr S_a + Tr S_b − 2·Tr (S_a^½ S_b S_a^½)^½

    (Dowson and Landau, 1982), with unbiased covariances S. The last trace is the sum of the roots of
    the eigenvalues of S_a^½ S_b S_a^½, that is of the singular values of R_a R_bᵀ for any R with
    S = RᵀR: since R = U S^½ with UᵀU = I on the range of S, R_a R_bᵀ = U_a (S_a^½ S_b^½) U_bᵀ. The
    triangular factor of the centred rows is such an R. No covariance is formed and no root taken of
    rounding noise, so fewer rows than columns, which leaves S singular, costs no precision.
    """
    for which, rows in (("first", a), ("second", b)):
        if rows.ndim != 2 or len(rows) < 2:
            raise ValueError(f"the {which} set has shape {tuple(rows.shape)}; a covariance needs two rows or more")
        if not rows.isfinite().all():
            raise ValueError(f"the {which} set has NaN or infinite features; a Fréchet distance is not defined")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"features of {a.shape[1]} and of {b.shape[1]} numbers cannot be compared")
    device = a.device
    a, b = a.detach().cpu().double(), b.detach().cpu().double()
    root_a, root_b = (torch.linalg.qr((rows - rows.mean(0)) / (len(rows) - 1) ** 0.5, mode="r").R for rows in (a, b))
    spread = root_a.square().sum() + root_b.square().sum()
    shift = (a.mean(0) - b.mean(0)).square().sum()
    distance: Tensor = shift + spread - 2 * torch.linalg.svdvals(root_a @ root_b.T).sum()
    # The distance is not negative; rounding may be, by a few ulps of what was subtracted.
    if not distance.isfinite() or distance < -1e-9 * (shift + spread):
        raise ArithmeticError(f"the Fréchet distance came out as {float(distance)}; the features are ill-conditioned")
    return distance.clamp_min(0).float().to(device)


@METRICS.register("fid")
@dataclass(frozen=True)
class FrechetDistance(Metric):
    """Fréchet distance of reconstructions to true pictures in the features of a named network.

    With `inception` this is the Fréchet inception distance (Heusel et al., NeurIPS 2017).

    `inception`: torchvision's Inception v3, 2,048 averaged features of pictures resized to 299
    (bilinear, antialiased). `alexnet`: 256 averaged features of the last convolution of the LPIPS
    AlexNet. `random-conv` and `pixels` need no file. Fewer pictures than features bias the value
    upwards: compare only values of equally many pictures and one network, which is in the name.

    Differs from the paper: torchvision's weights, not those of the 2015 TensorFlow graph, so
    published values cannot be compared with these.
    """

    network: str = "inception"

    more_leak: ClassVar[Literal["high", "low"]] = "low"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, None)
    of_set: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.network not in EMBEDDINGS:
            raise ValueError(f"no network {self.network!r} for fid; choose from: {', '.join(EMBEDDINGS)}")

    @property
    def name(self) -> str:
        return f"fid[{self.network}]"

    def unavailable(self, root: Path | None) -> str | None:
        return EMBEDDINGS[self.network].unavailable(root)

    @torch.no_grad()
    def __call__(self, guess: Tensor, truth: Tensor, reference: Reference) -> Tensor:
        require_pictures(guess, truth)
        if len(truth) < 2:
            raise ValueError("fid compares sets: it needs two pictures or more")
        embed = EMBEDDINGS[self.network].load(reference.root, truth.device)
        features = (torch.cat([embed(part) for part in images.split(AT_ONCE)]) for images in (guess, truth))
        return frechet_distance(*features)
