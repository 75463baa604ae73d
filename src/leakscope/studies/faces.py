"""Class attacks against transfer learning and its rivals, on finished audits of faces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from leakscope.auditing.fisher import classification_profile, inversion_profile
from leakscope.core.defense import Defense
from leakscope.core.spec import digest
from leakscope.experiments.workplace import Workplace, realise, target_plan
from leakscope.studies._crossed import crossed_interval
from leakscope.studies._faces_claims import CLAIMS
from leakscope.studies._faces_grid import MAIN, UNDEFENDED, Grid, Key, kind_of
from leakscope.studies._faces_page import page
from leakscope.studies._faces_pictures import pareto, profiles, sheet
from leakscope.studies.study import STUDIES, Figures, Run, Runs, Study


@STUDIES.register("faces")
@dataclass(frozen=True)
class FacesStudy(Study):
    """What trained networks give away about their identities, beside the claims of TL-DMI (Ho et al., 2024).

    `note` is printed first: what a reader must know about what was left out.
    """

    part: str = "toy"
    note: str = ""
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
            "note": self.note,
        }

    def page(self, parts: Mapping[str, Figures]) -> str:
        return page(parts)

    def pictures(self, runs: Runs) -> dict[str, bytes]:
        grid = Grid.of(runs)
        first = next(iter(runs.runs.values()))
        drawn = {"pareto.png": pareto(grid), "fisher.png": profiles(_fisher(first, self.pictures_a_profile))}
        return {**drawn, "faces.png": sheet(first, grid)} if self.sheet else drawn


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


def _fisher(run: Run, count: int) -> Figures:
    """Profiles of recognising and of rebuilding on the undefended target of the first seed; measured once."""
    plan = run.plan
    none = next((defense for defense in plan.defenses if defense.kind_name == "none"), None)
    rows = [row for row in run.rows if row["defense"] == UNDEFENDED and row["seed"] == plan.seeds[0]]
    if none is None or not rows:
        return {}
    row = next((row for row in rows if kind_of(row["attack"]) == "kedmi"), rows[0])
    key = digest({"fisher": row["key"], "pictures": count})
    with run.store.claim("fisher", key) as done:
        if done is None:
            found = _profiles_of(run, none, row, count)
            run.store.put("fisher", key, {"fisher": found})
            return found
    kept: Figures = done.record["fisher"]
    return kept


def _profiles_of(run: Run, none: Defense, row: Figures, count: int) -> Figures:
    """Profiles with their controls: random weights, public pictures, private pictures."""
    plan, cut = run.plan, run.plan.cuts[0]
    place = Workplace(run.store, torch.device("cpu"))
    split = realise(plan, target_plan(plan, cut, none, plan.seeds[0]), place).split
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
