"""The upper end of a weighted mean or ratio whose weights are drawn anew (Bayesian bootstrap), without drawing any.

Give victim i a random weight E_i ~ Exp(1). The weighted leak Σ E_i g_i / Σ E_i b_i lies below q exactly when
S(q) = Σ E_i y_i ≤ 0 with y_i = g_i − q b_i. The cumulant function of S is K(t) = −Σ log(1 − t y_i), so that its
tail follows from the saddlepoint K'(t) = 0 (Lugannani & Rice, 1980):
P(S ≤ 0) ≈ Φ(r + log(u/r)/r),  r = sign(t) √(−2 K(t)),  u = t √K''(t).
"""

from __future__ import annotations

import numpy as np

from leakscope.stats.distributions import Array

#: Most Newton steps for the tilt and for the end; both stop when nothing moves any more.
_TILTS, _STEPS, _STILL = 10, 20, 1e-8


def _tilt(y: Array, shares: Array, start: Array) -> Array:
    """The t with K'(t) = 0 by damped Newton steps; K is self-concordant, so the damping 1/(1 + λ) stays inside."""
    t = np.where((1 - start[..., None] * y).min(-1) > 0, start, 0.0)
    for _ in range(_TILTS):
        z = y / (1 - t[..., None] * y)
        slope, curve = (shares * z).sum(-1), (shares * z * z).sum(-1)
        decrement = np.abs(slope) / np.sqrt(curve)
        t = t - slope / curve / np.where(decrement < 0.25, 1.0, 1 + decrement)
        if not (decrement > _STILL**0.5).any():  # the step just made squares it
            break
    return t


def upper_end(gain: Array, base: Array, z: Array, extra: float, ceiling: float | None = None) -> Array:
    """The q with P(Σ E_i g_i / Σ E_i b_i ≤ q) = Φ(z), for each row of `gain` and `base` (… × victims).

    One victim is added: the most leaking one again, with `extra` as the shape of its Gamma weight (1: a whole
    victim), or with the leak `ceiling` if one is given. Its base is at least the average.
    """
    total = base.sum(-1)
    value = gain.sum(-1) / total
    influence = gain - value[..., None] * base
    most = np.argmax(influence, -1)[..., None]
    top_gain, top_base = np.take_along_axis(gain, most, -1), np.take_along_axis(base, most, -1)
    mean = base.mean(-1, keepdims=True)
    growth = np.maximum(1.0, mean / np.where(top_base > 0, top_base, mean))
    top_gain, top_base = (top_gain * growth, top_base * growth) if ceiling is None else (ceiling * mean, mean)
    scale = np.abs(influence).max(-1)
    flat = scale <= 1e-12 * np.abs(gain).max(-1)
    if ceiling is not None:
        flat &= value >= ceiling
        scale = np.maximum(scale, np.abs(top_gain - value[..., None] * top_base)[..., 0])
    unit = np.where(flat, 1.0, scale)[..., None]
    g, b = np.concatenate([gain, top_gain], -1) / unit, np.concatenate([base, top_base], -1) / unit
    shares = np.append(np.ones(gain.shape[-1]), extra)
    high = np.where(b > 0, g / np.where(b > 0, b, 1.0), -np.inf).max(-1)
    return np.where(flat, value, _solve(g, b, shares, value, high, z))


def _solve(g: Array, b: Array, shares: Array, low: Array, high: Array, z: Array) -> Array:
    """Newton steps on r(q) + log(u/r)/r = z, halving the bracket [low, high] where a step would leave it."""
    y = g - low[..., None] * b
    spread = np.sqrt((shares * y * y).sum(-1)) / (shares * b).sum(-1)
    q = np.minimum(low + np.maximum(z, 0.1) * spread, (low + high) / 2)
    t = np.zeros_like(low)
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(_STEPS):
            y = g - q[..., None] * b
            t = _tilt(y, shares, t)
            left = 1 - t[..., None] * y
            r = np.sign(t) * np.sqrt(np.maximum(2 * (shares * np.log(left)).sum(-1), 0))
            u = t * np.sqrt((shares * (y / left) ** 2).sum(-1))
            root = np.where(np.abs(r) > 1e-6, r + np.log(u / r) / r, r)
            slope = t * (shares * b / left).sum(-1) / r
            low, high = np.where(root < z, q, low), np.where(root < z, high, q)
            if not (np.abs(z - root) > _STILL).any():
                break
            step = q + (z - root) / slope
            q = np.where((step > low) & (step < high), step, (low + high) / 2)
    return np.asarray(q)
