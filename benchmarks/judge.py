"""How often the judge of claims is right: coverage, false "holds" and power, on simulated mean squares.

`python benchmarks/judge.py` prints what docs/concepts/evidence.md and `leakscope.stats.claims` quote. Seeds are fixed.
Sides differ by y_sv = effect + seed_s + victim_v + residual_sv, all normal. The mean and the mean squares of such a
table are independent, so they are drawn directly: no table is built, and 200,000 cases per setting take a second.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from leakscope.stats.distributions import Array, student_sum_above, student_sum_quantile
from leakscope.stats.multiple import holm

CASES = 200_000
RESIDUAL = 0.1
SEED_SPREADS = (0.0, 0.005, 0.01, 0.03, 0.1)
VICTIM_SPREADS = (0.0, 0.02, 0.05, 0.1, 0.3, 1.0)
SHARES = np.linspace(0, 1, 61)
#: Degrees of freedom of the victims' part, as shares of V − 1; see `leakscope.stats.effects`.
FREEDOMS = np.array([0.5, 0.6, 0.75, 1.0])


def draw(
    rng: np.random.Generator, cases: int, seeds: int, victims: int, seed_spread: float, victim_spread: float
) -> tuple[Array, Array, Array, Array]:
    """Means, squared errors of seeds and of victims, and the share of freedom of these, as `crossed` finds them."""
    residual = RESIDUAL**2
    freedoms = (seeds - 1, victims - 1, (seeds - 1) * (victims - 1))
    expected = (victims * seed_spread**2 + residual, seeds * victim_spread**2 + residual, residual)
    squares = [e * rng.chisquare(f, cases) / f for e, f in zip(expected, freedoms, strict=True)]
    cells = seeds * victims
    error = math.sqrt((expected[0] + expected[1] - residual) / cells)
    beyond = np.maximum(squares[1] - squares[2], 0)
    freedom = np.clip(beyond**2 / (squares[1] ** 2 + squares[2] ** 2 / (seeds - 1)), FREEDOMS[0], 1)
    return error * rng.normal(size=cases), squares[0] / cells, beyond / cells, freedom


def limits(level: float, seeds: int, victims: int) -> RegularGridInterpolator:
    """The quantile of the standardised deviation by the seeds' share of the squared error and the victims' freedom."""
    table = [
        [
            student_sum_quantile(level, (math.sqrt(share), seeds - 1), (math.sqrt(1 - share), freedom * (victims - 1)))
            for freedom in FREEDOMS
        ]
        for share in SHARES
    ]
    return RegularGridInterpolator((SHARES, FREEDOMS), table)


def errors() -> None:
    print("seeds victims  coverage of 95 %   false holds: one claim, family of ten (worst spreads)")
    rng = np.random.default_rng(0)
    for seeds, victims in product((3, 5, 10), (16, 64, 256)):
        at_95, at_ten = limits(0.975, seeds, victims), limits(0.9975, seeds, victims)
        covered, one, ten = [], [], []
        for seed_spread, victim_spread in product(SEED_SPREADS, VICTIM_SPREADS):
            mean, of_seeds, of_victims, freedom = draw(rng, CASES, seeds, victims, seed_spread, victim_spread)
            far = np.abs(mean) / np.sqrt(of_seeds + of_victims)
            place = np.stack((of_seeds / (of_seeds + of_victims), freedom), 1)
            covered.append(float(np.mean(far <= at_95(place))))
            one.append(1 - covered[-1])
            ten.append(10 * float(np.mean(far > at_ten(place))))
        print(
            f"{seeds:5} {victims:7}  {min(covered):.3f} to {max(covered):.3f}      "
            f"{max(one) / 2:.2%}, at most {max(ten) / 2:.2%}"
        )


def power() -> None:
    print("\nshare of true claims found to hold: effect 0.06 where 0.02 counts, 256 victims varying by 0.1")
    print("spread of seeds  family  3 seeds  5 seeds")
    for size, seed_spread in product((1, 10), (0.005, 0.01, 0.02)):
        found = []
        for seeds in (3, 5):
            rng = np.random.default_rng(seeds)
            drawn = draw(rng, 4_000, seeds, 256, seed_spread, 0.1)
            p = [
                student_sum_above(m + 0.04, (math.sqrt(a), seeds - 1), (math.sqrt(b), freedom * 255))
                for m, a, b, freedom in zip(*(column.tolist() for column in drawn), strict=True)
            ]
            families = np.minimum(1, 2 * np.array(p)).reshape(-1, size)
            found.append(float(np.mean([holm(family) <= 0.05 for family in families])))
        print(f"{seed_spread:15}  {size:6}  {found[0]:7.0%}  {found[1]:7.0%}")


if __name__ == "__main__":
    errors()
    power()
