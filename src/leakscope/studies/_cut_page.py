"""The page of the study `cut-defences`, from its figures alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from leakscope.studies.markdown import claims, number, origin, table
from leakscope.studies.study import Figures


def page(parts: Mapping[str, Figures]) -> str:
    sections = [
        "# Defences at the cut",
        "CEM in all its forms, its rivals, and Gaussian noise alone on a network cut in two, each met by attackers "
        "trained on the defended features. *Leak* is the share of pixel variance recovered beyond what the label "
        "tells, under the strongest attack on each target. `[a, b]` is a 95 % interval over seeds (Student's t); "
        "what is compared within a seed is subtracted there first.",
    ]
    for part, figures in parts.items():
        sections += _part(part, figures)
    return "\n\n".join(sections) + "\n"


def _part(part: str, figures: Figures) -> Iterable[str]:
    setting = figures["setting"]
    yield f"## {part}"
    yield (
        f"`{setting['model']}`, features {'×'.join(map(str, setting['features']))}, {setting['private']} private, "
        f"{setting['heldout']} held-out and {setting['public']} public pictures, {setting['epochs']} epochs, "
        f"{setting['victims']} victims, seeds {', '.join(map(str, setting['seeds']))}. Attacks: "
        f"{', '.join(f'`{attack}`' for attack in setting['attacks'])}."
    )
    undefended = next(target for target in figures["targets"] if target["defense"] == "none")["accuracy"]["mean"]
    yield (
        f"The undefended network gets {100 * undefended:.0f} % right (the published one, after 240 epochs and under "
        f"its defences, some 85 %): what follows is about networks trained this far. {setting['note']}"
    ).strip()
    yield "### Who beats noise alone"
    yield _plainly(figures["verdicts"])
    yield table(
        ("Defence", "Verdict", "Leaks less than noise alone by"),
        ((name, found["verdict"], _mean(found["gain"])) for name, found in figures["verdicts"].items()),
    )
    yield (
        "The last column is the mean over the accuracies of the next table. Where a curve has no target, it is "
        "interpolated on its frontier: a client that picks one of two targets at random is on the line between them. "
        "Every curve starts at the undefended target and ends where nothing is sent (accuracy of a guess, no leak); "
        "that of a defence also holds the noise it is stacked with, at λ = 0. Intervals are not corrected for the "
        "number of defences compared: a lower end near zero is weak evidence."
    )
    yield "### At matched accuracy"
    costs = list(next(iter(figures["matched"].values())))
    yield table(
        ("Leak of", *(f"{100 * float(cost):.0f} points given up" for cost in costs)),
        ((name, *(_mean(found[cost]["leak"]) for cost in costs)) for name, found in figures["matched"].items()),
    )
    yield table(
        ("Less than noise alone", *(f"{100 * float(cost):.0f} points given up" for cost in costs)),
        (
            (name, *(_mean(found[cost]["gain"]) for cost in costs))
            for name, found in figures["matched"].items()
            if name in figures["verdicts"]
        ),
    )
    yield f"![accuracy and leak](cut-defences/{part}-plot.png)"
    if figures["claims"]:
        yield "### Published statements"
        yield claims(figures["claims"])
    yield "### Every target"
    yield (
        "Means over seeds, strongest attack. *PSNR* is averaged over pictures, *pooled* is the logarithm of the mean "
        "error; *SSIM* counts windows inside the picture, *padded* those over the border too: the second of each "
        "pair is the convention of CEM's code. *Worst case* is the leak when each picture meets the attack that suits "
        "it best, *worst picture* that of the most exposed. *Gain* is how much less it leaks than noise alone at its "
        "own accuracy."
    )
    yield table(
        ("Defence", "Accuracy", "MSE", "SSIM", "padded", "PSNR", "pooled", "Leak", "Worst case", "Worst picture",
         "Strongest", "Gain"),
        (_row(target) for target in figures["targets"]),
    )  # fmt: skip
    published = figures["published"]
    yield f"Published ({published['source']}), for the order of the columns only:"
    yield table(
        ("Defence", "Accuracy", "MSE", "SSIM padded", "PSNR pooled"),
        (
            (name, row["accuracy"], row["mse"], row["ssim-padded"], row["psnr-pooled"])
            for name, row in published["rows"].items()
        ),
    )
    if figures["gaming"]:
        yield "### Do the surrogates game themselves?"
        yield (
            "First and last values in training. A penalty that falls while the spread of the features within classes "
            "does not, or an effective share of samples near zero, is a surrogate that lowers its own penalty."
        )
        yield table(
            ("Defence", "Penalty", "Variance within classes", "Effective share of samples"),
            (
                (
                    row["defense"],
                    *(_change(row[name]) for name in ("penalty", "within_class_variance", "effective_sample_share")),
                )
                for row in figures["gaming"]
            ),
        )
    yield origin(figures["origin"]) + (
        f" Training took {setting['training_seconds'] / 60:.1f} minutes (both are summed over stages, on a machine "
        "shared with other work)."
    )


def _plainly(verdicts: Mapping[str, Mapping[str, Any]]) -> str:
    grouped: dict[str, list[str]] = {}
    for name, found in verdicts.items():
        grouped.setdefault(found["verdict"], []).append(f"`{name}`")
    return "\n".join(
        f"- **{verdict[0].upper()}{verdict[1:]}**: {', '.join(names)}." for verdict, names in grouped.items()
    )


def _row(target: Mapping[str, Any]) -> tuple[object, ...]:
    means = [target[name]["mean"] for name in ("accuracy", "mse", "ssim", "ssim-padded", "psnr", "psnr-pooled")]
    gain = None if target["gain"] is None else _mean(target["gain"])
    return (
        f"`{target['defense']}`", *means, _mean(target["leak"]), target["worst_case"], target["worst_picture"],
        ", ".join([*target["strongest"], *(f"`{flag}`" for flag in target.get("doubts", []))]), gain,
    )  # fmt: skip


def _mean(figures: Mapping[str, Any]) -> str:
    if figures["low"] is None:
        return number(figures["mean"])
    return f"{number(figures['mean'])} [{number(figures['low'])}, {number(figures['high'])}]"


def _change(values: Mapping[str, float]) -> str:
    return f"{number(values['first'])} → {number(values['last'])}"
