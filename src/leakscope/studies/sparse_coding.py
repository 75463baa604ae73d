"""The trial of the sparse-coding architecture: does it hide pictures better than its rivals and its own twin?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

from leakscope.studies.claims import Claim, Measured
from leakscope.studies.drawing import bars, points, strips
from leakscope.studies.page import Columns
from leakscope.studies.picks import ANY, Pick
from leakscope.studies.records import Drawn, Part, Row, Table
from leakscope.studies.sparse_features import embeddings, silhouettes
from leakscope.studies.sparse_time import epoch_seconds
from leakscope.studies.study import STUDIES, Run, Runs, Study

THREATS = ("split", "end-to-end")
#: On grey pictures linear layers follow the sparse ones, on colour pictures convolutions do.
SPARSE = ("sca", "sca-conv")
PAPER = "Dibbo et al., ECCV 2024"
RIVALS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("Gaussian noise 0.5", "gaussian", {"sigma": 0.5}),
    ("Gaussian noise 1", "gaussian", {"sigma": 1.0}),
    ("Laplace noise 0.5", "laplace", {"scale": 0.5}),
    ("Laplace noise 1", "laplace", {"scale": 1.0}),
    ("GAN", "gan-augment", {}),
    ("Gong et al.", "gong", {}),
    ("Gong et al.++", "gong++", {}),
    ("DP-SGD", "dp-sgd", {}),
    ("BiDO", "bido-hsic", {}),
    ("MID", "mid", {}),
)
#: Rivals that a class attack meets as well; noise as the paper adds it, after training.
_PLAYED: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("Gaussian noise 0.5", "gaussian", {"sigma": 0.5, "in_training": False, "layers": "dense"}),
    *(rival for rival in RIVALS if rival[0] in {"BiDO", "MID"}),
)
#: What stands behind two layers of each kind, and the layer that gives it.
PLACES = {
    "two linear layers": (Pick(("none",), variant="linear", name="two linear layers"), "relu2"),
    "two convolutions": (Pick(("none",), variant="split", name="two convolutions"), "norm2"),
    "two sparse layers": (Pick(SPARSE, {"sparsity": 0.25}, "split", name="two sparse layers"), "norm2"),
}
#: A leak up to this is next to nothing; accuracy that may be lost; decibels by which trainings may differ more.
NOTHING, COMPARABLE, STEADY = 0.1, 0.02, 0.5


def sca(strength: float | str, threat: str, **settings: Any) -> Pick:
    """Two sparse layers of one strength."""
    name = ", ".join([f"SCA λ {strength}" if strength != ANY else "SCA", *(f"{k} {v}" for k, v in settings.items())])
    return Pick(SPARSE, {"sparsity": strength, **settings}, threat, name=name)


def _of_threat(threat: str) -> Iterator[Claim]:
    ours = sca(0.5, threat)

    def less(key: str, text: str, right: Pick | float, **more: Any) -> Claim:
        left = more.pop("left", ours)
        return Claim(f"{threat}-{key}", f"{threat}: {text}", more.pop("source", PAPER), left, right, **more)

    twin = Pick(("none",), variant=threat, name="no defence")
    yield less("twin", "SCA (λ 0.5) leaks less than its undefended twin", twin)
    rows = Pick(("none",), variant=f"{threat}-rows", name="the paper's undefended network")
    yield less("rows", "SCA (λ 0.5) leaks less than the paper's undefended network", rows)
    one = Pick(("sparse-standard",), variant=threat, name="one sparse layer")
    yield less("one-layer", "SCA (λ 0.5) leaks less than one sparse layer does", one)
    yield less("strength", "more sparsity hides more (λ 0.5 against 0.1)", sca(0.1, threat), source=f"{PAPER}, table 6")
    for name, kind, settings in RIVALS:
        rival = Pick((kind,), settings, threat, name=name)
        yield less(f"against-{name}", f"SCA (λ 0.5) leaks less than {name}", rival)
    noise = Pick(("gaussian", "laplace"), variant=threat, free=("sigma", "scale"), name="noise")
    yield less("noise", "at equal accuracy SCA leaks less than noise", noise, left=sca(ANY, threat), matched=True)
    yield less(
        "destroyed", f"reconstructions under SCA (λ 0.5) are destroyed (leak below {NOTHING})", NOTHING, minimum=0.0
    )
    for strength in (0.1, 0.25, 0.5):
        yield less(
            f"accuracy-{strength}", f"SCA (λ {strength}) keeps the accuracy of its twin within {COMPARABLE}", twin,
            left=sca(strength, threat), metric="accuracy", direction="more", margin=COMPARABLE, minimum=0.0,
        )  # fmt: skip
    yield less(
        "kernel", "a kernel of 7 is more accurate than one of 5 (λ 0.1)", sca(0.1, threat), metric="accuracy",
        left=sca(0.1, f"{threat}-forms", kernel=7), direction="more", minimum=0.0, source=f"{PAPER}, table 15",
    )  # fmt: skip
    yield less(
        "steady", f"PSNR under SCA (λ 0.5) varies over trainings no more than its twin's, within {STEADY} dB", twin,
        metric="psnr", spread=True, margin=STEADY, minimum=0.0, source=f"{PAPER}, tables 13 and 14",
    )  # fmt: skip


def _features_and_time() -> Iterator[Claim]:
    sparse, _ = PLACES["two sparse layers"]
    for name in ("two linear layers", "two convolutions"):
        yield Claim(
            f"scatter-{name}", f"classes lie closer together behind two sparse layers than behind {name} (silhouette)",
            f"{PAPER}, figures 6 and 9", sparse, PLACES[name][0], metric="silhouette",
        )  # fmt: skip
    ours = sca(0.25, "split")
    for name, kind in (("BiDO", "bido-hsic"), ("Gong et al.++", "gong++")):
        yield Claim(
            f"time-{kind}", f"SCA trains faster than {name}", f"{PAPER}, table 16", ours,
            Pick((kind,), variant="split", name=name), metric="epoch-seconds", minimum=0.0,
        )  # fmt: skip


def _of_classes() -> Iterator[Claim]:
    """Plug-&-Play: the attacker has pictures of other classes, so that what it shows of these came from the network."""
    variant = "plug-and-play-disjoint"
    for name, kind, settings in (("its undefended twin", "none", {}), *_PLAYED):
        yield Claim(
            f"plug-and-play-{kind}", f"Plug-&-Play: fewer of SCA's classes (λ 0.5) are recognised than of {name}",
            f"{PAPER}, tables 1 and 7", sca(0.5, variant), Pick((kind,), settings, variant, name=name),
            metric="attack-accuracy",
        )  # fmt: skip


CLAIMS = (*(claim for threat in THREATS for claim in _of_threat(threat)), *_of_classes(), *_features_and_time())


@STUDIES.register("sparse-coding", revision=2)
@dataclass(frozen=True)
class SparseCodingStudy(Study):
    """Ten defences and the undefended twin under the paper's threats, beside its tables.

    The variants `split`, `end-to-end` and `plug-and-play` (`-disjoint`: public classes are not private ones) are the
    threats, `*-rows` and `*-forms` the paper's own undefended network and single changes, `linear` gives the features
    behind two linear layers.
    """

    title: ClassVar[str] = "Sparse coding against model inversion"
    question: ClassVar[str] = (
        "Does a network whose first layers are sparse-coding layers resist inversion better than nine rival defences "
        "(Dibbo et al., ECCV 2024)? In the code published with the paper no attacker is trained, no dictionary is "
        "updated and several rivals do nothing. Here all of it is built as described, every defence meets the same "
        "trained attacks, and a twin of the same shape with convolutions in place of sparse layers is beside it."
    )
    columns: ClassVar[Columns] = (("leak", "Leak"), ("psnr", "PSNR"), ("ssim", "SSIM"), ("attack-accuracy", "AttAcc@1"))

    trial: str = ""
    note: str = ""

    def claims(self) -> Sequence[Claim]:
        return CLAIMS

    def measured(self, runs: Runs) -> Measured:
        scattered = {
            key: value for pick, layer in PLACES.values() for key, value in silhouettes(runs, pick, layer).items()
        }
        seconds = epoch_seconds(runs["split"]) if "split" in runs else {}
        return {name: own for name, own in (("silhouette", scattered), ("epoch-seconds", seconds)) if own}

    def tables(self, runs: Runs, measured: Measured, rows: Sequence[Row]) -> Sequence[Table]:
        del rows
        found = [_notes(runs)]
        targets = {key: target for run in runs.runs.values() for key, target in run.targets.items()}
        for name, own in measured.items():
            by_defense: dict[str, list[float]] = {}
            for key, value in own.items():
                target = targets[key]
                by_defense.setdefault(f"{target.model.kind}, {target.defense.label}", []).append(value)
            listed = tuple((defense, fmean(values), str(len(values))) for defense, values in by_defense.items())
            found.append(Table(f"{name} by target", ("Target", "Mean over seeds", "Seeds"), listed))
        return [table for table in found if table.rows]

    def pictures(self, runs: Runs, part: Part) -> Sequence[tuple[Drawn, bytes]]:
        leaks = {
            f"{row.variant}: {row.defense.label}": row.worst_case["leak"] for row in part.rows if row.variant in THREATS
        }
        drawn = [(Drawn("leak.png", "Leak of the strongest attack, by threat and defence"), bars(leaks, "leak"))]
        for threat in THREATS:
            if threat in runs and len(shown := _rebuilt(runs[threat])) > 1:
                drawn.append((Drawn(f"{threat}.png", f"Reconstructions, {threat}"), strips(shown)))
        panels = embeddings(runs, PLACES)
        if panels:
            drawn.append((Drawn("umap.png", "UMAP of held-out pictures behind two layers"), points(panels)))
        return drawn

    def limits(self, runs: Runs) -> Sequence[str]:
        del runs
        return (
            "DP-SGD protects the pictures of training; held-out victims are not what it is made for.",
            "Scatter of features says nothing of what can be rebuilt from them.",
        )


def _notes(runs: Runs) -> Table:
    """Density of the sparse codes and budgets of DP-SGD, as the defences note them."""
    rows = {
        (f"{variant}: {target.defense.label}", name, _told(value))
        for variant, run in runs.runs.items()
        for target in run.targets.values()
        for name, value in target.notes.items()
        if target.seed == run.plan.seeds[0]
    }
    return Table(
        "What the defences note about the first seed's training", ("Target", "Note", "Value"), tuple(sorted(rows))
    )


def _told(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_told(own)}" for name, own in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _rebuilt(run: Run) -> dict[str, Any]:
    """Victims above what the strongest attack on each defence made of them, on the first seed, where that is kept."""
    found: dict[str, Any] = {"original": run.plan.scene.first_victims.images}
    for target in run.report.targets:
        if target.record.seed == run.plan.seeds[0] and target.strongest is not None:
            best = run.report.result(target.strongest)
            if (guess := run.guess(best)) is not None:
                found[f"{target.record.defense.label} ({best.attack.kind})"] = guess
    return found
