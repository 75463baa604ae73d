"""What TL-DMI claims, each judged on a grid of attack accuracies (Ho et al., 2024)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import fmean

from leakscope.studies._crossed import crossed_interval
from leakscope.studies._faces_grid import MAIN, UNDEFENDED, Grid, Key, kind_of
from leakscope.studies.study import Claim, Figures, Outcome

#: Share of its reconstructions that the target must accept, as in the paper's false-positive analysis.
CONVINCED = 0.9
#: Trainings of a target below which nothing is claimed: identities alone do not tell how trainings differ.
LEAST_SEEDS = 3


def _told(difference: Figures) -> str:
    return f"{difference['mean']:+.1%} [{difference['low']:+.1%}, {difference['high']:+.1%}]"


def _outcome(difference: Figures) -> Outcome:
    """More (the interval lies above zero), less, or nobody can tell."""
    if difference["seeds"] < LEAST_SEEDS:
        return "cannot tell"
    if difference["low"] > 0:
        return "holds"
    return "does not hold" if difference["high"] < 0 else "cannot tell"


def _spared(grid: Grid, leaky: Key, safe: Key, attack: str) -> tuple[Figures, Outcome]:
    """How much less `safe` gives away. That it does needs an attack that convinced the target it failed against."""
    less = grid.difference(leaky, safe, attack)
    outcome = _outcome(less)
    if outcome == "holds" and grid.accepted(safe, attack) < CONVINCED:
        outcome = "cannot tell"
    return less, outcome


def _transfer(grid: Grid) -> list[Key]:
    """Transfer-learning targets of the main variant that freeze first layers strictly, shallowest first."""
    return [
        key for key in grid.tables
        if key[0] == MAIN and key[1].startswith("tl-dmi") and "+" not in key[1]
        and "tuned=first" not in key[1] and "bn=train" not in key[1]
    ]  # fmt: skip


TWIN = (MAIN, UNDEFENDED)


def _beside_undefended(grid: Grid) -> Iterator[tuple[Key, str]]:
    """Each depth of transfer learning, and the attack by which it is compared with the undefended target."""
    if TWIN in grid.tables:
        for key in _transfer(grid):
            yield key, grid.strongest(TWIN, key)


def _useful(grid: Grid, key: Key, outcome: Outcome, because: str) -> tuple[Outcome, str]:
    """A target is not credited with what it hides by being of no use."""
    if outcome == "holds" and grid.collapsed(key):
        return "cannot tell", f"{because}; but the accuracy of {key[1]} collapsed to {fmean(grid.accuracy[key]):.1%}"
    return outcome, because


def defended(grid: Grid) -> list[Claim]:
    """Transfer learning lowers attack accuracy, and by more than natural accuracy."""
    claims = []
    for key, attack in _beside_undefended(grid):
        less, outcome = _spared(grid, TWIN, key, attack)
        cost = fmean(grid.accuracy[TWIN]) - fmean(grid.accuracy[key])
        base = grid.tables[TWIN][attack]["attack-accuracy"].mean().item()
        relative = less["mean"] / max(base, 1e-9)
        if outcome == "holds" and relative <= cost / fmean(grid.accuracy[TWIN]):
            outcome = "does not hold"
        because = f"attack accuracy of {attack} falls by {_told(less)} of {base:.1%}; accuracy by {cost:.1%}"
        claims.append(Claim(f"{key[1]} lowers attack accuracy more than it costs accuracy", outcome, because))
    return claims


def depth(grid: Grid) -> list[Claim]:
    """The more layers are frozen, the less is given away."""
    steps = _transfer(grid)
    if len(steps) < 2:
        return []
    attack = grid.strongest(*steps)
    less, outcome = _spared(grid, steps[0], steps[-1], attack)
    series = [grid.tables[key][attack]["attack-accuracy"].mean().item() for key in steps]
    because = (
        f"{attack}: {', '.join(f'{key[1]} {value:.1%}' for key, value in zip(steps, series, strict=True))}; "
        f"first less last {_told(less)}"
    )
    return [Claim("The deeper the frozen part, the less is given away", *_useful(grid, steps[-1], outcome, because))]


def last_layers(grid: Grid) -> list[Claim]:
    """Tuning the first layers instead of the last gives more away."""
    first = [key for key in grid.tables if "tuned=first" in key[1]]
    claims = []
    for key in first:
        layer = key[1].replace(",tuned=first", "").replace("tuned=first,", "")
        if (key[0], layer) in grid.tables:
            attack = grid.strongest(key, (key[0], layer))
            more, outcome = _spared(grid, key, (key[0], layer), attack)
            accuracies = f"{fmean(grid.accuracy[key]):.1%} and {fmean(grid.accuracy[key[0], layer]):.1%}"
            because = f"{attack}: {_told(more)}; accuracies {accuracies}"
            told = _useful(grid, (key[0], layer), outcome, because)
            claims.append(Claim("Tuning the first layers gives more away than tuning the last", *told))
    return claims


def domains(grid: Grid) -> list[Claim]:
    """First layers that learned from pictures of another kind give less away, and serve less well."""
    claims = []
    for key in [key for key in grid.tables if key[0].startswith("other") and key[1].startswith("tl-dmi")]:
        same = (MAIN, key[1])
        if same in grid.tables:
            attack = grid.strongest(same, key)
            more, outcome = _spared(grid, same, key, attack)
            accuracies = f"{fmean(grid.accuracy[same]):.1%} and {fmean(grid.accuracy[key]):.1%}"
            because = f"{key[1]}, {attack}: {_told(more)}; accuracies {accuracies}"
            text = "Pre-training on pictures of the same kind gives more away than on another kind"
            claims.append(Claim(text, *_useful(grid, key, outcome, because)))
    return claims


def matched(grid: Grid) -> list[Claim]:
    """At the same natural accuracy an undefended target, stopped early, gives more away.

    No stop falls on a defence's accuracy: the undefended target there is half-way (or wherever) between the
    two stops around it, identity by identity.
    """
    stops = sorted(
        (key for key in grid.tables if key[1] == UNDEFENDED and (key[0] == MAIN or key[0].startswith("early"))),
        key=lambda key: fmean(grid.accuracy[key]),
    )
    claims = []
    for key in _transfer(grid):
        at = fmean(grid.accuracy[key])
        for below, above in pairwise(stops):
            low, high = (fmean(grid.accuracy[stop]) for stop in (below, above))
            if not low <= at < high:
                continue
            attack = grid.strongest(below, above, key)
            share = (at - low) / (high - low)
            tables = [grid.tables[which][attack]["attack-accuracy"] for which in (below, above, key)]
            trainings = min(len(table) for table in tables)
            less, more, ours = (table[:trainings] for table in tables)
            gap = crossed_interval((1 - share) * less + share * more - ours)
            outcome = _outcome(gap)
            if outcome == "holds" and grid.accepted(key, attack) < CONVINCED:
                outcome = "cannot tell"
            because = (
                f"between {below[0]} ({low:.1%}) and {above[0]} ({high:.1%}) at its accuracy of {at:.1%}, "
                f"less its own, {attack}: {_told(gap)}"
            )
            text = f"At the accuracy of {key[1]} an undefended target still gives more away"
            claims.append(Claim(text, outcome, because))
    return claims


def rivals(grid: Grid) -> list[Claim]:
    """Transfer learning gives less away than MID and BiDO at no less accuracy."""
    ours = _transfer(grid)
    claims = []
    for key in grid.tables:
        if key[0] != MAIN or kind_of(key[1]) not in {"mid", "bido-hsic", "bido-coco", "label-smoothing"}:
            continue
        able = [k for k in ours if fmean(grid.accuracy[k]) >= fmean(grid.accuracy[key]) - 0.005]
        text = f"TL-DMI gives less away than {key[1]} at no less accuracy"
        if not able:
            because = f"no frozen depth reaches its accuracy of {fmean(grid.accuracy[key]):.1%}"
            claims.append(Claim(text, "cannot tell", because))
            continue
        attack = grid.strongest(key, *able)
        # Nearest in accuracy, not the one that came out best: that would be chosen by its luck.
        best = min(able, key=lambda k: fmean(grid.accuracy[k]))
        less, outcome = _spared(grid, key, best, attack)
        accuracies = f"accuracy {fmean(grid.accuracy[key]):.1%} against {fmean(grid.accuracy[best]):.1%}"
        claims.append(Claim(text, outcome, f"{attack}, {best[1]}: {_told(less)}; {accuracies}"))
    return claims


#: The paper's ordering of attacks, weakest first.
ORDER = ("gmi", "lomma-gmi", "kedmi", "lomma-kedmi")


def ordering(grid: Grid) -> list[Claim]:
    """LOMMA-K ≥ KEDMI > LOMMA-G > GMI on the undefended target."""
    there = [attack for attack in ORDER if attack in grid.tables.get(TWIN, {})]
    claims = []
    for weak, strong in pairwise(there):
        own = grid.tables[TWIN]
        more = crossed_interval(own[strong]["attack-accuracy"] - own[weak]["attack-accuracy"])
        claims.append(Claim(f"{strong} is recognised more often than {weak}", _outcome(more), _told(more)))
    return claims


def false_positives(grid: Grid) -> list[Claim]:
    """The target accepts reconstructions with and without the defence; the defence shows as false positives."""
    claims = []
    for key, attack in _beside_undefended(grid):
        accepted = [grid.accepted(k, attack) for k in (TWIN, key)]
        more = grid.difference(key, TWIN, attack, "false-positive")
        outcome = _outcome(more) if min(accepted) >= CONVINCED else "cannot tell"
        because = f"{attack}: accepted {accepted[0]:.1%} and {accepted[1]:.1%}; false positives {_told(more)}"
        claims.append(Claim(f"{key[1]} shows as false positives", *_useful(grid, key, outcome, because)))
    return claims


CLAIMS: tuple[Callable[[Grid], list[Claim]], ...] = (
    defended, depth, last_layers, domains, matched, rivals, ordering, false_positives,
)  # fmt: skip
