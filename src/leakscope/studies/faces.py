"""Class attacks against transfer learning and its rivals, on finished audits of faces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar, Literal

from leakscope.core.results import AttackResult, TargetRecord, from_json, to_json
from leakscope.core.spec import digest
from leakscope.studies.claims import Claim, Measured
from leakscope.studies.drawing import curves, strips, trade_off
from leakscope.studies.fisher import CLASSIFICATION, INVERSION, Comparison, compare
from leakscope.studies.page import Columns, name_of
from leakscope.studies.picks import ANY, Pick
from leakscope.studies.records import Cell, Drawn, Part, Row, Table
from leakscope.studies.study import STUDIES, Run, Runs, Study

PAPER = "Ho et al., CVPR 2024"
METRIC = "attack-accuracy"
JUDGES: Mapping[str, str] = {"network": METRIC, "embedder": "attack-accuracy:embedder"}
JUDGE_NAMES = {"network": "the evaluation network", "embedder": "the face embedding"}
#: The comparison itself; further attacks on its targets are in variants of their own. Without variants: the one audit.
MAIN = "main*|"
#: Points of attack accuracy that count.
POINTS = 0.03
#: Correlation of two profiles below which they tell different layers apart.
UNLIKE = 0.5
DEPTHS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *((f"block{number}", {"layer": f"block{number}"}) for number in range(1, 6)),
    *((name, {"network": name}) for name in (
        "vgg16-block3", "vgg16", "vgg16-conv4_2", "vgg16-block4", "vgg16-head")),
)  # fmt: skip
NONE = Pick(("none",), variant=MAIN, name="no defence")
#: Undefended targets of every length of training: what an accuracy costs without a defence.
STOPPED = Pick(("none",), variant=f"{MAIN}|early-*|stop-*", name="no defence, stopped early", stopped=True)
ALL_DEPTHS = Pick(("tl-dmi",), variant=MAIN, free=("layer", "network", "share"), name="TL-DMI", stopped=True)
RIVALS = (
    ("mid", "MID"),
    ("bido-hsic", "BiDO-HSIC"),
    ("bido-coco", "BiDO-COCO"),
    ("label-smoothing", "label smoothing"),
)
#: The paper's ordering of attacks, weaker first.
ORDER = (("gmi", "lomma-gmi"), ("lomma-gmi", "kedmi"), ("kedmi", "lomma-kedmi"))


def tl(settings: Mapping[str, Any], name: str, variant: str = MAIN, **more: Any) -> Pick:
    return Pick(("tl-dmi",), {**settings, **more}, variant, name=name)


def _claim(key: str, text: str, source: str, left: Pick, right: Pick | float, **more: Any) -> Claim:
    return Claim(key, text, f"{PAPER}, {source}", left, right, **{"metric": METRIC, "minimum": POINTS, **more})


def claims_by(judge: str) -> tuple[Claim, ...]:
    """The paper's claims, with attack accuracy as this judge sees it."""
    return tuple(replace(claim, metric=JUDGES[judge]) if claim.metric == METRIC else claim for claim in CLAIMS)


def _claims() -> Iterator[Claim]:
    yield _claim(
        "main", "at equal accuracy a target tuned in its last layers alone gives less away than one tuned in all",
        "figures 1-III and 2", ALL_DEPTHS, STOPPED, adjusted=True,
    )  # fmt: skip
    for name, settings in DEPTHS:
        ours = tl(settings, f"TL-DMI up to {name}")
        yield _claim(f"depth-{name}", f"at equal accuracy {ours.name} gives less away than no defence", "table 4", ours,
                     STOPPED, matched=True)  # fmt: skip
    ends = (("block1", "block5"), ("vgg16-block3", "vgg16-block4"))
    known = dict(DEPTHS)
    for shallow, deep in ends:
        yield _claim(
            f"deeper-{deep}", f"frozen up to {deep} a target gives less away than up to {shallow}", "figure 1-III",
            tl(known[deep], f"TL-DMI up to {deep}"), tl(known[shallow], f"TL-DMI up to {shallow}"),
        )  # fmt: skip
    for name, settings in DEPTHS:
        yield _claim(
            f"first-{name}", f"tuning the first layers (to {name}) gives more away than tuning the last", "figure 4",
            tl(settings, "tuned first", tuned="first"), tl(settings, "tuned last"), direction="more",
        )  # fmt: skip
        yield _claim(
            f"domain-{name}", f"frozen layers (to {name}) that learned from other pictures give less away", "figure 3",
            tl(settings, "pre-trained on other pictures", "other*"), tl(settings, "pre-trained on faces"),
        )  # fmt: skip
    for kind, name in RIVALS:
        rival = Pick((kind,), variant=MAIN, free=(ANY,), name=name)
        yield _claim(f"rival-{kind}", f"at equal accuracy TL-DMI gives less away than {name}", "tables 3, 8 and 10",
                     ALL_DEPTHS, rival, matched=True)  # fmt: skip
    both = Pick(("tl-dmi+bido-hsic",), variant=MAIN, free=(ANY,), name="TL-DMI with BiDO")
    yield _claim("with-bido", "TL-DMI with BiDO gives less away than BiDO alone", "figure 1-IV", both,
                 Pick(("bido-hsic",), variant=MAIN, free=(ANY,), name="BiDO"))  # fmt: skip
    for weak, strong in ORDER:
        names = [Pick(("none",), variant=MAIN, attacks=(kind,), name=kind) for kind in (strong, weak)]
        yield _claim(f"order-{strong}-{weak}", f"{strong} is recognised no less often than {weak}, within {POINTS}",
                     "tables 4 and 11", *names, direction="more", minimum=0.0, margin=POINTS)  # fmt: skip
    kedmi = ("kedmi",)
    for name, settings in DEPTHS:
        left = Pick(("tl-dmi",), settings, MAIN, attacks=kedmi, name=f"TL-DMI up to {name}")
        right = Pick(("none",), variant=MAIN, attacks=kedmi, name="no defence")
        yield _claim(f"false-{name}", f"TL-DMI up to {name} shows as false positives of KEDMI", "figures 7 and 8", left,
                     right, direction="more", metric="false-positive")  # fmt: skip
    yield _claim(
        "fisher",
        f"layers matter differently for rebuilding than for recognising (Fisher profiles correlate below {UNLIKE})",
        "figure 1-II", NONE, UNLIKE, metric="fisher-correlation", minimum=0.0,
    )  # fmt: skip
    yield _claim(
        "fisher-early", "first layers hold a larger share of the Fisher information of rebuilding than of recognising",
        "figures 1-II, 5 and 6", NONE, NONE, direction="more", metric="fisher-early-inversion",
        other_metric="fisher-early-classification", minimum=0.05,
    )  # fmt: skip


CLAIMS = tuple(_claims())


@STUDIES.register("faces", revision=3)
@dataclass(frozen=True)
class FacesStudy(Study):
    """What trained networks give away about their identities, beside the claims of TL-DMI.

    Variants `main` and `main-…` hold the comparison, `early-…` undefended targets stopped early, `other…` another
    pre-training set. Attacks of fewer steps on the undefended target give the Fisher profile over iterations.
    """

    title: ClassVar[str] = "Class attacks and transfer learning"
    question: ClassVar[str] = (
        "What do the private classes of a trained network look like, and does transfer learning (TL-DMI, Ho et al., "
        "CVPR 2024) keep them to itself? An identity counts as rebuilt when an evaluation network that no attack has "
        "read names it. The main test was declared beforehand: TL-DMI at all its depths against undefended targets at "
        "all lengths of training, with accuracy as a covariate, seeds and identities at random (analysis of "
        "covariance); 3 points of attack accuracy count."
    )
    columns: ClassVar[Columns] = (
        (METRIC, "AttAcc@1"), (JUDGES["embedder"], "AttAcc@1, embedder"), ("attack-accuracy-5", "AttAcc@5"),
        ("target-accuracy", "Accepted by target"),
        ("false-positive", "False positive"), ("knn", "KNN"), ("leak", "Leak"),
    )  # fmt: skip

    trial: str = ""
    note: str = ""
    pictures_per_profile: int = 200
    sheet: bool = False  # show identities; not those of real people
    judge: Literal["network", "embedder"] = "network"  # who decides claims about attack accuracy

    def claims(self) -> Sequence[Claim]:
        return claims_by(self.judge)

    def _profiles(self, runs: Runs) -> dict[str, Comparison]:
        """Fisher profiles of every undefended target of the comparison, by key; kept in the store."""
        found = {
            run_target[1].key: _profiles(*run_target, runs, self.pictures_per_profile)
            for run_target in runs.targets(NONE)
        }
        return {key: profiles for key, profiles in found.items() if profiles is not None}

    def measured(self, runs: Runs) -> Measured:
        profiles = self._profiles(runs)
        if not profiles:
            return {}
        return {
            "fisher-correlation": {key: own.correlation() for key, own in profiles.items()},
            "fisher-early-inversion": {key: own.early_share(INVERSION) for key, own in profiles.items()},
            "fisher-early-classification": {key: own.early_share(CLASSIFICATION) for key, own in profiles.items()},
        }

    def tables(self, runs: Runs, measured: Measured, rows: Sequence[Row]) -> Sequence[Table]:
        tables = [_lost(rows, JUDGES[self.judge]), _controls(runs)]
        for profiles in list(self._profiles(runs).values())[:1]:
            lines: tuple[tuple[Cell, ...], ...] = tuple((name, *values) for name, values in profiles.profiles.items())
            header = ("Profile", *profiles.layers)
            tables.append(Table("Fisher information by layer, first seed, largest = 1", header, lines, _FISHER))
        if measured:
            shares: tuple[tuple[Cell, ...], ...] = tuple((name, *own.values()) for name, own in measured.items())
            seeds = [f"seed {number + 1}" for number in range(len(next(iter(measured.values()))))]
            tables.append(Table("Fisher figures by seed", ("Figure", *seeds), shares))
        return tables

    def pictures(self, runs: Runs, part: Part) -> Sequence[tuple[Drawn, bytes]]:
        plot = trade_off(part.rows, JUDGES[self.judge], "attack accuracy, strongest attack on each identity", _family)
        drawn = [(Drawn("pareto.png", "Attack accuracy against natural accuracy"), plot)]
        for profiles in list(self._profiles(runs).values())[:1]:
            lines = curves(profiles.layers, profiles.profiles, "Fisher information, largest = 1")
            drawn.append((Drawn("fisher.png", "Fisher information by layer"), lines))
        if self.sheet and len(shown := _sheet(runs.first)) > 1:
            drawn.append((Drawn("faces.png", "Identities in the middle of the ranking"), strips(shown, 8)))
        return drawn

    def limits(self, runs: Runs) -> Sequence[str]:
        scene = runs.first.plan.scene
        known = scene.goal.ceilings(scene, runs.first.store)
        told = "; ".join(
            f"{JUDGE_NAMES[name]} names {share:.1%} of real held-out pictures" for name, share in known.items()
        )
        shown = () if self.sheet else ("No identity is shown: these are pictures of real people.",)
        more = "Rebuilt pictures can be easier than real ones: they show what all pictures of a person have in common."
        return (
            f"Claims and the plot take attack accuracy as {JUDGE_NAMES[self.judge]} sees it. "
            f"Chance is {1 / len(scene.splits.private.classes):.1%}; {told}. {more}",
            *shown,
        )


_FISHER = (
    "A mean over the few, widely shared weights of early layers favours them by construction, hence the controls. "
    "Centres are those of the network that is looked at; the random network has its own."
)


def _family(row: Row) -> str:
    """One line for each run of training: its stops, and its end."""
    name = {"none": "no defence"}.get(row.defense.kind, row.defense.label)
    return name if row.variant.startswith("main") or not row.variant else f"{name} ({row.variant})"


def _steps(result: AttackResult) -> float:
    steps = result.attack.settings.get("steps")
    return float(steps) if isinstance(steps, int | float) else 0.0


def _profiles(run: Run, target: TargetRecord, runs: Runs, count: int) -> Comparison | None:
    """Of KEDMI where it ran, else of the strongest attack; its shorter runs are the iterations."""
    results = runs.results_on(target)
    if not results or target.trained is None:
        return None
    strongest = max(results, key=lambda result: result.leak)
    kind = "kedmi" if any(result.attack.kind == "kedmi" for result in results) else strongest.attack.kind
    chosen = sorted((result for result in results if result.attack.kind == kind), key=_steps)
    key = digest({"fisher": [result.key for result in chosen], "pictures": count, "revision": 2})
    with run.store.claim("fisher", key) as done:
        if done is not None:
            return from_json(Comparison, done.record["fisher"])
        scene = run.plan.scene
        classes = scene.victims(target.seed).labels
        guesses = {f"inversion after {_steps(result):g} steps": _first_of_each(run, result) for result in chosen}
        rebuilt = {name: guess for name, guess in guesses.items() if guess is not None}
        network = run.network(target)
        if network is None or len(rebuilt) < len(guesses):
            return None  # they are in another store, and so would be the profiles
        found = compare(network, run.untrained(target), scene.splits, classes, rebuilt, count)
        run.store.put("fisher", key, {"fisher": to_json(found)})
        return found


def _first_of_each(run: Run, result: AttackResult) -> Any:
    guess = run.guess(result)
    return None if guess is None else guess[:: len(guess) // len(run.plan.scene.first_victims)]


def _controls(runs: Runs) -> Table:
    rows = tuple(
        (variant, control.kind.value, one.attack, one.where, one.value, one.required, "yes" if one.passed else "no")
        for variant, run in runs.runs.items()
        for control in run.report.controls
        for one in control.results
    )
    header = ("Audit", "Control", "Attack", "Where", "Value", "Required", "Passed")
    return Table("Controls", header, rows)


def _sheet(run: Run) -> dict[str, Any]:
    """Identities in the middle of the ranking: a private picture, then the strongest attack on each target."""
    first = [target for target in run.report.targets if target.record.seed == run.plan.seeds[0]]
    twin = next((target for target in first if target.record.undefended), first[0])
    assert twin.strongest is not None
    order = run.values(run.report.result(twin.strongest))["leak"].argsort()
    middle = order[max(0, len(order) // 2 - 4) :][:8]
    found = {"private picture": run.plan.scene.first_victims.images[middle]}
    for target in first:
        guess = None if target.strongest is None else _first_of_each(run, run.report.result(target.strongest))
        if guess is not None:
            found[target.record.defense.label] = guess[middle]
    return found


def lost_per_point(row: Row, twin: Row, metric: str) -> Cell:
    """The paper's Δ: points of attack accuracy lost per point of accuracy; None where no accuracy was lost."""
    cost = fmean(twin.accuracies) - fmean(row.accuracies)
    return (twin.worst_case[metric].value - row.worst_case[metric].value) / cost if cost > 0 else None


def _lost(rows: Sequence[Row], metric: str) -> Table:
    rows = [row for row in rows if row.stop is None]
    twin = next((row for row in rows if row.defense.kind == "none" and metric in row.worst_case), None)
    listed = (
        ()
        if twin is None
        else tuple((name_of(row), lost_per_point(row, twin, metric)) for row in rows if row is not twin)
    )
    header = ("Target", "Δ")
    return Table(
        "Points of attack accuracy lost per point of accuracy", header, listed, "A dash: no accuracy was lost."
    )
