"""The page of the study `peel`, from its figures alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leakscope.studies.markdown import claims, interval, origin, table
from leakscope.studies.study import Figures, published

#: Random weights, eighteen layers, no pooling, no stride.
_AS_IN_TABLE_SIX = {"U", "depth-18", "ResNet-18"}
#: Blocks a table lists; of deeper networks every second, third, …
_LISTED = 10
TITLES = {
    "faces": "Faces",
    "depths": "Depth",
    "widths": "Width",
    "xray": "Chest X-rays",
    "demo": "The demonstration",
}


def page(parts: Mapping[str, Figures]) -> str:
    """Every part that was run, in the order of `TITLES`."""
    paper = published("peel")
    sections = [
        "# PEEL: what residual networks give away\n\n"
        f"Beside the figures of {paper['source']}. There, pictures are CelebA faces and the network is IR-152; here "
        "they are what the tables say, so columns are to be compared in their order, not in their digits. MSE is on "
        "the scale 0 to 255, PSNR is averaged over pictures and ends at 100 dB. `[a, b]` is a 95 % interval over "
        "pictures *and* seeds (both resampled). *U*: random weights, *P*: trained, *M*: a max-pooling stem."
    ]
    for part in (name for name in TITLES if name in parts):
        sections += _part(part, parts[part], paper)
    return "\n\n".join(sections) + "\n"


def _part(part: str, figures: Figures, paper: Figures) -> Iterator[str]:
    configurations = {
        item["name"]: {**item, "attacks": {attack["name"]: attack for attack in item["attacks"]}}
        for item in figures["configurations"]
    }
    yield f"## {TITLES[part]}"
    if figures["claims"]:
        yield (
            "### Which of the paper's claims hold\n\nJudged with published `peel` on the same pictures and seeds, by "
            'the difference of PSNR. What "does not hurt" or "hardly matters" may cost 1 dB.'
        )
        yield claims(figures["claims"])
    if figures["strongest"]:
        yield (
            "The same questions, asked of the best attack on each picture. Where the answer differs, the claim is "
            "about PEEL's solver, not about what the network gives away. (PSNR ends at 100 dB, so large differences "
            "are at least so large.)"
        )
        yield table(("Statement", "Here", "Because"), _outcomes(figures["strongest"]))
    yield "### Every configuration"
    yield table(("Configuration", "Attack", "MSE", "PSNR (dB)", "leak", "Flags"), list(_configurations(configurations)))
    yield _networks(configurations)
    if part == "faces":
        yield f"### Beside tables II and III\n\n{_capital(paper['faces']['what'])}; mean ± standard deviation."
        yield table(
            (
                "Configuration",
                "PEEL here: MSE",
                "PSNR",
                "Best of ours: MSE",
                "PSNR",
                "II: MSE",
                "PSNR",
                "III: MSE",
                "PSNR",
            ),
            list(_beside(configurations, paper["faces"])),
        )
    if part == "widths":
        yield f"### Beside table IV\n\n{_capital(paper['widths']['what'])}, so no column of ours stands beside it."
        yield table(("Stage", *paper["widths"]["IV"]), list(_table_four(paper["widths"]["IV"])))
    if figures["layers"]:
        yield from _layers(figures["layers"], configurations, paper["layers"])
    if part == "faces":
        yield from _runtime(configurations, paper["runtime"])
        yield from _recognition(paper["recognition"])
    yield _limits(configurations)
    yield from _pictures(part, configurations, bool(figures["layers"]))
    yield origin(figures["origin"])


def _outcomes(entries: list[Mapping[str, str]]) -> Iterator[tuple[str, str, str]]:
    for entry in entries:
        yield entry["text"], f"**{entry['outcome']}**", entry["because"]


def _configurations(configurations: Figures) -> Iterator[tuple[object, ...]]:
    for name, configuration in configurations.items():
        for attack, found in configuration["attacks"].items():
            flags = ", ".join(f"`{flag}`" for flag in found["flags"]) or "none"
            yield name, f"`{attack}`", interval(found["mse"]), interval(found["psnr"]), interval(found["leak"]), flags


def _networks(configurations: Figures) -> str:
    header = ("Configuration", "Network", "Side", "Features per pixel value", "Accuracy")
    rows = []
    for name, configuration in configurations.items():
        accuracy = ", ".join(
            f"{value:.0%}" + ("" if defense == "none" else f" with {defense}")
            for defense, value in configuration["accuracy"].items()
        )
        shown = accuracy if configuration["trained"] else "untrained"
        rows.append((name, f"`{configuration['model']}`", str(configuration["side"]), configuration["ratio"], shown))
    return table(header, rows)


def _beside(configurations: Figures, paper: Figures) -> Iterator[tuple[object, ...]]:
    for name in paper["II"]:
        here = configurations.get(name, {}).get("attacks", {})
        own = here.get("peel")
        ours = {kind: here[kind] for kind in ("peel-exact", "e2e-lbfgs") if kind in here}
        if name == "embedding":
            own, ours = configurations.get("U", {}).get("attacks", {}).get("embedding"), {}
        best = max(ours.values(), key=lambda found: float(found["psnr"]["mean"]), default=None)
        yield (name, *_measured(own), *_measured(best), *_printed(paper["II"][name]), *_printed(paper["III"][name]))


def _measured(found: Mapping[str, Any] | None) -> tuple[str | None, str | None]:
    if found is None:
        return None, None
    return interval(found["mse"]), interval(found["psnr"])


def _printed(entry: Mapping[str, Any]) -> tuple[str, str]:
    (mse, mse_spread), (psnr, psnr_spread) = entry["mse"], entry["psnr"]
    return f"{mse:.0f} ± {mse_spread:.0f}", f"{psnr:.1f} ± {psnr_spread:.1f}"


def _table_four(entries: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    for stage in ("1", "2", "3", "4"):
        yield (stage, *(" / ".join(_printed(networks[stage])) for networks in entries.values()))


def _layers(layers: list[Figures], configurations: Figures, paper: Figures) -> Iterator[str]:
    yield (
        "### Block by block\n\nRelative error ‖x̂ − x‖/‖x‖ of the input of each block, mean over three victims of the "
        "first seed. `peel` and `peel-exact` solve for it from the features at the cut, so errors pile up from the "
        "last block to the first; for the others it is what their picture implies. The paper's column is "
        f"{paper['what']}; its errors fall towards the first block, so they were probably not piled up. A block that "
        "`peel-exact` fits to the last digits and yet gets wrong *folds*: several inputs have the same output."
    )
    for item in layers:
        compared = item["rows"][0]["errors"]
        attacks = [name for name in configurations[item["name"]]["attacks"] if name in compared]
        beside = item["name"] in _AS_IN_TABLE_SIX
        rows = [
            (
                f"`{row['block']}`",
                *(row["errors"].get(name) for name in attacks),
                *([_spread(paper["VI"].get(row["block"]))] if beside else []),
            )
            for row in reversed(item["rows"])
        ]
        shown = rows if len(rows) <= _LISTED else rows[:: -(-len(rows) // _LISTED)]
        header = ("Input of", *(f"`{name}`" for name in attacks), *(["Table VI"] if beside else []))
        yield f"**{item['name']}**\n\n" + table(header, shown)


def _spread(entry: tuple[float, float] | None) -> str | None:
    return None if entry is None else f"{entry[0]:.1e} ± {entry[1]:.0e}"


def _runtime(configurations: Figures, paper: Figures) -> Iterator[str]:
    hours = ", ".join(f"{name} {value} h" for name, value in paper["IX"].items())
    yield (
        "### Runtime\n\nProcessor seconds a picture on one thread, pictures attacked together; a busy machine makes "
        "all of them longer, so compare within a row. "
        f"{_capital(paper['what'])}: {hours} (how many pictures is not said), so only ratios can be compared. "
        "`benchmarks/peel.py` measures them on larger networks."
    )
    kinds = list(
        dict.fromkeys(kind for item in configurations.values() for kind in item["attacks"] if ", " not in kind)
    )
    rows = [
        (name, *(configuration["attacks"].get(kind, {}).get("cpu_seconds") for kind in kinds))
        for name, configuration in configurations.items()
        if not any(", " in kind for kind in configuration["attacks"])
    ]
    yield table(("Configuration", *(f"`{kind}`" for kind in kinds)), rows)


def _recognition(paper: Figures) -> Iterator[str]:
    targets = list(next(iter(paper["VII"].values())))
    rows = [
        (name, *(f"{entry[target][0]:.0f} / {entry[target][1]:.0f} %" for target in targets))
        for name, entry in paper["VII"].items()
    ]
    yield (
        "### Attack accuracy and KNN distance\n\nNot measured here: these audits have no evaluation network, and a "
        f"face network for pictures this small would decide the figure. {_capital(paper['what'])}:"
    )
    yield table(("", *targets), rows)


def _limits(configurations: Figures) -> str:
    """What a sceptic should know before quoting a figure."""
    sides = sorted({item["side"] for item in configurations.values()})
    counts = [found["psnr"] for item in configurations.values() for found in item["attacks"].values()]
    trained = [value for item in configurations.values() if item["trained"] for value in item["accuracy"].values()]
    flagged = sorted(
        {flag for item in configurations.values() for a in item["attacks"].values() for flag in a["flags"]}
    )
    lines = [
        f"Pictures have {' or '.join(map(str, sides))} pixels a side, {min(c['images'] for c in counts)} of them were "
        f"attacked on the networks of {min(c['seeds'] for c in counts)} seeds; with so few seeds an interval can miss "
        "what a fourth would show.",
        "The attacker holds the weights and the features at the cut, and no pictures of its own.",
        "Rows with a flag are lower bounds of what leaks: the attack did not converge, or left features unexplained.",
    ]
    if trained:
        lines.append(
            f"Trained networks reach {min(trained):.0%} to {max(trained):.0%} accuracy on held-out pictures; better "
            "ones may fold more, or less."
        )
    if "peel" in {name for item in configurations.values() for name in item["attacks"]}:
        lines.append(
            "`peel` has the published penalties, steps and learning rate, the sign that makes equation 6 the inverse "
            "of the block, and the start and stem inversion that the paper leaves open. `embedding` runs Adam with a "
            "cosine schedule through the whole network; how the paper ran it is not said."
        )
    names = ", ".join(f"`{flag}`" for flag in flagged) or "none"
    return "### Limits\n\n" + "\n".join(f"- {line}" for line in lines) + f"\n- Flags in the table: {names}."


def _pictures(part: str, configurations: Figures, maps: bool) -> Iterator[str]:
    if part == "faces":
        yield "### Pictures\n\nFaces of real people are kept out of this repository; the report of the audit has them."
        return
    yield "### Pictures\n\nThe first victims, not picked; the top row shows the originals, then one row an attack."
    for name, configuration in configurations.items():
        rows = ", ".join(f"`{attack}`" for attack in configuration["attacks"])
        yield f"**{name}**: {rows}\n\n![Originals and reconstructions, {name}](peel/{part}-{name}.png)"
    if maps:
        first = next(iter(configurations))
        rows = ", ".join(f"`{attack}`" for attack in configurations[first]["attacks"])
        yield (
            f"Feature maps of one victim in {first}, a column a block, the first block left: the true input in the top "
            f"row, then {rows}.\n\n![Feature maps](peel/{part}-maps.png)"
        )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
