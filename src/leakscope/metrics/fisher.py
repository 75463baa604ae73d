"""What no attacker can do better than, from how sharply noisy features change with the picture."""

from __future__ import annotations

import torch
from torch import Tensor


def unbiased_bound(trace: float, dimensions: int) -> float:
    """1/dFIL = d / Tr(I): the least mean squared error of an attack without bias, I the Fisher information.

    Maeng et al., "Bounding the invertibility of privacy-preserving instance encoding using Fisher information",
    NeurIPS 2023. No prior is assumed, and so any attack that knows what pictures look like may do better.
    """
    return dimensions / trace if trace > 0 else float("inf")


def bayesian_bound(trace: float, variances: Tensor) -> float:
    """The least mean squared error of any attack, for Gaussian pictures of these principal variances λ.

        MSE ≥ Tr[(E[I] + Σ⁻¹)⁻¹]/d ≥ 1/d · Σ_i 1/(f_i + 1/λ_i) ≥ 1/d · Σ_i min(λ_i, θ)
        with   Σ_i max(0, 1/θ − 1/λ_i) = E[Tr I]

    f_i is the information along principal axis i. The first step is van Trees' inequality, the second that a diagonal
    entry of an inverse is at least the inverse of the entry, the third spends the whole trace where it lowers the
    error most. Never below d/(Tr I + Tr Σ⁻¹), which pixels that hardly vary bring to nothing.

    Van Trees, "Detection, estimation, and modulation theory", 1968; dFIL with a prior: Maeng et al., NeurIPS 2023.
    """
    if trace < 0:
        raise ValueError("a trace of Fisher information is 0 or more")
    spread = variances.double().sort(descending=True).values.clamp_min(1e-300)
    known = spread.reciprocal()
    count = torch.arange(1, len(spread) + 1, dtype=torch.float64, device=spread.device)
    levels = (trace + known.cumsum(0)) / count  # 1/θ when the k widest directions are told about
    told = int((levels > known).sum())  # true for the first directions, false behind
    water = told / levels[told - 1] if told else torch.tensor(0.0)
    return float((water + spread[told:].sum()) / len(spread))
