"""Quantiles and tails of Student's t, the normal and the beta distribution; scipy is imported when first needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def _special() -> Any:
    # 0.1 to 0.4 s: too long for `leakscope --help`, and the whole of `scipy.stats` takes longer still.
    import scipy.special  # type: ignore[import-untyped,unused-ignore]

    return scipy.special


def normal_quantile(probability: ArrayLike) -> Array:
    return np.asarray(_special().ndtri(probability), dtype=float)


def normal_below(z: ArrayLike) -> Array:
    """P(Z ≤ z)."""
    return np.asarray(_special().ndtr(z), dtype=float)


def student_quantile(probability: float, freedom: float) -> float:
    """The t with P(T ≤ t) = probability; the degrees of freedom need not be whole."""
    return float(_special().stdtrit(freedom, probability))


def student_above(t: float, freedom: float) -> float:
    """P(T > t)."""
    return float(_special().stdtr(freedom, -t))


def beta_quantile(probability: float, first: float, second: float) -> float:
    return float(_special().betaincinv(first, second, probability))
