"""Targets are chosen by what their configuration says."""

from __future__ import annotations

from typing import Any

import pytest

from leakscope.core.attack import ATTACKS
from leakscope.core.defense import DEFENSES, build_defense
from leakscope.core.results import Method
from leakscope.studies.cut_defences import NOISE, family
from leakscope.studies.picks import ANY, Pick, attack_identity, weakened, weaker_settings
from leakscope.studies.sparse_coding import sca

from .world import target


def fits(pick: Pick, defense: Any, variant: str = "split") -> bool:
    return pick.fits(variant, target(defense, 0))


def test_kernel_seven_is_not_kernel_five() -> None:
    plain, tuned = sca(0.1, "split"), sca(0.1, "split", kernel=7)
    assert fits(plain, "sca:sparsity=0.1")
    assert not fits(plain, "sca:sparsity=0.1,kernel=7")
    assert fits(tuned, "sca:sparsity=0.1,kernel=7")
    assert not fits(tuned, "sca:sparsity=0.1")


def test_both_kinds_of_sparse_layers_are_one_arm_and_no_third_is() -> None:
    pick = sca(0.25, "split")
    assert fits(pick, "sca")
    assert fits(pick, "sca-conv")
    assert not fits(pick, "sparse-standard")
    assert not fits(pick, "sca:sparsity=0.5")
    assert not fits(pick, "sca", "end-to-end")


def test_a_weakened_method_is_found_and_doubted() -> None:
    pick = Pick(("gong",))
    assert fits(pick, "gong:gan_steps=200")
    assert not fits(pick, "gong:gamma=1.0")
    assert weakened(Method.of(build_defense("gong:gan_steps=200"))) == ["gong with gan_steps = 200 (published: 800)"]
    assert weakened(Method.of(build_defense("gong:gan_steps=1000"))) == []
    stack = Method.of(build_defense("gaussian+adversarial:blocks=0,weight=3"))
    assert weakened(stack) == ["adversarial with blocks = 0 (published: 4)"]
    assert weakened(Method.of(build_defense("gaussian:at_release=false")))


def test_the_list_of_weaker_settings_names_settings_that_exist_and_calls_no_default_weak() -> None:
    for kind, rules in weaker_settings().items():
        settings = Method.of(DEFENSES.build(kind)).settings
        assert set(rules) <= set(settings)
        assert not weakened(Method.of(DEFENSES.build(kind)))


def test_stacks_are_read_part_by_part() -> None:
    published, own = family("cem-gated", "published"), family("cem-gated", "adversarial")
    assert fits(published, "gaussian:sigma=0.3+cem-gated:weight=3,form=published")
    assert not fits(own, "gaussian:sigma=0.3+cem-gated:weight=3,form=published")
    assert fits(own, "gaussian+cem-gated")
    assert all(fits(NOISE, defense) for defense in ("none", "gaussian:sigma=0.4"))
    assert not fits(NOISE, "gaussian+cem")
    exact = Pick(("gaussian+cem",), {"cem.weight": 16.0, "gaussian.sigma": ANY})
    assert fits(exact, "gaussian:sigma=0.025+cem:weight=16")
    assert not fits(exact, "gaussian:sigma=0.025+cem:weight=4")
    assert not fits(exact, "gaussian+cem:weight=16,rho=0.5")


def test_variants_are_patterns() -> None:
    pick = Pick(variant="main*|early-*|")
    assert [pick.fits(name, target("none", 0)) for name in ("main", "main-attacks", "early-3", "", "other")] == [
        True, True, True, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("peel", {"kind": "peel", "plain_layers": True}, True),  # follows from a network without shortcuts
        ("decoder", "decoder:steps=9", False),
        ("ridge", "ridge", True),
    ],
)
def test_the_same_attack_has_the_same_settings(one: Any, other: Any, same: bool) -> None:
    identities = {attack_identity(Method.of(ATTACKS.build(each))) for each in (one, other)}
    assert (len(identities) == 1) == same
