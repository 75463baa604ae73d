"""What the page says in plain words. Verdicts, evidence, controls and flags have theirs in `core.words`."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.core.reports import Provenance


@dataclass(frozen=True)
class Subject:
    """What was rebuilt, and what the numbers about it mean."""

    one: str
    many: str
    scale: str  # of leak, in half a sentence
    leak: str
    pair: str  # what stands beside what


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

UNLABELLED = Subject(
    "picture",
    "pictures",
    "Leak runs from 0, nothing beyond the mean picture, to 1, the exact picture. These pictures have no labels, so "
    "leak is measured against the mean picture, and accuracy is not defined.",
    "The share of a picture's pixel variance that the attack recovered beyond the mean public picture. 0: nothing more "
    "than that. 1: the exact picture. Below 0: worse than guessing the mean picture.",
    PICTURES.pair,
)

#: For a goal that this page has no words for.
ANY = Subject(
    "victim",
    "victims",
    "Leak runs from 0, nothing beyond what the attacker knew before, to 1, everything.",
    "The share that the attack recovered, between what can be had without observing anything (0) and everything (1).",
    "In each pair the original is on the left and what the attacker rebuilt is on the right.",
)
#: By the goal of an audit.
SUBJECTS = {"pictures": PICTURES, "identities": IDENTITIES, "unlabelled": UNLABELLED}


def subject_of(goal: str) -> Subject:
    """Words for what this goal rebuilds."""
    return SUBJECTS.get(goal, ANY)


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
    "random-public": "A public picture drawn at random",
    "untrained": "The same attack on a network never trained on the data",
    "nearest-public": "Oracle: the nearest public picture, chosen by looking at the victim",
}

#: Floors that look at the victim: no attacker can have them without an observation.
ORACLES = frozenset({"nearest-public"})

GLOSSARY = (
    (
        "Accuracy",
        "How often the network is right on the pictures of the part heldout. A network that leaks little because it "
        "learnt little is no use, so the two always stand side by side.",
    ),
    (
        "Floor",
        "What an attacker gets without observing anything, such as a mean picture. Only what lies above the floor was "
        "leaked by the network.",
    ),
    (
        "Oracle",
        "The public picture nearest to the victim's, found by looking at the victim. No attacker can look, so this is "
        "no floor: it only says how alike the attacker's pictures and the victims' are.",
    ),
    ("Interval", "Where the mean would likely lie for other pictures of the same kind (bootstrap over victims)."),
    ("Worst", "The single most exposed victim. A mean can be comfortable while one person's picture is not."),
    (
        "Over all attacks",
        "An attacker may try them all. The leak is that of the strongest attack, corrected for having been chosen; "
        "other metrics take for each victim the attack that did best on it.",
    ),
    (
        "Rebuilt almost whole",
        "Victims whose own leak passed 0.9 under any attack, and the exact 95 % upper bound on their share among all "
        "others. A low mean does not protect every person.",
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


def capital(text: str) -> str:
    """With a capital first; the rest as it is."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """A clause as a sentence: a capital first, a stop last."""
    return capital(text) + ("" if text.endswith((".", "!", "?")) else ".")


def provenance(found: Provenance | None) -> str:
    """Where the results come from, and what that means for a gate."""
    if found is None:
        return "Where its results come from was not kept."
    if not found.found:
        return f"All {found.results} results were computed in this run."
    came = f"{found.found} of {found.results} results were in the store before this run"
    if found.signed:
        return f"{came}; all of them are signed with LEAKSCOPE_STORE_KEY."
    if found.rescored:
        return (
            f"{came}, unsigned: their scores were computed again from the stored reconstructions and are the same. "
            "Reconstructions, targets and controls were believed as stored; only a signed store proves who wrote them."
        )
    return f"{came}, unsigned, and were believed as stored: hashes find damage, not somebody who rewrites both."


#: Said beside a bound that an attack went below.
BEATEN = (
    "An attack did better than a bound (beaten): what the bound assumes does not hold for these pictures, "
    "so believe the attack."
)
