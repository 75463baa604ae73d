"""What is compared, what is doubted, and that nothing but the judge decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from leakscope.core.results import ControlResult
from leakscope.core.words import Control, DoubtKind, FlagId, Ruled
from leakscope.stats.claims import Matched, Tables
from leakscope.studies.claims import Claim, asked, decide, evidence_for
from leakscope.studies.picks import ANY, Pick

from .world import World

OURS, TWIN = Pick(("sca",), name="ours"), Pick(name="twin")
LESS = Claim("less", "SCA leaks less", "somebody", OURS, TWIN)


def verdict(world: World, claim: Claim = LESS, measured: Any = None) -> Ruled:
    return decide([claim], world, measured)[0].verdict


def kinds(world: World, claim: Claim = LESS) -> set[DoubtKind]:
    return {doubt.kind for doubt in evidence_for(claim, world).doubts}


@pytest.mark.parametrize(
    ("ours", "expected"),
    [(0.3, Ruled.HOLDS), (0.9, Ruled.DOES_NOT_HOLD), (0.795, Ruled.DOES_NOT_HOLD), (0.78, Ruled.CANNOT_TELL)],
)
def test_a_difference_must_pass_the_smallest_effect_that_counts(ours: float, expected: Ruled) -> None:
    world = World().add("none", 0.8).add("sca", ours)
    assert verdict(world) is expected
    effect = decide([LESS], world)[0].effect
    assert effect is not None
    assert effect.value == pytest.approx(ours - 0.8, abs=0.01)


def test_a_verdict_does_not_change_with_a_label() -> None:
    told = []
    for label in ("", "none", "tl-dmi:layer=block3"):
        world = World().add("none", 0.8, label=label and "sca").add("sca", 0.3, label=label)
        [found] = decide([LESS], world)
        told.append((found.verdict, found.p, found.effect, found.doubts))
    assert told[0][0] is Ruled.HOLDS
    assert told.count(told[0]) == 3


def test_the_strongest_attack_on_each_victim_counts_and_both_sides_meet_the_same() -> None:
    world = World().add("none", 0.8).add("sca", 0.5, attacks=("ridge",))
    measured = evidence_for(LESS, world).measured
    assert isinstance(measured, Tables)
    # The decoder (0.8) met the twin alone, so that ridge (0.6) is what both are compared by.
    assert measured.right.mean() == pytest.approx(0.6, abs=0.02)
    assert measured.left.shape == measured.right.shape == (5, 40)
    both = World().add("none", 0.8).add("sca", 0.5)
    tables = [both.tensors[result.key]["leak"].numpy() for result in both.results["split-none-0"]]
    found = evidence_for(LESS, both).measured
    assert isinstance(found, Tables)
    np.testing.assert_allclose(found.right[0], np.maximum(*tables))
    low = replace(LESS, metric="mse", direction="more")
    found = evidence_for(low, both).measured
    assert isinstance(found, Tables)
    np.testing.assert_allclose(found.right[0], np.minimum(*(1 - table for table in tables)), rtol=1e-6)
    apart = World().add("none", 0.8, attacks=("decoder",)).add("sca", 0.5, attacks=("decoder:steps=3",))
    assert kinds(apart) == {DoubtKind.NOT_MEASURED}


@pytest.mark.parametrize("side", ["none", "sca"])
@pytest.mark.parametrize(
    ("flag", "kind"),
    [
        (FlagId.NOT_CONVERGED, DoubtKind.NOT_CONVERGED),
        (FlagId.MORE_BUDGET_HELPS, DoubtKind.NOT_CONVERGED),
        (FlagId.CONTROL_FAILED, DoubtKind.CONTROL_FAILED),
        (FlagId.ACCURACY_COLLAPSED, DoubtKind.ACCURACY_COLLAPSED),
    ],
)
def test_a_doubt_about_the_strongest_attack_of_either_side_is_a_veto(side: str, flag: FlagId, kind: DoubtKind) -> None:
    levels = {"none": 0.8, "sca": 0.3}
    world = World()
    for defense, level in levels.items():
        world.add(defense, level, flags=(flag,) if defense == side else ())
    assert kinds(world) == {kind}
    assert verdict(world) is Ruled.CANNOT_TELL
    warned = World().add("none", 0.8).add("sca", 0.3, flags=(FlagId.ZERO_GRADIENT,))
    assert verdict(warned) is Ruled.HOLDS  # a flag that only warns is no doubt
    assert "5 of 5 seeds" in decide([LESS], world)[0].reason


@pytest.mark.parametrize(
    ("attack", "flag", "ruled"),
    [
        ("decoder", FlagId.NOT_CONVERGED, Ruled.HOLDS),
        ("decoder", FlagId.SERVER_SEES_MORE, Ruled.HOLDS),
        ("decoder", FlagId.WEAK_ON_CONTROL, Ruled.HOLDS),  # it works on easy pictures: this is what the recipe gives
        ("decoder", FlagId.CONTROL_FAILED, Ruled.CANNOT_TELL),
        ("decoder:steps=3", FlagId.NOT_CONVERGED, Ruled.CANNOT_TELL),  # weakened: not what was published
        ("decoder:steps=30", FlagId.NOT_CONVERGED, Ruled.HOLDS),  # the settings it was published with
        ("decoder:steps=30,batch=3", FlagId.NOT_CONVERGED, Ruled.CANNOT_TELL),
    ],
)
def test_a_claim_that_names_an_attack_asks_what_its_own_recipe_gives(attack: str, flag: FlagId, ruled: Ruled) -> None:
    world = World().add("none", 0.8, attacks=(attack,)).add("sca", 0.3, attacks=(attack,), flags=(flag,))
    named: dict[str, Any] = {"attacks": ("decoder",), "recipe": {"steps": 30}}
    claim = replace(LESS, left=replace(LESS.left, **named), right=replace(cast("Pick", LESS.right), **named))
    assert decide([claim], world)[0].verdict is ruled
    missed = ControlResult(Control.POSITIVE, attack, 0.5, 0.9, False, flag)
    world.results = {key: [replace(r, controls=(missed,)) for r in own] for key, own in world.results.items()}
    assert decide([claim], world)[0].verdict is ruled


@pytest.mark.parametrize("flag", [FlagId.VICTIMS_EXPOSED, FlagId.UNEVEN])
def test_that_a_low_mean_does_not_protect_everybody_is_no_doubt_about_means(flag: FlagId) -> None:
    world = World().add("none", 0.8, flags=(flag,)).add("sca", 0.3, flags=(flag,))
    assert verdict(world) is Ruled.HOLDS


def test_a_failed_control_and_a_linear_attack_that_beats_all_others_are_doubts() -> None:
    assert kinds(World().add("none", 0.8).add("sca", 0.3, passed=False)) == {DoubtKind.CONTROL_FAILED}
    linear = ("ridge", "decoder", "search")  # the first leaks most
    world = World().add("none", 0.8, attacks=linear).add("sca", 0.3, attacks=linear)
    assert kinds(world) == set()
    beaten = {key: [replace(r, flags=(_beaten(r),)) if not r.traits.linear else r for r in own]
              for key, own in world.results.items()}  # fmt: skip
    world.results = beaten
    assert kinds(world) == {DoubtKind.LINEAR_BEATS_STRONG}
    world.results = {key: [replace(r, flags=()) if r.attack.kind == "search" else r for r in own]
                     for key, own in beaten.items()}  # fmt: skip
    assert kinds(world) == set()  # one that was not beaten is enough


def _beaten(result: Any) -> Any:
    from leakscope.core.results import Flag

    return Flag(FlagId.LINEAR_BEATS_STRONG, "", result.key)


def test_a_rival_weaker_than_published_decides_nothing() -> None:
    claim = Claim("rival", "", "", OURS, Pick(("gong",)))
    strong = World().add("sca", 0.3).add("gong", 0.8)
    weak = World().add("sca", 0.3).add("gong:gan_steps=100", 0.8)
    assert verdict(strong, claim) is Ruled.HOLDS
    assert verdict(weak, claim) is Ruled.CANNOT_TELL
    assert "gan_steps = 100 (published: 800)" in decide([claim], weak)[0].reason


def test_at_equal_accuracy_a_collapse_is_no_excuse_and_no_accuracy_is_extrapolated() -> None:
    claim = replace(
        LESS, left=Pick(("sca",), {"sparsity": ANY}), right=Pick(("gaussian",), free=("sigma",)), matched=True
    )
    world = (
        World().add("sca:sparsity=0.1", 0.5, accuracy=0.95)
        .add("sca:sparsity=0.5", 0.3, accuracy=0.90, flags=(FlagId.ACCURACY_COLLAPSED,))
        .add("gaussian:sigma=0.5", 0.9, accuracy=0.96).add("gaussian:sigma=1.0", 0.8, accuracy=0.92)
    )  # fmt: skip
    evidence = evidence_for(claim, world)
    assert isinstance(evidence.measured, Matched)
    assert len(evidence.measured.left) == len(evidence.measured.right) == 10
    assert not evidence.doubts
    [found] = decide([claim], world)
    assert found.verdict is Ruled.HOLDS
    assert found.effect is not None
    # At 0.95 on noise's line from (0.92, 0.8) to (0.96, 0.9): 0.875, and SCA leaks 0.5.
    assert found.effect.value == pytest.approx(0.5 - 0.875, abs=0.02)
    apart = World().add("sca", 0.3, accuracy=0.8).add("gaussian:sigma=0.5", 0.9, accuracy=0.96)
    assert decide([claim], apart)[0].doubts == (DoubtKind.NOT_MATCHED.value,)


def test_one_arm_is_one_thing() -> None:
    world = World().add("none", 0.8).add("sca:sparsity=0.1", 0.5).add("sca:sparsity=0.5", 0.3)
    claim = replace(LESS, left=Pick(("sca",), {"sparsity": ANY}))
    assert kinds(world, claim) == {DoubtKind.NOT_MEASURED}
    assert "several targets" in decide([claim], world)[0].reason


def test_accuracy_that_is_kept_within_a_margin() -> None:
    kept = Claim("kept", "", "", OURS, TWIN, "more", "accuracy", minimum=0.0, margin=0.02)
    flagged = (FlagId.NOT_CONVERGED,)  # no attack has a part in it
    assert verdict(World().add("none", 0.8).add("sca", 0.3, accuracy=0.94, flags=flagged), kept) is Ruled.HOLDS
    assert verdict(World().add("none", 0.8).add("sca", 0.3, accuracy=0.90), kept) is Ruled.DOES_NOT_HOLD


def test_constants_measured_figures_and_the_spread_of_trainings() -> None:
    world = World().add("none", 0.8).add("sca", 0.03)
    destroyed = Claim("destroyed", "", "", OURS, 0.1, minimum=0.0)
    assert verdict(world, destroyed) is Ruled.HOLDS
    assert verdict(World().add("sca", 0.3), destroyed) is Ruled.DOES_NOT_HOLD
    faster = Claim("time", "", "", OURS, TWIN, metric="seconds", minimum=0.0)
    seconds = {
        key: (1.0 if "sca" in key else 2.0) + 0.01 * own.seed for key, own in ((t.key, t) for _, t in world.targets)
    }
    assert verdict(world, faster, {"seconds": seconds}) is Ruled.HOLDS
    assert not asked(faster, world, {"seconds": {}})
    assert asked(LESS, world, {})
    assert not asked(replace(LESS, right=Pick(("mid",))), world, {})
    assert not asked(replace(LESS, left=replace(OURS, attacks=("peel",))), world, {})
    steady = Claim("steady", "", "", OURS, TWIN, metric="psnr", spread=True, margin=2.0, minimum=0.0)
    found = evidence_for(steady, world).measured
    assert isinstance(found, Tables)
    means = np.array([world.tensors[f"split-none-{seed}/decoder"]["psnr"].mean() for seed in range(5)])
    np.testing.assert_allclose(found.right[:, 0], np.abs(means - np.median(means)), atol=1e-4)
    assert not found.paired
    assert verdict(world, steady) is Ruled.HOLDS


def test_seeds_that_one_side_lacks_are_left_out_and_one_seed_shows_nothing() -> None:
    few = World().add("none", 0.8, count=5).add("sca", 0.3, count=3)
    measured = evidence_for(LESS, few).measured
    assert isinstance(measured, Tables)
    assert measured.left.shape == measured.right.shape == (3, 40)
    alone = World().add("none", 0.8, count=1).add("sca", 0.3, count=1)
    assert verdict(alone) is Ruled.CANNOT_TELL


def test_claims_of_a_part_are_one_family() -> None:
    """A difference that is shown by itself is not among many that say nothing."""
    world = World().add("none", 0.8, count=3).add("sca", 0.74, count=3).add("mid", 0.8, count=3)
    alone = decide([LESS], world)[0]
    many = decide([LESS, *(replace(LESS, id=str(n), right=Pick(("mid",)), left=TWIN) for n in range(60))], world)[0]
    assert many.p > alone.p
    assert alone.effect == many.effect


def test_a_metric_that_is_not_finite_is_a_doubt_and_no_crash() -> None:
    world = World().add("none", 0.8).add("sca", 0.3)
    world.tensors["split-sca-0/decoder"]["leak"][0] = float("nan")
    assert kinds(world) == {DoubtKind.NOT_MEASURED}
    assert verdict(world) is Ruled.CANNOT_TELL


def test_victims_of_their_own_for_every_seed_are_compared_by_their_means() -> None:
    world = World().add("none", 0.8).add("sca", 0.3)
    for own in world.results.values():
        own[:] = [replace(result, victims=f"v{result.seed}") for result in own]
    measured = evidence_for(LESS, world).measured
    assert isinstance(measured, Tables)
    assert measured.redrawn
    points = evidence_for(replace(LESS, matched=True), world).measured
    assert isinstance(points, Matched)
    assert all(np.ndim(point.leak) == 0 for point in points.left)
