"""Defences at the cut, compared at matched accuracy."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from leakscope.core.spec import label
from leakscope.pipeline.execute import target_plan
from leakscope.studies._cut_figures import COSTS, NOISE, WORSE, Comparison, Shot, family, shots
from leakscope.studies._cut_page import page
from leakscope.studies.matching import over_seeds
from leakscope.studies.study import STUDIES, Claim, Figures, Outcome, Run, Runs, Study, published

_OUTCOMES: dict[int, Outcome] = {1: "holds", -1: "does not hold", 0: "cannot tell"}


@STUDIES.register("cut-defences")
@dataclass(frozen=True)
class CutDefencesStudy(Study):
    """CEM in every form and its rivals against noise alone, under the strongest of the attacks trained on each.

    `note` is printed under the setting: what a reader must know about how the strengths were chosen.
    """

    part: str = "cifar10"
    note: str = ""

    def measure(self, runs: Runs) -> Figures:
        run = _only(runs)
        compared = _comparison(run)
        names = list(dict.fromkeys(shot.family for shot in compared.shots))
        rivals = [name for name in names if name != NOISE]
        return {
            "setting": _setting(run) | {"note": self.note},
            "targets": [_target(compared, defense) for defense in dict.fromkeys(s.defense for s in compared.shots)],
            "matched": {name: _matched(compared, name) for name in names},
            "verdicts": {
                name: {"verdict": compared.verdict(name), "gain": compared.against(name, NOISE).as_dict()}
                for name in rivals
            },
            "gaming": _gaming(compared.shots),
            "published": published("cut_defences"),
            "claims": [claim.as_dict() for claim in _claims(compared, rivals)],
        }

    def page(self, parts: Mapping[str, Figures]) -> str:
        return page(parts)

    def pictures(self, runs: Runs) -> dict[str, bytes]:
        return {"plot.png": _plot(_comparison(_only(runs)))}


def _only(runs: Runs) -> Run:
    return next(iter(runs.runs.values()))


def _comparison(run: Run) -> Comparison:
    families = {label(defense): family(defense) for defense in run.plan.defenses}
    return Comparison(shots(run.targets, run.rows, families), 1 / len(run.plan.splits.private.classes))


def _setting(run: Run) -> Figures:
    plan = run.plan
    return {
        "model": run.targets[0]["model"],
        "features": run.targets[0]["feature_shape"],
        "private": len(plan.splits.private),
        "heldout": len(plan.splits.heldout),
        "public": len(plan.splits.public),
        "victims": len(plan.victims),
        "epochs": plan.config.training.epochs,
        "seeds": plan.seeds,
        "attacks": [label(attack) for attack in plan.attacks],
        "training_seconds": round(_training_seconds(run), 1),
    }


def _training_seconds(run: Run) -> float:
    total = 0.0
    for defense in run.plan.defenses:
        for seed in run.plan.seeds:
            entry = run.store.get("trained", _trained_key(run, defense, seed))
            total += entry.record["history"]["seconds"] if entry is not None else 0.0
    return total


def _trained_key(run: Run, defense: Any, seed: int) -> str:
    return target_plan(run.plan, run.plan.cuts[0], defense, seed).trained_key


def _target(compared: Comparison, defense: str) -> Figures:
    own = [shot for shot in compared.shots if shot.defense == defense]
    metrics = {name: over_seeds([shot.metrics[name] for shot in own]).as_dict() for name in own[0].metrics}
    return {
        "defense": defense,
        "family": own[0].family,
        "accuracy": over_seeds([shot.accuracy for shot in own]).as_dict(),
        **metrics,
        "worst_case": fmean(shot.worst_case for shot in own),
        "worst_picture": max(shot.worst_picture for shot in own),
        "strongest": sorted({shot.attack.partition(":")[0] for shot in own}),
        "doubts": sorted({flag for shot in own for flag in shot.doubts}),
        "gain": None if own[0].family == NOISE else compared.gain(defense).as_dict(),
        "seeds": {str(shot.seed): {"accuracy": shot.accuracy, "leak": shot.metrics["leak"]} for shot in own},
    }


def _matched(compared: Comparison, name: str) -> Figures:
    found = {}
    for cost in COSTS:
        leak, gain = compared.matched(name, cost)
        found[f"{cost:.2f}"] = {"leak": leak.as_dict(), "gain": gain.as_dict()}
    return found


def _gaming(all_shots: Sequence[Shot]) -> list[Figures]:
    """Penalty, spread and effective sample share, first and last, of the attention forms; first seed."""
    rows = []
    for shot in all_shots:
        for kind, notes in shot.notes.items():
            if shot.seed == all_shots[0].seed and isinstance(notes, Mapping) and "effective_sample_share" in notes:
                rows.append({"defense": shot.defense, "form": kind, **notes})
    return rows


def _claims(compared: Comparison, rivals: Sequence[str]) -> list[Claim]:
    """What the papers and the report say, where both sides were run."""
    said = {
        "cem": "CEM added to noise hides more than noise alone (Xia et al., 2025)",
        "mixcon": "MixCon makes features harder to invert at little cost (Li et al., 2020)",
        "nopeek": "Lower distance correlation hides pictures (Vepakomma et al., 2020)",
        "adversarial": "Training against a decoder resists inversion (Li et al., 2022)",
    }
    claims = []
    for name, text in said.items():
        if name in rivals and compared.verdict(name) == WORSE:
            least = max((compared.gain(d) for d in _strengths(compared, name)), key=lambda gain: gain.mean)
            because = (
                f"at its own accuracy it leaks more than noise alone at every strength, by {-least.mean:.3f} or more"
            )
            claims.append(Claim(text, "does not hold", because))
        elif name in rivals:
            claims.append(_decided(text, compared, name, NOISE))
    versus = (
        ("cem-gated (published)", "cem", "Gated attention hides more than k-means CEM (interim report, 2025)"),
        ("cem-gated", "cem-gated (published)", "Gates that cannot game themselves hide more (its next steps)"),
        ("cem-logdet", "cem", "The surrogate the theory asks for hides more than the published one (spec/cem.md)"),
        ("cem", "cem-slot (published)", "Slot attention hides less than k-means CEM (interim report, 2025)"),
    )
    return claims + [
        _decided(text, compared, name, other) for name, other, text in versus if {name, other} <= {*rivals}
    ]


def _strengths(compared: Comparison, name: str) -> list[str]:
    return list(dict.fromkeys(shot.defense for shot in compared.shots if shot.family == name))


def _decided(text: str, compared: Comparison, name: str, other: str) -> Claim:
    gain = compared.against(name, other)
    span = "one seed" if gain.low is None else f"95 % interval [{gain.low:+.3f}, {gain.high:+.3f}], {gain.n} seeds"
    because = f"leak of `{other}` minus that of `{name}` at matched accuracy: {gain.mean:+.3f} ({span})"
    doubts = compared.doubts(name)
    if gain.sign > 0 and doubts:
        flags = ", ".join(f"`{flag}`" for flag in doubts)
        return Claim(text, "cannot tell", f"{because}; but the strongest attacks on `{name}` are flagged {flags}")
    return Claim(text, _OUTCOMES[gain.sign], because)


def _plot(compared: Comparison) -> bytes:
    """Accuracy and leak of every defence: one point a strength, the mean over seeds, bars from least to most."""
    figure = Figure(figsize=(7.5, 5), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    markers = "osD^v<>PX*ph"
    names = dict.fromkeys(shot.family for shot in compared.shots)
    for marker, name in zip(markers, names, strict=False):
        own: dict[str, list[Shot]] = {}
        for shot in compared.shots:
            if shot.family == name:
                own.setdefault(shot.defense, []).append(shot)
        points = sorted(_spread(group) for group in own.values())
        accuracy, leak, below, above = zip(*points, strict=True)
        style = {"color": "black", "linewidth": 1.5} if name == NOISE else {"linewidth": 0.8}
        axes.errorbar(accuracy, leak, yerr=(below, above), marker=marker, markersize=5, capsize=2, label=name, **style)
    axes.plot([compared.chance], [0], "k+", label="nothing sent")
    axes.set(xlabel="accuracy", ylabel="leak under the strongest attack", ylim=(-0.1, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _spread(group: Sequence[Shot]) -> tuple[float, float, float, float]:
    leaks = [shot.metrics["leak"] for shot in group]
    mean = fmean(leaks)
    return fmean(shot.accuracy for shot in group), mean, mean - min(leaks), max(leaks) - mean
