"""Small settings of every method that `leakscope list` shows; test_coverage.py compares the lists."""

from __future__ import annotations

from leakscope.testing.small import ATTACKS, CLASS, DEFENSES, GAN, INSTANCE, LINEAR, PRIORS, RESIDUAL, STYLE

__all__ = ["ATTACKS", "CLASS", "DEFENSES", "GAN", "INSTANCE", "LINEAR", "PRIORS", "RESIDUAL", "STYLE"]

DEVICE = "sim:1"

#: They read a generator from a file, so one is written for them.
PRIORS_FROM_FILES = ("stylegan2", "stylegan3")

METRICS: dict[str, str] = {
    "cosine": "cosine",
    "fid": "fid:random-conv",
    "leak": "leak",
    "lpips": "lpips",
    "mse": "mse",
    "psim": "psim:random-conv",
    "psnr": "psnr",
    "ssim": "ssim",
    "ssim-padded": "ssim-padded",
}
#: They measure what an evaluation network says of rebuilt identities.
METRICS_OF_IDENTITIES = (
    "attack-accuracy", "attack-accuracy-5", "centroid", "coverage", "density", "false-positive", "fid-evaluator", "knn",
    "precision", "recall", "recognised", "target-accuracy",
)  # fmt: skip
#: They need weights that are not shipped: for `identity` and `reidentified` a small program stands in; the others read
#: a second opinion, and then compute what the metrics above compute.
METRICS_FROM_FILES = (
    "identity", "reidentified", "attack-accuracy-embedder", "delta", "fid-identities", "recognised-embedder",
)  # fmt: skip
