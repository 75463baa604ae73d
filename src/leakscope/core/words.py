"""Verdicts on audits and on claims, evidence levels, controls, flags: these words stand here, and all import them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Severity = Literal["blocks", "warns"]


class Verdict(StrEnum):
    """What an audit says."""

    PASS = "pass"  # noqa: S105 (no password)
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    MEASURED = "measured"

    @property
    def exit_code(self) -> int:
        return {Verdict.PASS: 0, Verdict.MEASURED: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 4}[self]


#: A verdict as a title, and what it means. None of these says more, or less, than the audit's own sentence.
VERDICTS: dict[Verdict, tuple[str, str]] = {
    Verdict.MEASURED: ("Measured", "No limit was set, so nothing was judged: this page reports what was measured."),
    Verdict.PASS: ("Pass", "The limit that was set was kept, on evidence of the level that was asked for."),
    Verdict.FAIL: (
        "Fail",
        "More could be recovered than the limit that was set allows. A failure is valid at every level of evidence: "
        "what was rebuilt here can be rebuilt.",
    ),
    Verdict.INCONCLUSIVE: (
        "Inconclusive",
        "This is not a pass. What was rebuilt is a lower bound; the doubts that keep the audit from saying more are "
        "listed below.",
    ),
}

LEVELS = ("E0", "E1", "E2", "E3")
#: A level of evidence as a title, and what stands behind it.
EVIDENCE: dict[str, tuple[str, str]] = {
    "E0": (
        "Smoke test",
        "Some attacks, one seed. A leak that was found is real; others may have been missed.",
    ),
    "E1": ("Full suite", "The fixed suite of attacks, three seeds, controls passed, floors subtracted."),
    "E2": (
        "Adaptive",
        "The full suite, an attack that trains on what this defence releases, a planted canary found, and no gain from "
        "a larger budget, another start or more data.",
    ),
    "E3": ("Contested", "Adaptive evidence, and an outside attack that rebuilds more than the label tells."),
}


class Ruled(StrEnum):
    """What the judge says of a published claim."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    CANNOT_TELL = "cannot tell"


class DoubtKind(StrEnum):
    """Why a number may not mean what it seems to; any of them makes the verdict "cannot tell"."""

    CONTROL_FAILED = "control failed"
    NOT_CONVERGED = "attack not converged"
    LINEAR_BEATS_STRONG = "linear attack beats the strong one"
    BLACK_BOX_BEATS_WHITE_BOX = "black box beats white box"
    WEAKENED_RIVAL = "rival weaker than published"
    BLIND_ATTACKER = "blind attacker"
    ACCURACY_COLLAPSED = "accuracy collapsed"
    NOT_MATCHED = "accuracy not matched"
    NOT_MEASURED = "not measured"
    OTHER = "other doubt"


class Control(StrEnum):
    """A test of the audit itself."""

    POSITIVE = "positive"  # the attack inverts a network that hides nothing
    NEGATIVE = "negative"  # nothing is found where there is nothing
    CANARY = "canary"  # the attack finds a copy of the picture planted in the defended features
    BUDGET = "budget"  # more steps, more data and another start rebuild no more


CONTROLS: dict[Control, str] = {
    Control.POSITIVE: "Positive control",
    Control.NEGATIVE: "Negative control",
    Control.CANARY: "Canary",
    Control.BUDGET: "Budget control",
}

SEVERITIES: dict[Severity, str] = {"blocks": "Blocks the verdict", "warns": "Worth knowing"}


class FlagId(StrEnum):
    """Reasons to doubt a number."""

    CONTROL_FAILED = "control-failed"
    CLASS_CONTROL_FAILED = "class-control-failed"
    TARGET_UNCONVINCED = "target-unconvinced"
    WEAK_ON_CONTROL = "weak-on-control"
    CANARY_MISSED = "canary-missed"
    NEGATIVE_CONTROL = "negative-control"
    DIVERGED = "attack-diverged"
    NOT_CONVERGED = "not-converged"
    MORE_BUDGET_HELPS = "more-budget-helps"
    ACCURACY_COLLAPSED = "accuracy-collapsed"
    LINEAR_BEATS_STRONG = "linear-beats-strong"
    BLACK_BOX_WINS = "black-box-beats-white-box"
    ZERO_GRADIENT = "zero-gradient"
    FEATURES_UNEXPLAINED = "features-unexplained"
    NOISE_NOT_AVERAGED = "noise-not-averaged"
    SINGLE_CLASS_MEANS = "single-class-means"
    BLIND = "blind-attacker"
    LINEAR_BEATS_ALL = "linear-beats-all"
    RELEASE_DIFFERS = "release-differs"
    BATCH_DEPENDENT = "batch-dependent-release"
    VICTIMS_EXPOSED = "victims-exposed"
    UNSTEADY = "unsteady-release"
    UNEVEN = "uneven-release"
    CHAOTIC = "chaotic-release"
    SERVER_SEES_MORE = "server-sees-more"
    UNREAD = "unread-release"
    UNUSED = "unused-release"
    UNDONE = "server-undoes"
    OPAQUE = "opaque-server"
    NEAR_DUPLICATES = "near-duplicates"


@dataclass(frozen=True)
class Rule:
    """What a flag means. A blocking flag turns "pass" into "inconclusive"."""

    severity: Severity
    explanation: str


FLAGS: dict[FlagId, Rule] = {
    FlagId.CONTROL_FAILED: Rule("blocks", "The attack could not invert an encoder that sends the picture itself, so its failure elsewhere says nothing."),
    FlagId.CLASS_CONTROL_FAILED: Rule("blocks", "The attack could not satisfy a target that scores the distance to each class's mean picture, so its failure elsewhere says nothing."),
    FlagId.TARGET_UNCONVINCED: Rule("blocks", "The target itself does not accept the reconstructions: the search inside the prior did not converge."),
    FlagId.WEAK_ON_CONTROL: Rule("blocks", "The attack inverts a lossless encoder of easy pictures but not of these: it needs more public pictures or more steps, and what it rebuilt is a lower bound."),
    FlagId.CANARY_MISSED: Rule("blocks", "The attack missed a lossless copy of the picture planted in the defended features."),
    FlagId.NEGATIVE_CONTROL: Rule("blocks", "Reconstructions fit pictures of other victims: the evaluation itself leaks."),
    FlagId.DIVERGED: Rule("blocks", "Some solves left their problem: not finite, or explaining no more than zeros would. What they rebuilt says nothing."),
    FlagId.NOT_CONVERGED: Rule("blocks", "The attack's own objective was still improving steeply when its budget ended, or what it rebuilt does not explain the features it was given."),
    FlagId.MORE_BUDGET_HELPS: Rule("blocks", "A larger budget rebuilt noticeably more: the reported leak is a lower bound."),
    FlagId.ACCURACY_COLLAPSED: Rule("blocks", "The target's accuracy is far below its undefended twin's, or near chance: it hides pictures only because it no longer works."),
    FlagId.LINEAR_BEATS_STRONG: Rule("warns", "A linear inverter recovers more than this attack, which is therefore too weak or badly tuned here."),
    FlagId.BLACK_BOX_WINS: Rule("warns", "An attack without gradients beats this one: gradients are masked, or the search is stuck."),
    FlagId.ZERO_GRADIENT: Rule("warns", "The encoder's gradient vanishes for some victims (rounding, saturation): search sees nothing, other attacks may."),
    FlagId.FEATURES_UNEXPLAINED: Rule("warns", "What this attack rebuilt does not explain the features it was given (a block that loses dimensions or folds, a solve that diverged or stopped early); another attack on this target does, and recovers no less."),
    FlagId.NOISE_NOT_AVERAGED: Rule("warns", "The release is random and this attack does not take its expectation."),
    FlagId.BLIND: Rule("blocks", "Every attack rebuilt less than the mean picture of the class that the server itself reads from the same features: the attacks miss what is there, and their failure says nothing."),
    FlagId.LINEAR_BEATS_ALL: Rule("blocks", "A linear inverter recovers more than every attack that is trained or searches: none of them was strong enough here to say what is left."),
    FlagId.RELEASE_DIFFERS: Rule("blocks", "The network's accuracy on the features that the attacker observed is far below its reported accuracy, or those features are not what the same pictures release otherwise: what was attacked is not what is used."),
    FlagId.BATCH_DEPENDENT: Rule("blocks", "What is released for a picture depends on the pictures sent beside it, so that attacks that query one picture at a time see something else."),
    FlagId.VICTIMS_EXPOSED: Rule("blocks", "Some victims' own pictures were rebuilt almost completely (own leak above 0.9) although the mean is low: a low mean does not protect every person. Set a limit such as exposed<=0.05."),
    FlagId.UNSTEADY: Rule("blocks", "The same pictures with the same random numbers were released differently: what was attacked need not be what is sent next."),
    FlagId.UNEVEN: Rule("blocks", "Some pictures can be told from every other by what is released for them, others cannot: a low mean does not protect every person."),
    FlagId.CHAOTIC: Rule("blocks", "A change of the picture that nobody sees moves many released features as much as another picture would, without any noise being drawn: they follow from the picture by a code that no attack can learn, and whoever holds the key reads them."),
    FlagId.SERVER_SEES_MORE: Rule("blocks", "Ridge on the server's own activations rebuilds clearly more than every attack did: it is in the released features, and the attacks missed it."),
    FlagId.UNREAD: Rule("blocks", "The release follows small changes of a picture in every direction, tells which parts a mosaic is made of, or spells every picture in symbols of its own, and yet no attack reads half of it: the picture is in it, in a form that none of the attacks reads."),
    FlagId.UNUSED: Rule("blocks", "Many released features tell pictures of one class apart, the server does not need them, and no attack reads them: they may be a message to somebody else. Send only what the server uses."),
    FlagId.UNDONE: Rule("blocks", "The server works out numbers that the client computed and that cannot be read from what was sent by a linear reader: it undoes what the client did, and so can anybody who holds it. Cut behind the layer that undoes it."),
    FlagId.OPAQUE: Rule("blocks", "The server's answer does not follow from the released features by operations that can be watched (its half of the network leaves PyTorch, or switches gradients off), so nobody can tell what it reads."),
    FlagId.NEAR_DUPLICATES: Rule("blocks", "Some victims' pictures are nearly the same as a public picture: the attacker already has the answer, or the victim is not private."),
    FlagId.SINGLE_CLASS_MEANS: Rule("warns", "Public data lacks some victims' classes; their floor is the overall mean picture."),
}  # fmt: skip

#: Flags that say an attack failed where success was certain: with them no statement is possible.
CONTROLS_FAILED = frozenset({FlagId.CONTROL_FAILED, FlagId.CLASS_CONTROL_FAILED, FlagId.NEGATIVE_CONTROL})
