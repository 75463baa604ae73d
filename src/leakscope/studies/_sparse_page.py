"""The page of the trial of sparse coding, from its JSON alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leakscope.studies import markdown
from leakscope.studies.markdown import number, table
from leakscope.studies.study import Figures

INTRODUCTION = """\
# Sparse coding against model inversion

Dibbo et al. (ECCV 2024) claim that a network whose first layers are sparse-coding layers resists inversion better
than nine rival defences. In the code published with it no attacker is trained, no dictionary is updated and several
rivals do nothing. Here all of it is built as described, every defence meets the same trained attacks, and a twin of
the same shape with convolutions in place of sparse layers is beside it.

*Leak* is the share of pixel variance recovered beyond what the class alone tells; *worst case* takes for every
picture the attack that rebuilt it best. PSNR and SSIM have the fixed range [0, 1]; FID is computed in the features of
the named network over all victims of a seed. **The paper's figures are not on the same scale as ours**: {note}
They stand here so that rankings can be compared, not numbers."""


def page(parts: Mapping[str, Figures], paper: Figures) -> str:
    blocks = [INTRODUCTION.format(note=paper["note"])]
    for name, figures in parts.items():
        blocks += list(_part(name, figures, paper))
    blocks.append(f"Published figures: {paper['source']}.")
    return "\n\n".join(blocks) + "\n"


def _part(name: str, figures: Figures, paper: Figures) -> Iterator[str]:
    yield f"## {name}"
    yield markdown.claims(figures["claims"])
    for threat, found in figures["threats"].items():
        yield from _threat(name, threat, found, figures["published"].get(threat, {}))
    yield f"### {name}: sparsity\n\n![leak and accuracy against λ](sparse-coding/{name}-sparsity.png)"
    if found := {t: f for t, f in figures["threats"].items() if len(f["seeds"]) > 1}:
        yield from _stability(name, found, paper)
    yield from _separability(name, figures)
    yield from _seconds(name, figures, paper)
    yield markdown.origin(figures["origin"])


def _threat(name: str, threat: str, found: Figures, paper: Figures) -> Iterator[str]:
    features = "×".join(str(side) for side in found["features"])
    yield (
        f"### {name}: {threat}\n\n"
        f"`{found['model']}` cut at `{found['cut']}` ({features} numbers), {found['private']} private and "
        f"{found['public']} public pictures, {found['epochs']} epochs, {found['victims']} victims, "
        f"{len(found['seeds'])} seed{'s' if len(found['seeds']) > 1 else ''}; the mean picture alone gives "
        f"{found['floor']['mean_picture_psnr']:.1f} dB. Verdict of the audit: {found['verdict']}.\n\n"
        "Best attack on every picture (worst case), against the trained decoder alone:"
    )
    fid = next((a["fid_network"] for d in found["defenses"].values() for a in d["attacks"].values() if "fid" in a), "")
    header = (
        "defence", "accuracy", "leak, worst case", "PSNR, worst case", "SSIM, worst case", "worst picture",
        "decoder: leak", "PSNR", "SSIM", fid or "FID", "strongest", "paper: PSNR", "SSIM", "FID", "accuracy",
    )  # fmt: skip
    yield table(header, (_row(key, own, paper.get(key, {})) for key, own in found["defenses"].items()))
    kinds = list(dict.fromkeys(kind for own in found["defenses"].values() for kind in own["attacks"]))
    yield "Leak by attack:"
    rows = (
        [key, *(own["attacks"].get(kind, {}).get("leak") for kind in kinds)] for key, own in found["defenses"].items()
    )
    yield table(("defence", *kinds), rows)
    density = [
        (key, ", ".join(f"{layer} {number(v['density'])}" for layer, v in own["notes"]["sparse_layers"].items()))
        for key, own in found["defenses"].items()
        if own["notes"].get("sparse_layers")
    ]
    if density:
        yield table(("defence", "share of codes that are not zero"), density)
    budget = [own["notes"] for own in found["defenses"].values() if "epsilon" in own["notes"]]
    if budget:
        epsilon, delta = budget[0]["epsilon"], budget[0]["delta"]
        yield f"dp-sgd: ε = {number(epsilon)} at δ = {number(delta)}, for training pictures; it hides no picture sent."
    yield f"![reconstructions](sparse-coding/{name}-{threat}.png)"


def _row(key: str, own: Figures, paper: Mapping[str, Any]) -> list[object]:
    decoder = own["attacks"].get("decoder", {})
    return [
        key, _pm(own["accuracy"]), markdown.interval(own["leak"]), number(own["psnr"]["mean"]), own["ssim"],
        own["worst_picture"], decoder.get("leak"), decoder.get("psnr"), decoder.get("ssim"), decoder.get("fid"),
        ", ".join(own["strongest"]), paper.get("psnr"), paper.get("ssim"), paper.get("fid"), paper.get("accuracy"),
    ]  # fmt: skip


def _pm(figures: Figures) -> str:
    return number(figures["mean"]) + (f" ± {number(figures['std'])}" if figures["std"] is not None else "")


def _stability(name: str, threats: Figures, paper: Figures) -> Iterator[str]:
    yield f"### {name}: stability over seeds\n\nWorst-case PSNR by seed. Paper: {paper['stability_note']}."
    for threat, found in threats.items():
        rows = (
            [key, *own["psnr_by_seed"], _published_spread(paper["stability"].get(key))]
            for key, own in found["defenses"].items()
        )
        yield table((f"{threat}", *(f"seed {seed}" for seed in found["seeds"]), "paper, medical"), rows)


def _published_spread(entry: Mapping[str, float] | None) -> str | None:
    return None if entry is None else f"{entry['psnr']} ± {entry['std']}"


def _separability(name: str, figures: Figures) -> Iterator[str]:
    if not figures["separability"]:
        return
    yield f"### {name}: where features lie\n\nHeld-out pictures behind two layers of trained networks, a row a seed."
    rows = (
        [kind, seed["silhouette"], seed["neighbours"]]
        for kind, seeds in figures["separability"].items()
        for seed in seeds
    )
    yield table(("two layers", "silhouette of the classes", "15 nearest neighbours agree with the class"), rows)
    if figures.get("umap"):
        yield f"![UMAP](sparse-coding/{name}-umap.png)"


def _seconds(name: str, figures: Figures, paper: Figures) -> Iterator[str]:
    if not figures["seconds"]:
        return
    yield (
        f"### {name}: compute time\n\nProcessor seconds of an epoch of 256 pictures, one thread, one process, and of "
        f"what a defence prepares before (a GAN). Paper: {paper['seconds_note']}."
    )
    base, theirs = figures["seconds"]["none"]["epoch"], paper["seconds"]["none"]
    rows = []
    for key, own in figures["seconds"].items():
        published = paper["seconds"].get(key)
        ratio = None if published is None else published / theirs
        rows.append([key, own["epoch"], own["epoch"] / base, own["before"], published, ratio])
    yield table(("defence", "epoch, s", "÷ twin", "before, s", "paper, s", "÷ no defence"), rows)
