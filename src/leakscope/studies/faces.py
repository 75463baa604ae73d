"""Class attacks against transfer learning and its rivals, on finished audits of faces."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

import torch
from torch import Tensor

from leakscope.auditing.fisher import classification_profile, inversion_profile
from leakscope.metrics.recognition import MEASURES
from leakscope.pipeline.execute import Workplace, realise, target_plan
from leakscope.studies._crossed import crossed_interval
from leakscope.studies._faces_page import page
from leakscope.studies.study import STUDIES, Claim, Figures, Outcome, Run, Runs, Study

#: The undefended target in the variants that hold the comparison: `main`, and `main-…` with further attacks.
MAIN, UNDEFENDED = "main", "none"
#: Share of its reconstructions that the target must accept, as in the paper's false-positive analysis.
CONVINCED = 0.9
#: Differences of accuracy (points of 1) that count as the same natural accuracy.
SAME_ACCURACY = 0.03
#: Trainings of a target below which nothing is claimed: identities alone do not tell how trainings differ.
LEAST_SEEDS = 3

Key = tuple[str, str]  # variant, defence


@dataclass(frozen=True)
class Grid:
    """Every measure of every attack on every target, seeds × identities."""

    tables: dict[Key, dict[str, dict[str, Tensor]]] = field(default_factory=dict)
    accuracy: dict[Key, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: Runs) -> Grid:
        """Variants that share a target or an attack have it once; seeds are in order."""
        accuracy: dict[Key, dict[int, float]] = {}
        found: dict[Key, dict[str, dict[int, dict[str, Tensor]]]] = {}
        for variant, run in runs.runs.items():
            name = MAIN if variant.startswith(MAIN) or not variant else variant
            for target in run.targets:
                accuracy.setdefault((name, target["defense"]), {})[int(target["seed"])] = float(target["accuracy"])
            for row in run.rows:
                by_seed = found.setdefault((name, row["defense"]), {}).setdefault(_kind(row["attack"]), {})
                by_seed[int(row["seed"])] = run.values(row)
        tables = {
            key: {attack: _stacked([by_seed[s] for s in sorted(by_seed)]) for attack, by_seed in attacks.items()}
            for key, attacks in found.items()
        }
        return cls(tables, {key: [by_seed[s] for s in sorted(by_seed)] for key, by_seed in accuracy.items()})

    def difference(self, first: Key, second: Key, attack: str, measure: str = "attack-accuracy") -> Figures:
        """First less second, identity by identity and seed by seed."""
        a, b = self.tables[first][attack][measure], self.tables[second][attack][measure]
        seeds = min(len(a), len(b))
        return crossed_interval(a[:seeds] - b[:seeds])

    def strongest(self, key: Key, *others: Key) -> str:
        """The attack whose reconstructions are recognised most often, of those that the others met too."""
        own = self.tables[key]
        common = [attack for attack in own if all(attack in self.tables[other] for other in others)]
        return max(common, key=lambda attack: own[attack]["attack-accuracy"].mean().item())


def _stacked(seeds: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Every measure that has one value an identity, seeds × identities."""
    names = [name for name in seeds[0] if name in MEASURES and not MEASURES[name].of_set]
    return {name: torch.stack([own[name] for own in seeds]) for name in names}


def _kind(attack: str) -> str:
    return attack.partition(":")[0]


@STUDIES.register("faces")
@dataclass(frozen=True)
class FacesStudy(Study):
    """What trained networks give away about their identities, beside the claims of TL-DMI (Ho et al., 2024)."""

    part: str = "toy"
    pictures_a_profile: int = 200
    sheet: bool = False  # show identities; not those of real people

    def measure(self, runs: Runs) -> Figures:
        grid = Grid.of(runs)
        first = next(iter(runs.runs.values()))
        return {
            "identities": len(first.plan.victims),
            "seeds": len(first.plan.seeds),
            "chance": 1 / len(first.plan.splits.private.classes),
            "ceiling": first.audit.document["controls"]["positive"].get("ceiling"),
            "targets": [_target(grid, key) for key in grid.tables],
            "controls": {name or MAIN: run.audit.document["controls"] for name, run in runs.runs.items()},
            "floors": {
                name: scores["attack-accuracy"]["mean"]
                for run in runs.runs.values()
                for name, scores in run.audit.document["floors"].items()
            },
            "claims": [claim.as_dict() for judge in CLAIMS for claim in judge(grid)],
            "fisher": _fisher(first, self.pictures_a_profile),
            "sheet": self.sheet,
        }

    def page(self, parts: Mapping[str, Figures]) -> str:
        return page(parts)

    def pictures(self, runs: Runs) -> dict[str, bytes]:
        grid = Grid.of(runs)
        first = next(iter(runs.runs.values()))
        drawn = {"pareto.png": _pareto(grid), "fisher.png": _profiles(_fisher(first, self.pictures_a_profile))}
        return {**drawn, "faces.png": _sheet(first, grid)} if self.sheet else drawn


def _target(grid: Grid, key: Key) -> Figures:
    twin = (MAIN, UNDEFENDED)
    attacks = {}
    for attack, measures in grid.tables[key].items():
        figures: Figures = {name: crossed_interval(table) for name, table in measures.items()}
        if key != twin and twin in grid.tables and attack in grid.tables[twin]:
            figures["less than undefended"] = grid.difference(twin, key, attack)
            figures["delta"] = _delta(grid, key, attack)
        attacks[attack] = figures
    return {
        "variant": key[0], "defense": key[1], "accuracy": grid.accuracy[key],
        "strongest": grid.strongest(key), "attacks": attacks,
    }  # fmt: skip


def _delta(grid: Grid, key: Key, attack: str) -> float | None:
    """Points of attack accuracy lost for each point of accuracy; undefined where accuracy did not drop."""
    twin = (MAIN, UNDEFENDED)
    cost = fmean(grid.accuracy[twin]) - fmean(grid.accuracy[key])
    return grid.difference(twin, key, attack)["mean"] / cost if cost > 0 else None


def _told(difference: Figures) -> str:
    return f"{difference['mean']:+.1%} [{difference['low']:+.1%}, {difference['high']:+.1%}]"


def _outcome(difference: Figures) -> Outcome:
    """More (the interval lies above zero), less, or nobody can tell."""
    if difference["seeds"] < LEAST_SEEDS:
        return "cannot tell"
    if difference["low"] > 0:
        return "holds"
    return "does not hold" if difference["high"] < 0 else "cannot tell"


def _transfer(grid: Grid) -> list[Key]:
    """Transfer-learning targets of the main variant that freeze first layers strictly, shallowest first."""
    return [
        key for key in grid.tables
        if key[0] == MAIN and key[1].startswith("tl-dmi") and "+" not in key[1]
        and "tuned=first" not in key[1] and "bn=train" not in key[1]
    ]  # fmt: skip


def defended(grid: Grid) -> list[Claim]:
    """Transfer learning lowers attack accuracy, and by more than natural accuracy."""
    twin = (MAIN, UNDEFENDED)
    if twin not in grid.tables:
        return []
    claims = []
    for key in _transfer(grid):
        attack = grid.strongest(twin, key)
        less = grid.difference(twin, key, attack)
        cost = fmean(grid.accuracy[twin]) - fmean(grid.accuracy[key])
        base = grid.tables[twin][attack]["attack-accuracy"].mean().item()
        relative = less["mean"] / max(base, 1e-9)
        outcome = _outcome(less)
        if outcome == "holds" and relative <= cost / fmean(grid.accuracy[twin]):
            outcome = "does not hold"
        because = f"attack accuracy of {attack} falls by {_told(less)} of {base:.1%}; accuracy by {cost:.1%}"
        claims.append(Claim(f"{key[1]} lowers attack accuracy more than it costs accuracy", outcome, because))
    return claims


def depth(grid: Grid) -> list[Claim]:
    """The more layers are frozen, the less is given away."""
    steps = _transfer(grid)
    if len(steps) < 2:
        return []
    twin = (MAIN, UNDEFENDED)
    attack = grid.strongest(twin if twin in grid.tables else steps[0], *steps)
    less = grid.difference(steps[0], steps[-1], attack)
    series = [grid.tables[key][attack]["attack-accuracy"].mean().item() for key in steps]
    because = (
        f"{attack}: {', '.join(f'{key[1]} {value:.1%}' for key, value in zip(steps, series, strict=True))}; "
        f"first less last {_told(less)}"
    )
    return [Claim("The deeper the frozen part, the less is given away", _outcome(less), because)]


def last_layers(grid: Grid) -> list[Claim]:
    """Tuning the first layers instead of the last gives more away."""
    first = [key for key in grid.tables if "tuned=first" in key[1]]
    claims = []
    for key in first:
        layer = key[1].replace(",tuned=first", "").replace("tuned=first,", "")
        if (key[0], layer) in grid.tables:
            attack = grid.strongest(key, (key[0], layer))
            more = grid.difference(key, (key[0], layer), attack)
            accuracies = f"{fmean(grid.accuracy[key]):.1%} and {fmean(grid.accuracy[key[0], layer]):.1%}"
            because = f"{attack}: {_told(more)}; accuracies {accuracies}"
            claims.append(
                Claim("Tuning the first layers gives more away than tuning the last", _outcome(more), because)
            )
    return claims


def domains(grid: Grid) -> list[Claim]:
    """First layers that learned from pictures of another kind give less away, and serve less well."""
    claims = []
    for key in [key for key in grid.tables if key[0].startswith("other") and key[1].startswith("tl-dmi")]:
        same = (MAIN, key[1])
        if same in grid.tables:
            attack = grid.strongest(same, key)
            more = grid.difference(same, key, attack)
            accuracies = f"{fmean(grid.accuracy[same]):.1%} and {fmean(grid.accuracy[key]):.1%}"
            because = f"{key[1]}, {attack}: {_told(more)}; accuracies {accuracies}"
            text = "Pre-training on pictures of the same kind gives more away than on another kind"
            claims.append(Claim(text, _outcome(more), because))
    return claims


def matched(grid: Grid) -> list[Claim]:
    """At the same natural accuracy an undefended target, stopped early, gives more away."""
    stopped = [key for key in grid.tables if key[0] != MAIN and key[0].startswith("early") and key[1] == UNDEFENDED]
    claims = []
    for key in _transfer(grid):
        near = [s for s in stopped if abs(fmean(grid.accuracy[s]) - fmean(grid.accuracy[key])) <= SAME_ACCURACY]
        if near:
            best = min(near, key=lambda s: abs(fmean(grid.accuracy[s]) - fmean(grid.accuracy[key])))
            attack = grid.strongest(best, key)
            more = grid.difference(best, key, attack)
            because = (
                f"{best[0]} ({fmean(grid.accuracy[best]):.1%}) less {key[1]} ({fmean(grid.accuracy[key]):.1%}), "
                f"{attack}: {_told(more)}"
            )
            claims.append(
                Claim(
                    f"At the accuracy of {key[1]} an undefended target still gives more away", _outcome(more), because
                )
            )
    return claims


def rivals(grid: Grid) -> list[Claim]:
    """Transfer learning gives less away than MID and BiDO at no less accuracy."""
    ours = _transfer(grid)
    claims = []
    for key in grid.tables:
        if key[0] != MAIN or _kind(key[1]) not in {"mid", "bido-hsic", "bido-coco", "label-smoothing"}:
            continue
        able = [k for k in ours if fmean(grid.accuracy[k]) >= fmean(grid.accuracy[key]) - 0.005]
        text = f"TL-DMI gives less away than {key[1]} at no less accuracy"
        if not able:
            because = f"no frozen depth reaches its accuracy of {fmean(grid.accuracy[key]):.1%}"
            claims.append(Claim(text, "cannot tell", because))
            continue
        attack = grid.strongest(key, *able)
        best = min(able, key=lambda k: grid.tables[k][attack]["attack-accuracy"].mean().item())
        less = grid.difference(key, best, attack)
        accuracies = f"accuracy {fmean(grid.accuracy[key]):.1%} against {fmean(grid.accuracy[best]):.1%}"
        claims.append(Claim(text, _outcome(less), f"{attack}, {best[1]}: {_told(less)}; {accuracies}"))
    return claims


#: The paper's ordering of attacks, weakest first.
ORDER = ("gmi", "lomma-gmi", "kedmi", "lomma-kedmi")


def ordering(grid: Grid) -> list[Claim]:
    """LOMMA-K ≥ KEDMI > LOMMA-G > GMI on the undefended target."""
    twin = (MAIN, UNDEFENDED)
    there = [attack for attack in ORDER if attack in grid.tables.get(twin, {})]
    claims = []
    for weak, strong in pairwise(there):
        own = grid.tables[twin]
        more = crossed_interval(own[strong]["attack-accuracy"] - own[weak]["attack-accuracy"])
        claims.append(Claim(f"{strong} is recognised more often than {weak}", _outcome(more), _told(more)))
    return claims


def false_positives(grid: Grid) -> list[Claim]:
    """The target accepts reconstructions with and without the defence; the defence shows as false positives."""
    twin = (MAIN, UNDEFENDED)
    if twin not in grid.tables:
        return []
    claims = []
    for key in _transfer(grid):
        attack = grid.strongest(twin, key)
        accepted = [grid.tables[k][attack]["target-accuracy"].mean().item() for k in (twin, key)]
        more = grid.difference(key, twin, attack, "false-positive")
        outcome = _outcome(more) if min(accepted) >= CONVINCED else "cannot tell"
        because = f"{attack}: accepted {accepted[0]:.1%} and {accepted[1]:.1%}; false positives {_told(more)}"
        claims.append(Claim(f"{key[1]} shows as false positives", outcome, because))
    return claims


CLAIMS: tuple[Callable[[Grid], list[Claim]], ...] = (
    defended, depth, last_layers, domains, matched, rivals, ordering, false_positives,
)  # fmt: skip


def _fisher(run: Run, count: int) -> Figures:
    """Profiles of recognising and of rebuilding on the undefended target of the first seed, with controls."""
    plan = run.plan
    none = next((defense for defense in plan.defenses if defense.kind_name == "none"), None)
    rows = [row for row in run.rows if row["defense"] == UNDEFENDED and row["seed"] == plan.seeds[0]]
    if none is None or not rows:
        return {}
    place = Workplace(run.store, torch.device("cpu"))
    cut = plan.cuts[0]
    split = realise(plan, target_plan(plan, cut, none, plan.seeds[0]), place).split
    row = next((row for row in rows if _kind(row["attack"]) == "kedmi"), rows[0])
    guess = run.guess(row)
    rebuilt = guess[:: len(guess) // len(plan.victims)]
    heldout, public, private = (part.take(torch.arange(min(count, len(part)))) for part in (
        plan.splits.heldout, plan.splits.public, plan.splits.private))  # fmt: skip
    with torch.no_grad():
        features = split.encode(plan.splits.private.images).flatten(1)
    centres = torch.stack([features[plan.splits.private.labels == c].mean(0) for c in plan.victims.labels])
    fresh = plan.build(cut, none, plan.seeds[0]).eval()
    names = {
        "classification": classification_profile(split, heldout.images, heldout.labels),
        "inversion": inversion_profile(split, rebuilt, centres),
        "inversion, l1": inversion_profile(split, rebuilt, centres, power=1),
        "control: inversion of random weights": inversion_profile(fresh, rebuilt, centres),
        "control: distance of public pictures": inversion_profile(
            split, public.images[: len(centres)], centres[: len(public.images)]
        ),
        "control: distance of private pictures": inversion_profile(
            split, private.images[: len(centres)], centres[: len(private.images)]
        ),
    }
    profiles = {
        name: {which: _rounded(profile.normalised(which)) for which in ("mean", "total", "weighted")}
        for name, profile in names.items()
    }
    return {"attack": row["attack"], "layers": list(names["inversion"].layers), "profiles": profiles}


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 6) for value in values.tolist()]


def _pareto(grid: Grid) -> bytes:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9.5, 4.5), dpi=110)
    compared = [key for key in grid.tables if key[0] == MAIN]
    for number, key in enumerate(grid.tables, start=1):
        attack = grid.strongest(key, *compared)
        found = crossed_interval(grid.tables[key][attack]["attack-accuracy"])
        x = 100 * fmean(grid.accuracy[key])
        mean, low, high = (100 * found[name] for name in ("mean", "low", "high"))
        mark = "s" if key[1] == UNDEFENDED else "o" if key[1].startswith("tl-dmi") else "^"
        name = key[1] if key[0] == MAIN else f"{key[0]}: {key[1]}"
        axes.errorbar(
            x, mean, [[mean - low], [high - mean]], fmt=mark, capsize=2, markersize=5, label=f"{number}  {name}"
        )
        axes.annotate(str(number), (x, mean), textcoords="offset points", xytext=(4, 3), fontsize=8)
    axes.set_xlabel("natural accuracy, %")
    axes.set_ylabel("attack accuracy of the strongest common attack, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return _png(figure)


def _sheet(run: Run, grid: Grid) -> bytes:
    """Eight identities in the middle of the ranking: a private photo, then the strongest attack on each target."""
    twin = (MAIN, UNDEFENDED)
    attack = grid.strongest(twin)
    order = grid.tables[twin][attack]["knn"].mean(0).argsort()
    middle = order[max(0, len(order) // 2 - 4) :][:8]
    lines, names = [run.plan.victims.images[middle]], ["private photo"]
    for defense in dict.fromkeys(row["defense"] for row in run.rows):
        row = next(
            (r for r in run.rows if r["defense"] == defense and _kind(r["attack"]) == attack
             and r["seed"] == run.plan.seeds[0]), None)  # fmt: skip
        if row is not None:
            guess = run.guess(row)
            lines.append(guess[:: len(guess) // len(run.plan.victims)][middle])
            names.append(str(defense))
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(lines), 1, figsize=(7, 0.95 * len(lines)), dpi=90)
    for own, images, name in zip(axes, lines, names, strict=True):
        strip = torch.cat(list(torch.nn.functional.pad(images, (1, 1, 1, 1), value=1.0)), dim=2).permute(1, 2, 0)
        own.imshow(strip.squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        own.set_title(name, fontsize=7, loc="left", pad=2)
        own.axis("off")
    return _png(figure)


def _profiles(fisher: Figures) -> bytes:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.5), dpi=110)
    for name, profile in fisher.get("profiles", {}).items():
        axes.plot(
            fisher["layers"], profile["mean"], "--" if name.startswith("control") else "-", marker=".", label=name
        )
    axes.set_ylabel("Fisher information, largest = 1")
    axes.tick_params(axis="x", rotation=45, labelsize=7)
    if fisher:
        axes.legend(fontsize=6)
    return _png(figure)


def _png(figure: object) -> bytes:
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    assert isinstance(figure, Figure)
    stream = io.BytesIO()
    figure.tight_layout()
    figure.savefig(stream, format="png", metadata={"Software": None})
    plt.close(figure)
    return stream.getvalue()
