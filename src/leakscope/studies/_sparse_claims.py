"""What the paper on sparse coding claims, and how each claim is decided here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, median, stdev

from torch import Tensor

from leakscope.studies._crossed import crossed_interval
from leakscope.studies.study import Claim, Figures, Outcome

#: Fewer pictures or seeds decide nothing that depends on chance.
LEAST_IMAGES, LEAST_SEEDS = 20, 3
#: Accuracy a defence may lose and still count as comparable.
COMPARABLE = 0.02
#: A target this far below its twin hides pictures by being useless.
USELESS = 0.1
SPARSE = ("sparse-standard", "sca:sparsity=0.1", "sca", "sca:sparsity=0.5")


#: Fields that tell two entries of one defence apart; how long a GAN trains does not.
STRENGTHS = ("sigma", "scale", "sparsity")


def known_as(defense: str) -> str:
    """A defence as the published figures name it: its kind and its strength."""
    kind, _, settings = defense.partition(":")
    kept = [item for item in settings.split(",") if item.partition("=")[0] in STRENGTHS]
    return f"{kind}:{','.join(kept)}" if kept else kind


@dataclass(frozen=True)
class Trial:
    """One threat: seeds × pictures of the best attack on every picture, and accuracies by seed."""

    leak: dict[str, Tensor]
    psnr: dict[str, Tensor]
    accuracy: dict[str, list[float]]


def claims(trials: Mapping[str, Trial], figures: Figures) -> Iterator[Claim]:
    for threat, found in trials.items():
        if {"none", *SPARSE} <= set(found.leak):
            yield from _of_threat(threat, found)
    if figures.get("separability"):
        yield _scattered(figures["separability"])
    if figures.get("seconds"):
        yield _time(figures["seconds"])


def _of_threat(threat: str, found: Trial) -> Iterator[Claim]:
    strongest = "sca:sparsity=0.5"
    yield _less(f"{threat}: SCA (λ 0.5) leaks less than no defence", found, strongest, "none")
    yield _less(f"{threat}: SCA (λ 0.5) leaks less than one sparse layer does", found, strongest, "sparse-standard")
    yield _less(f"{threat}: more sparsity hides more (λ 0.5 against 0.1)", found, strongest, "sca:sparsity=0.1")
    yield _best_of_all(threat, found)
    yield _destroyed(threat, found)
    yield _accuracy(threat, found)
    yield _stable(threat, found)


def _decided(interval: Mapping[str, float | int]) -> Outcome:
    """A difference that should be negative."""
    if interval["images"] < LEAST_IMAGES or interval["seeds"] < LEAST_SEEDS:
        return "cannot tell"
    if interval["high"] < 0:
        return "holds"
    return "does not hold" if interval["low"] > 0 else "cannot tell"


def _less(text: str, found: Trial, first: str, second: str) -> Claim:
    difference = crossed_interval(found.leak[first] - found.leak[second])
    because = (
        f"worst-case leak {float(found.leak[first].mean()):.2f} against {float(found.leak[second].mean()):.2f}, "
        f"difference {difference['mean']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]"
    )
    return Claim(text, _decided(difference), because)


def _best_of_all(threat: str, found: Trial) -> Claim:
    """Against every rival that is still of use, one interval each."""
    text = f"{threat}: SCA (λ 0.5) beats all rival defences"
    ours, twin = found.leak["sca:sparsity=0.5"], fmean(found.accuracy["none"])
    rivals = [name for name in found.leak if name not in {"none", *SPARSE} and not name.startswith("sca")]
    useful = [name for name in rivals if fmean(found.accuracy[name]) > twin - USELESS]
    against = {name: crossed_interval(ours - found.leak[name]) for name in useful}
    better = [name for name, gap in against.items() if gap["low"] > 0]
    beaten = [name for name, gap in against.items() if gap["high"] < 0]
    few = len(ours) < LEAST_SEEDS or ours.shape[1] < LEAST_IMAGES
    outcome: Outcome = "does not hold" if better else "holds" if len(beaten) == len(useful) else "cannot tell"
    lost = [name for name in rivals if name not in useful]
    because = (
        f"of {len(useful)} rivals within {USELESS:.0%} of the twin's accuracy it leaks less than {len(beaten)}"
        + (f" and more than {', '.join(better)}" if better else "")
        + (f"; left out as useless: {', '.join(lost)}" if lost else "")
    )
    return Claim(text, "cannot tell" if few else outcome, because)


#: A leak up to this is next to nothing.
NOTHING = 0.1


def _destroyed(threat: str, found: Trial) -> Claim:
    """ "Visually destroyed": nothing beyond what the class alone tells."""
    leak = crossed_interval(found.leak["sca:sparsity=0.5"])
    because = (
        f"the best attack recovers {leak['mean']:.0%} [{leak['low']:.0%}, {leak['high']:.0%}] of the pixel variance "
        f"that the class leaves open, at {float(found.psnr['sca:sparsity=0.5'].mean()):.1f} dB"
    )
    few = leak["images"] < LEAST_IMAGES or leak["seeds"] < LEAST_SEEDS
    # One training from which pictures are rebuilt refutes it; that none is takes several.
    outcome: Outcome = "does not hold" if leak["low"] > NOTHING else "cannot tell"
    if leak["high"] <= NOTHING and not few:
        outcome = "holds"
    return Claim(f"{threat}: reconstructions under SCA (λ 0.5) are destroyed", outcome, because)


def _accuracy(threat: str, found: Trial) -> Claim:
    twin = fmean(found.accuracy["none"])
    ours = {name: fmean(found.accuracy[name]) for name in SPARSE[1:]}
    outcome: Outcome = "holds" if min(ours.values()) >= twin - COMPARABLE else "does not hold"
    shown = ", ".join(f"{name} {value:.3f}" for name, value in ours.items())
    return Claim(
        f"{threat}: SCA keeps the accuracy of no defence",
        outcome if len(found.accuracy["none"]) >= LEAST_SEEDS else "cannot tell",
        f"twin of the same shape {twin:.3f}; {shown} (comparable: within {COMPARABLE:.0%})",
    )


def _stable(threat: str, found: Trial) -> Claim:
    text = f"{threat}: SCA is as stable over runs as the other defences"
    if len(found.psnr["sca"]) < LEAST_SEEDS:
        return Claim(text, "cannot tell", f"{len(found.psnr['sca'])} seed: no spread to compare")
    spread = {name: stdev(table.mean(1).tolist()) for name, table in found.psnr.items()}
    ours = max(spread[name] for name in SPARSE[1:])
    others = median(value for name, value in spread.items() if not name.startswith("sca"))
    because = f"largest deviation over seeds {ours:.2f} dB; median of the others {others:.2f} dB"
    return Claim(text, "holds" if ours <= others else "does not hold", because)


def _scattered(separability: Figures) -> Claim:
    """The paper's reading of its UMAP: points behind sparse layers are more scattered, so safer."""
    text = "Features behind two sparse layers are more scattered than behind two linear or convolutional ones"
    behind = {name: fmean(seed["silhouette"] for seed in rows) for name, rows in separability.items()}
    shown = ", ".join(f"{name} {value:+.3f}" for name, value in behind.items())
    others = [value for name, value in behind.items() if name != "sparse"]
    outcome: Outcome = "holds" if others and behind["sparse"] < min(others) else "does not hold"
    few = len(separability["sparse"]) < LEAST_SEEDS or len(behind) < 3
    because = f"silhouette of the classes, trained networks: {shown}; scatter says nothing of what can be rebuilt"
    return Claim(text, "cannot tell" if few else outcome, because)


def _time(seconds: Figures) -> Claim:
    text = "SCA trains faster than BiDO and slower than the other defences"
    own = {name: entry["epoch"] for name, entry in seconds.items()}
    if not {"sca", "bido-hsic", "none"} <= set(own):
        return Claim(text, "cannot tell", "not all of them were timed")
    slower = [name for name, value in own.items() if value > own["sca"] and not name.startswith("sca")]
    because = (
        f"an epoch costs {own['sca'] / own['none']:.1f}× the twin's, BiDO's {own['bido-hsic'] / own['none']:.1f}×"
        + (f"; slower than SCA: {', '.join(slower)}" if slower else "; none is slower")
    )
    return Claim(text, "holds" if slower == ["bido-hsic"] else "does not hold", because)
