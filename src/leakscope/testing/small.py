"""Small settings of every attack, defence and prior that we ship, for suites that must be quick."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]

LINEAR = {"kind": "linear", "components": 8}
GAN = {"kind": "dcgan", "width": 4, "latent": 6, "steps": 4, "batch": 4, "penalty_every": 2, "opening": 2}
STYLE = {"kind": "style", "width": 4, "latent": 6, "steps": 4, "batch": 4, "penalty_every": 2, "opening": 2}

INSTANCE: dict[str, Spec] = {
    "analytic-sparse": {},
    "auto": {"effort": "quick"},
    "decoder": {"steps": 40, "capacity": "small"},
    "decoder-gan": {"steps": 60, "capacity": "small", "learning_rate": 1e-2},
    "e2e-lbfgs": {"iterations": 20},
    "embedding": {"steps": 20},
    "latent": {"prior": LINEAR, "candidates": 200, "steps": 10},
    "pseudo-client": {"shadows": 1, "steps": 80},
    "ridge": {},
    "search": {"steps": 40},
}
#: They take residual networks apart, so they are given one.
RESIDUAL: dict[str, Spec] = {
    "peel": {
        "steps": 30, "learning_rate": 0.05, "complementarity": 1, "consistency": 1,
        "shallow": {"kind": "embedding", "steps": 20},
    },
    "peel-exact": {"dense_rank_limit": 0},
}  # fmt: skip
CLASS: dict[str, Spec] = {
    "brepmi": {"prior": GAN, "steps": 4, "points": 8, "draws": 600, "images": 2},
    "class-map": {"prior": LINEAR, "images": 2, "steps": 8},
    "gmi": {"prior": GAN, "images": 2, "steps": 20},
    "kedmi": {"prior": {"kind": "kedmi-gan", "base": GAN, "steps": 2}, "images": 2, "steps": 20},
    "lomma-gmi": {"prior": LINEAR, "images": 2, "steps": 8, "students": [4, 6], "epochs": 1},
    "lomma-kedmi": {
        "prior": LINEAR, "images": 2, "steps": 8, "students": [4], "epochs": 1, "feature": "sampled",
    },
    "miface": {"steps": 20},
    "mirror": {"prior": STYLE, "images": 2, "samples": 30, "steps": 6},
    "mirror-blackbox": {"prior": STYLE, "samples": 40, "population": 10, "generations": 4},
    "ppa": {"prior": STYLE, "images": 2, "candidates": 20, "starts": 4, "steps": 6, "views": 4},
    "vmi": {"prior": LINEAR, "images": 3, "steps": 8, "batch": 4, "couplings": 2, "hidden": 6},
}  # fmt: skip
ATTACKS: dict[str, Spec] = INSTANCE | RESIDUAL | CLASS

SLOTS = {"slots": 2, "rounds": 2}
SMALL_GAN = {"gan_steps": 2, "gan_width": 4}
DEFENSES: dict[str, Spec] = {
    "adversarial": {"threshold": 0.0, "width": 8, "blocks": 1},
    "bido-coco": {},
    "bido-hsic": {},
    "bottleneck": {"channels": 2},
    "cem": {"weight": 16, "clusters": 2, "two_stage": True},
    "cem-fused": {"weight": 16, "warmup": 0, "settings": SLOTS},
    "cem-gated": {"weight": 16, "warmup": 0},
    "cem-logdet": {"clusters": 3},
    "cem-slot": {"weight": 16, "warmup": 0, "settings": SLOTS},
    "dp-sgd": {},
    "dropout": {"p": 0.3},
    "gan-augment": SMALL_GAN,
    "fisher-noise": {"bound": 0.01},
    "gaussian": {"sigma": 0.1},
    "gong": {"start": 0, "inversion_steps": 1, **SMALL_GAN},
    "gong++": {"start": 0, "inversion_steps": 1, **SMALL_GAN},
    "label-smoothing": {"schedule": "constant"},
    "laplace": {"scale": 0.1},
    "mid": {},
    "mixcon": {"beta": 1e-3},
    "none": {},
    "nopeek": {},
    "patrol": {"share": 0.5, "at": 0.0, "above": 4},
    "sca": {"sparsity": 0.2},
    "sca-conv": {"sparsity": 0.2, "layers": ["features.0"]},
    "sparse-standard": {"sparsity": 0.2},
    "tied-sparse": {},
    "tl-dmi": {"share": 0.5, "bn": "train"},
    "topk": {"keep": 0.25},
    "unicon": {},
}

PRIORS: dict[str, Spec] = {
    "dcgan": GAN,
    "kedmi-gan": {"kind": "kedmi-gan", "base": GAN, "steps": 4, "batch": 4, "kernels": 3, "kernel_size": 2},
    "linear": {"kind": "linear", "components": 6},
    "style": STYLE,
}
