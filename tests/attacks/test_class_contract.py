"""Every class attack meets the contract; one that reaches for what it was not handed fails it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.errors import NotGranted, UsageError
from leakscope.core.results import Diagnostics
from leakscope.core.threat import Access, View
from leakscope.testing import AttackContract
from leakscope.testing.synthetic import small_view

LINEAR = {"kind": "linear", "components": 8}
TINY_GAN = {"kind": "dcgan", "width": 4, "latent": 8, "steps": 2, "opening": 0}
TINY_STYLE = {"kind": "style", "width": 4, "latent": 8, "steps": 2, "opening": 0}

ATTACKED: dict[str, dict[str, object]] = {
    "class-map": {"kind": "class-map", "images": 2, "steps": 8},
    "gmi": {"kind": "gmi", "images": 2, "steps": 20},
    "kedmi": {"kind": "kedmi", "images": 2, "steps": 20},
    "vmi": {"kind": "vmi", "images": 3, "steps": 8, "batch": 4, "couplings": 2, "hidden": 6},
    "lomma-gmi": {"kind": "lomma-gmi", "images": 2, "steps": 8, "students": [4, 6], "epochs": 1},
    "lomma-kedmi": {
        "kind": "lomma-kedmi", "images": 2, "steps": 8, "students": [4], "epochs": 1, "feature": "sampled",
    },
    "ppa": {"kind": "ppa", "images": 2, "candidates": 20, "starts": 4, "steps": 6, "views": 4},
    "mirror": {"kind": "mirror", "images": 2, "samples": 30, "steps": 6},
    "mirror-blackbox": {"kind": "mirror-blackbox", "samples": 40, "population": 10, "generations": 4},
    "brepmi": {"kind": "brepmi", "steps": 4, "points": 8, "draws": 600, "images": 2},
    "miface": {"kind": "miface", "steps": 20},
}  # fmt: skip
for name in set(ATTACKED) - {"miface"}:
    ATTACKED[name]["prior"] = LINEAR

NETWORKS = {
    "gmi": TINY_GAN, "kedmi": {"kind": "kedmi-gan", "base": TINY_GAN, "steps": 2}, "vmi": TINY_STYLE,
    "ppa": TINY_STYLE, "mirror": TINY_STYLE, "mirror-blackbox": TINY_STYLE, "brepmi": TINY_GAN,
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKED)
class TestClassAttack(AttackContract):
    @pytest.fixture
    def attack(self, name: str) -> Attack:
        return ATTACKS.build(ATTACKED[name])


@pytest.mark.parametrize("name", NETWORKS)
def test_with_a_network_for_a_prior(name: str) -> None:
    """The usual kind of prior, hardly trained: the parts of the contract that a prior could break."""
    attack = ATTACKS.build({**ATTACKED[name], "prior": NETWORKS[name]})
    AttackContract().test_a_class_is_the_same_alone_and_in_a_batch(attack)
    AttackContract().test_same_seed_same_output(attack)


class _Cheat(Attack):
    needs: ClassVar[frozenset[Access]] = frozenset({Access.LABELS})
    goal: ClassVar[str] = "identities"

    def look(self, view: View) -> object:
        raise NotImplementedError

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        assert seen.classes is not None
        self.look(view)
        return Reconstruction(torch.zeros(len(seen.classes), *view.image_shape), Diagnostics(per_class=1))


@dataclass(frozen=True)
class _ReadsEvaluator(_Cheat):
    def look(self, view: View) -> object:
        return view.evaluator  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _ReadsPrivate(_Cheat):
    def look(self, view: View) -> object:
        return view.private.images  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _ReadsWeights(_Cheat):
    def look(self, view: View) -> object:
        return view.network


@dataclass(frozen=True)
class _OpensOracle(_Cheat):
    def look(self, view: View) -> object:
        return view._granted[Access.LABELS].__self__._target


@dataclass(frozen=True)
class _OpensFile(_Cheat):
    def look(self, view: View) -> object:
        return open("/work/private.npz", "rb")  # noqa: PTH123


@pytest.mark.parametrize("cheat", [_ReadsEvaluator, _ReadsPrivate, _ReadsWeights, _OpensOracle, _OpensFile])
def test_a_cheat_fails_its_contract(cheat: type[_Cheat], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotGranted):
        AttackContract().test_sees_only_its_view(cheat(), monkeypatch)


@dataclass(frozen=True)
class _AsksUncounted(_Cheat):
    def look(self, view: View) -> object:
        view.labels(view.public.images[:3])
        return view._granted[Access.LABELS].__self__._target.run(view.public.images[:9])


def test_an_uncounted_question_fails_the_contract() -> None:
    with pytest.raises(AssertionError):
        AttackContract().test_every_question_is_counted(_AsksUncounted())


@pytest.mark.parametrize("name", ["mirror-blackbox", "brepmi"])
def test_a_prior_that_reads_scores_is_paid_for(name: str) -> None:
    prior = {"kind": "kedmi-gan", "base": TINY_GAN, "steps": 1}
    attack = ATTACKS.build({**ATTACKED[name], "prior": prior})
    refused = "raise queries" if name == "mirror-blackbox" else "choose a prior that reads none"
    with pytest.raises(UsageError, match=refused):  # 160 public pictures are scored; labels alone do not teach it
        AttackContract().run(attack, small_view(attack.needs, queries=100))
    if name == "mirror-blackbox":
        view = small_view(attack.needs, queries=220)
        AttackContract().run(attack, view)
        assert 170 <= view.budget.spent <= 220


def test_without_public_pictures_there_is_no_prior() -> None:
    from leakscope.core import seeds
    from leakscope.core.threat import ThreatModel, grant
    from leakscope.testing.synthetic import CPU, image_set, small_split

    attack = ATTACKS.build(ATTACKED["gmi"])
    threat = ThreatModel(attack.needs, public_data=False)
    view = grant(small_split(), threat, image_set(20, "public"), seeds.generator(0, "o"), classes=3, device=CPU)
    with pytest.raises(UsageError, match="public_data"):
        AttackContract().run(attack, view)


def test_a_prior_of_another_size_is_refused_before_any_work() -> None:
    from leakscope.testing.synthetic import SHAPE, small_split

    attack = ATTACKS.build("gmi:prior={kind: dcgan, size: 64}")
    reason = attack.unsuited(small_split(), SHAPE)
    assert reason is not None
    assert "\n" not in reason
    with pytest.raises(UsageError):
        AttackContract().run(attack, small_view(attack.needs))


def test_one_class_is_no_class() -> None:
    import dataclasses

    for name in ("gmi", "brepmi"):
        attack = ATTACKS.build(ATTACKED[name])
        view = dataclasses.replace(small_view(attack.needs), classes=1)
        with pytest.raises(UsageError, match="one class"):
            AttackContract().run(attack, view)


@pytest.mark.parametrize(
    "spec",
    [
        "gmi:steps=-1", "gmi:momentum=1", "gmi:bound=0", "kedmi:images=0", "kedmi:learning_rate=0",
        "vmi:couplings=0", "vmi:divergence=-1", "lomma-gmi:students=[0]", "lomma-kedmi:feature_weight=-1",
        "lomma-gmi:student_rate=0", "class-map:shift=1", "class-map:weight=-1",
        "lomma-gmi:feature=median", "ppa:images=300", "ppa:crop=0", "mirror:samples=4", "mirror:deviations=0",
        "mirror-blackbox:population=1", "mirror-blackbox:confidence=2", "brepmi:radius=0", "brepmi:points=0",
        "miface:confidence=0", "miface:window=0", "gmi:prior=gan", "gmi:prior=linear:component=3",
    ],
)  # fmt: skip
def test_impossible_settings_are_one_line(spec: str) -> None:
    with pytest.raises(UsageError) as error:
        ATTACKS.build(spec)
    assert "\n" not in str(error.value)


def test_both_lengths_of_vmi() -> None:
    from leakscope.attacks.vmi import PRESETS, Vmi

    assert Vmi(**PRESETS["vmi-320"]) == Vmi()  # type: ignore[arg-type]
    full = Vmi(**PRESETS["vmi-full"])  # type: ignore[arg-type]
    assert (full.steps, full.batch) == (31 * 157, 64)
