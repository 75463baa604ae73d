"""The page of the face studies, drawn from their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any, get_args

from leakscope.studies.markdown import claims, interval, origin, table
from leakscope.studies.study import Outcome, published

TITLES = {
    "toy": "Drawn faces (embedded data)",
    "lfw": "Labeled Faces in the Wild",
    "celeba": "CelebA, the published protocol",
}


def page(parts: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        "# Class attacks and transfer learning",
        "",
        "What do the private classes of a trained network look like, and does transfer learning (TL-DMI, Ho et al., "
        "CVPR 2024) keep them to itself? An identity counts as rebuilt when an evaluation network that no attack has "
        "read names it. Intervals are 95 %, over identities and target seeds drawn anew together; differences are "
        "paired. A claim holds only when its interval excludes zero and three trainings of each target were attacked: "
        "with fewer, intervals tell how identities differ and not how trainings do, and nothing is claimed.",
        "",
    ]
    for part, figures in parts.items():
        lines += [f"## {TITLES.get(part, part)}", "", *_part(part, figures)]
    lines += ["## What the paper reports", "", *_published()]
    return "\n".join(lines) + "\n"


def _part(part: str, figures: Mapping[str, Any]) -> list[str]:
    floors = ", ".join(f"{name} {value:.1%}" for name, value in figures["floors"].items())
    return [
        f"{figures['identities']} identities, target seeds: {figures['seeds']}. Chance is {figures['chance']:.1%}; "
        f"real held-out photos score {figures['ceiling']:.1%}; without asking the target: {floors}. "
        f"{figures.get('note', '')}".strip(),
        "",
        "### Claim by claim",
        "",
        _counted(figures["claims"]),
        "",
        claims(figures["claims"]),
        "",
        "### Accuracy and attack accuracy",
        "",
        f"![Attack accuracy against natural accuracy](faces/{part}-pareto.png)",
        "",
        _targets(figures),
        "",
        "`Less` is the paired drop of attack accuracy against the undefended target, Δ that drop for each point of "
        "accuracy lost (the paper's measure; undefined where no accuracy was lost).",
        "",
        "### Controls",
        "",
        "A target that scores the distance to each class's mean picture must accept what was rebuilt for it (0.9 or "
        "more). Where nothing is known nobody may be recognised: the low end of the 95 % interval of leak (0 is "
        "chance, 1 what real photos score) is at chance when it is not above 0.",
        "",
        _controls(figures),
        "",
        *_middle(part, figures),
        "### Fisher information",
        "",
        f"Reconstructions by `{figures['fisher'].get('attack', 'none').partition(':')[0]}`. A mean over the few, "
        "widely shared weights of early layers favours them by construction, hence the controls and, in the JSON, "
        "sums and weighted sums.",
        "",
        f"![Fisher profiles](faces/{part}-fisher.png)",
        "",
        origin(figures["origin"]),
        "",
    ]


def _counted(entries: list[Mapping[str, str]]) -> str:
    """`Of 18 claims 4 held, 2 did not, and 12 could not be told from these numbers.`"""
    count = {outcome: sum(entry["outcome"] == outcome for entry in entries) for outcome in get_args(Outcome)}
    holds, fails, unknown = count.values()
    untold = f"{unknown} could not be told from these numbers"
    return f"Of {len(entries)} claims {holds} held, {fails} did not, and {untold}."


def _middle(part: str, figures: Mapping[str, Any]) -> list[str]:
    if not figures["sheet"]:
        return ["No identity is shown: these are pictures of real people.", ""]
    return ["### The middle of the ranking", "", f"![Identities of middling leak](faces/{part}-faces.png)", ""]


def _targets(figures: Mapping[str, Any]) -> str:
    rows = []
    for target in figures["targets"]:
        name = target["defense"] if target["variant"] == "main" else f"{target['variant']}: {target['defense']}"
        for attack, found in target["attacks"].items():
            less = found.get("less than undefended")
            rows.append(
                (
                    name, f"{fmean(target['accuracy']):.1%}",
                    f"{attack} (strongest)" if attack == target["strongest"] else attack,
                    interval(found["attack-accuracy"]), interval(found["attack-accuracy-5"]),
                    found["target-accuracy"]["mean"], found["false-positive"]["mean"], found["knn"]["mean"],
                    interval(less) if less else None,
                    (found["delta"] if found["delta"] is not None else "undefined") if less else None,
                )
            )  # fmt: skip
    header = (
        "Target",
        "Accuracy",
        "Attack",
        "AttAcc@1",
        "AttAcc@5",
        "Accepted by target",
        "False positive",
        "KNN",
        "Less",
        "Δ",
    )
    return table(header, rows)


#: Targets that know nothing, and reconstructions under other names.
IGNORANT = ("random weights", "permuted labels", "shuffled identities")


def _controls(figures: Mapping[str, Any]) -> str:
    rows = []
    for variant, controls in figures["controls"].items():
        found = controls["negative"]["targets"]
        for attack, accepted in controls["positive"]["attacks"].items():
            lows = [found.get(f"{attack}, {name}") for name in IGNORANT]
            at_chance = all(low <= 0 for low in lows if low is not None)
            rows.append((variant, attack.partition(":")[0], accepted, *lows, "yes" if at_chance else "no"))
    return table(("Audit", "Attack", "Accepted by class templates", *map(str.capitalize, IGNORANT), "At chance"), rows)


def _published() -> list[str]:
    figures = published("faces")
    rows = [
        (row["defense"], row["accuracy"], *(row["attacks"].get(a) for a in figures["attacks"]))
        for row in figures["rows"]
    ]
    return [figures["source"] + ":", "", table(("Defence", "Accuracy", *figures["attacks"]), rows), ""]
