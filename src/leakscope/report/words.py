"""What the report says in plain words; the audit's own identifiers map to sentences here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Subject:
    """What was rebuilt, and what the numbers about it mean."""

    one: str
    many: str
    scale: str  # of leak, in half a sentence
    leak: str
    pair: str  # what stands beside what

    @classmethod
    def of(cls, audit: Mapping[str, Any]) -> Subject:
        """Identities where an evaluation network recognised them, pictures otherwise."""
        return IDENTITIES if "attack-accuracy" in audit["metrics"] else PICTURES


PICTURES = Subject(
    "picture",
    "pictures",
    "Leak runs from 0, nothing beyond the class label, to 1, the exact picture.",
    "The share of a picture's pixel variance that the attack recovered beyond what the class label alone tells. "
    "0: nothing more than the label. 1: the exact picture. Below 0: worse than guessing the class's mean picture.",
    "In each pair the original is on the left and what the attacker rebuilt is on the right.",
)
IDENTITIES = Subject(
    "identity",
    "identities",
    "Leak runs from 0, recognised no more often than by chance, to 1, as often as real pictures.",
    "How often a network that no attack has read recognises the rebuilt identity, between chance (0) and how often "
    "it recognises real pictures (1). Above 1: more often than real pictures, which are harder. Below 0: less than "
    "by chance.",
    "In each pair a private picture of the identity, which the attacker never saw, is on the left and what the "
    "attacker rebuilt is on the right.",
)

VERDICTS = {
    "measured": ("Measured", "No limit was set, so nothing was judged: this page reports what was measured."),
    "pass": ("Pass", "The limit that was set was kept, on evidence of the level that was asked for."),
    "fail": ("Fail", "More could be recovered than the limit that was set allows."),
    "inconclusive": ("Inconclusive", "The audit could not tell. This is not a pass: what is missing is listed below."),
}

EVIDENCE = {
    "E0": ("Smoke test", "A quick look that shows the tools run; not to be compared or relied upon."),
    "E1": ("Full suite", "The fixed suite of attacks, three seeds, controls passed, floors subtracted."),
    "E2": (
        "Adaptive",
        "The full suite, and an attack made against this defence, a planted canary found, no budget left to help.",
    ),
    "E3": ("Contested", "Adaptive evidence, and an outside attempt or a stated mathematical bound."),
}

ACCESS = {
    "labels": "The predicted class of any picture it sends",
    "scores": "All class scores of any picture it sends",
    "features": "The features the network released for each person's picture",
    "query": "The released features of any picture it sends",
    "encoder": "The weights of the half that runs on the person's device",
    "head": "The weights of the half that runs on the server",
}

FLOORS = {
    "mean": "The mean public picture",
    "class-mean": "The mean public picture of the right class",
    "nearest-public": "The nearest public picture",
    "random-public": "A public picture drawn at random",
    "untrained": "The same attack on a network never trained on the data",
}

CONTROLS = {
    "positive": "Positive control",
    "negative": "Negative control",
    "canary": "Canary",
}

SEVERITIES = {
    "blocks": "Blocks the verdict",
    "warns": "Worth knowing",
}

GLOSSARY = (
    (
        "Accuracy",
        "How often the network is right on pictures it was not trained on. A network that leaks little because it "
        "learnt little is no use, so the two always stand side by side.",
    ),
    (
        "Floor",
        "What an attacker gets without observing anything: a mean picture, or the nearest picture it already owns. "
        "Only what lies above the floor was leaked by the network.",
    ),
    ("Interval", "Where the mean would likely lie for other pictures of the same kind (bootstrap over victims)."),
    ("Worst", "The single most exposed victim. A mean can be comfortable while one person's picture is not."),
    (
        "Worst case over attacks",
        "For each victim the attack that did best on it, then the mean. An attacker may try them all.",
    ),
    (
        "SSIM",
        "Structural similarity, from about 0 (unrelated) to 1 (identical); closer to what the eye sees than pixels.",
    ),
    ("PSNR, MSE", "Pixel error on a logarithmic and on a squared scale. High PSNR or low MSE: closer to the original."),
    ("Cut", "The layer after which features leave the person's device."),
    (
        "Control",
        "A test of the audit itself: an attack that cannot break an open door proves nothing about a closed one.",
    ),
    (
        "Flag",
        "A sign that an attack may have been weaker than it could be, so that a low leak should not be trusted yet.",
    ),
)

FRAMEWORKS = (
    "Some rules and catalogues ask whether pictures can be rebuilt from a model. EDPB Opinion 28/2024 asks those who "
    "call a model anonymous to document that the likelihood of extracting personal data from it is insignificant. "
    "OWASP AISVS C11.2 asks for mitigation of membership inference and model inversion. MITRE ATLAS lists the attack "
    "as AML.T0024.001. The measurements on this page can be filed as evidence under each, for the threat model stated "
    "above and no other. They are not a legal assessment."
)


def sentence(text: str) -> str:
    """A clause as a sentence: a capital first, a stop last."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
