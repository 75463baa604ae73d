"""Statistics that everything above shares: intervals, effects, matched accuracy, several tests, and the judge."""

from leakscope.stats.claims import Claim, Doubt, Evidence, Matched, Ruling, Tables, judge
from leakscope.stats.effects import (
    Effect,
    Spread,
    crossed,
    crossed_interval,
    paired_effect,
    seeds_needed,
    smallest_effect,
    spread,
    victims_to_show,
)
from leakscope.stats.exposure import Exposed, exposed_bound, share_bound, victims_needed, worst_over_attacks
from leakscope.stats.intervals import (
    Estimate,
    mean_interval,
    ratio_interval,
    ratio_scores,
    skewed_interval,
    victims_for_limit,
)
from leakscope.stats.matching import Point, UnmatchedError, adjusted_effect, leak_at, matched_effect
from leakscope.stats.multiple import holm, holm_levels, simultaneous_intervals
from leakscope.stats.strongest import Strongest, maximum_over_attacks
from leakscope.stats.words import DoubtKind, Verdict

__all__ = [
    "Claim", "Doubt", "DoubtKind", "Effect", "Estimate", "Evidence", "Exposed", "Matched", "Point", "Ruling", "Spread",
    "Strongest", "Tables", "UnmatchedError", "Verdict", "adjusted_effect", "crossed", "crossed_interval",
    "exposed_bound", "holm", "holm_levels", "judge", "leak_at", "matched_effect", "maximum_over_attacks",
    "mean_interval", "paired_effect", "ratio_interval", "ratio_scores", "seeds_needed", "share_bound",
    "simultaneous_intervals", "skewed_interval", "smallest_effect", "spread", "victims_for_limit", "victims_needed",
    "victims_to_show", "worst_over_attacks",
]  # fmt: skip
