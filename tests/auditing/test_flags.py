"""Results raise doubts about themselves and about each other."""

from __future__ import annotations

from dataclasses import replace

from leakscope.auditing.flags import collapsed, still_improving, with_flags
from leakscope.core.results import AttackResult, ControlResult, Diagnostics
from leakscope.core.words import FLAGS, Control, FlagId

from .results import result, summary, target


def raised(*results: AttackResult, random_release: bool = False) -> dict[str, set[FlagId]]:
    flagged = with_flags(target(random_release=random_release), results)
    return {own.key: {flag.id for flag in own.flags} for own in flagged if own.flags}


def test_alone_an_attack_that_explains_nothing_blocks_the_verdict() -> None:
    assert raised(result("p", "peel-exact", 0.1, unexplained=0.2)) == {"p": {FlagId.NOT_CONVERGED}}
    assert FLAGS[FlagId.NOT_CONVERGED].severity == "blocks"


def test_beside_an_attack_that_explains_them_and_does_no_worse_it_warns() -> None:
    peeled, whole = result("p", "peel-exact", 0.1, unexplained=1.0), result("e", "e2e-lbfgs", 0.4, unexplained=0.0)
    assert raised(peeled, whole) == {"p": {FlagId.FEATURES_UNEXPLAINED}}
    assert FLAGS[FlagId.FEATURES_UNEXPLAINED].severity == "warns"
    better = result("p", "peel-exact", 0.6, unexplained=1.0)
    assert raised(better, whole) == {"p": {FlagId.NOT_CONVERGED}}


def test_a_diverged_solve_blocks_unless_another_attack_stands_in_for_it() -> None:
    lost = result("p", "peel-exact", 0.1, unexplained=1.0, diverged=0.5)
    assert raised(lost) == {"p": {FlagId.DIVERGED}}
    sound = result("e", "e2e-lbfgs", 0.4, unexplained=0.0)
    assert raised(lost, sound) == {"p": {FlagId.FEATURES_UNEXPLAINED}}
    half = result("e", "e2e-lbfgs", 0.4, unexplained=0.1)
    assert raised(lost, half) == {"p": {FlagId.DIVERGED}, "e": {FlagId.NOT_CONVERGED}}


def test_at_the_ceiling_nothing_is_left_to_explain() -> None:
    assert raised(result("p", "peel", 0.97, unexplained=1.0)) == {}


def test_the_flag_names_the_first_blocks() -> None:
    many = tuple(f"b{i}" for i in range(5))
    (own,) = with_flags(target(), [result("p", "peel", 0.1, unexplained=1.0, unexplained_blocks=many)])
    assert own.flags[0].where == "peel on gaussian at c, seed 0, blocks b0, b1, b2 and 2 more"
    (own,) = with_flags(target(), [result("p", "peel", 0.1, unexplained=1.0, diverged=1.0, diverged_blocks=("l4",))])
    assert own.flags[0].where.endswith(", block l4")
    (own,) = with_flags(target(), [result("p", "peel", 0.1, unexplained=1.0)])
    assert own.flags[0].where == "peel on gaussian at c, seed 0"


def test_results_accuse_each_other() -> None:
    ridge, decoder = result("r", "ridge", 0.8), result("d", "decoder", 0.3)
    assert raised(ridge, decoder, result("s", "search", 0.9, white_box=True)) == {"d": {FlagId.LINEAR_BEATS_STRONG}}
    weak = raised(ridge, decoder, result("s", "search", 0.1, white_box=True))
    assert weak["s"] == {FlagId.LINEAR_BEATS_STRONG, FlagId.BLACK_BOX_WINS, FlagId.LINEAR_BEATS_ALL}


def test_a_linear_attack_that_beats_every_trained_one_blocks() -> None:
    found = raised(result("r", "ridge", 0.8), result("d", "decoder", 0.3))
    assert FlagId.LINEAR_BEATS_ALL in found["r"]
    assert FLAGS[FlagId.LINEAR_BEATS_ALL].severity == "blocks"
    assert raised(result("r", "ridge", 0.8), result("d", "decoder", 0.79)) == {}
    assert raised(result("r", "ridge", 0.8)) == {}  # nothing to compare it with


def test_attackers_below_what_the_label_tells_are_blind() -> None:
    told = replace(result("d", "decoder", -0.2), label_floor=-0.01)
    assert raised(told) == {"d": {FlagId.BLIND}}
    assert raised(told, result("a", "auto", -0.01)) == {}
    assert FLAGS[FlagId.BLIND].severity == "blocks"


def test_what_was_observed_must_do_the_work() -> None:
    """Accuracy 0.9 in the books, 0.5 on the very features that were attacked."""
    seen = replace(result("d", "decoder", 0.0), observed_accuracy=0.5, metrics={"leak": summary(0.0, n=64)})
    assert raised(seen) == {"d": {FlagId.RELEASE_DIFFERS}}
    assert raised(replace(seen, observed_accuracy=0.85)) == {}
    few = replace(seen, observed_accuracy=0.6, metrics={"leak": summary(0.0, n=4)})
    assert raised(few) == {}  # four victims prove nothing


def test_a_low_mean_hides_no_exposed_victim() -> None:
    assert raised(replace(result("d", "decoder", 0.2), exposed=1)) == {"d": {FlagId.VICTIMS_EXPOSED}}
    assert raised(replace(result("d", "decoder", 0.9), exposed=5)) == {}


def test_a_release_that_looks_at_the_batch_is_told() -> None:
    (flagged,) = with_flags(target(batch_dependent=True), [result("d", "decoder", 0.0)])
    assert {flag.id for flag in flagged.flags} == {FlagId.BATCH_DEPENDENT}


def test_what_no_noise_hides_must_be_read() -> None:
    """Little is read of it, though more than the label: the picture is there all the same."""
    little = replace(result("d", "decoder", 0.3), label_floor=-0.2)
    (flagged,) = with_flags(target(follows=1.0, plainly=0.9), [little])
    assert {flag.id for flag in flagged.flags} == {FlagId.UNREAD}
    (hidden,) = with_flags(target(follows=1.0, plainly=0.1), [little])
    (read,) = with_flags(target(follows=1.0, plainly=0.9), [replace(little, metrics={"leak": summary(0.6)})])
    assert not hidden.flags
    assert not read.flags


def test_what_pictures_release_accuses_no_attack_on_classes() -> None:
    released = target(server_leak=0.9, follows=0.9, unused=0.9, mosaics=0.9)
    (picture,) = with_flags(released, [replace(result("d", "decoder", 0.0), label_floor=0.0)])
    accused = {FlagId.SERVER_SEES_MORE, FlagId.UNREAD, FlagId.UNUSED}
    assert accused <= {flag.id for flag in picture.flags}
    (classes,) = with_flags(released, [replace(result("p", "ppa", 0.0), goal="identities")])
    assert not accused & {flag.id for flag in classes.flags}


def test_the_kind_of_an_attack_is_what_it_is_and_not_how_it_is_called() -> None:
    """A label that looks like ridge's is only a label."""
    ridge = result("r", "ridge", 0.8)
    disguised = replace(result("d", "decoder", 0.3), attack=replace(ridge.attack, label="ridge:strengths=[1]"))
    assert FlagId.LINEAR_BEATS_STRONG in raised(ridge, disguised)["d"]


def test_a_steep_end_is_not_convergence() -> None:
    steep, flat = (1.0, 0.8, 0.6, 0.4, 0.3, 0.2), (1.0, 0.5, 0.3, 0.21, 0.205, 0.2)
    assert still_improving(Diagnostics(curve=steep))
    assert not still_improving(Diagnostics(curve=flat))
    assert raised(result("d", "decoder", 0.5, curve=steep)) == {"d": {FlagId.NOT_CONVERGED}}
    assert raised(result("d", "decoder", 0.99, curve=steep)) == {}


def test_a_rising_curve_is_judged_by_its_rise() -> None:
    """BREP-MI widens its sphere: the curve of its radius rises while it improves."""
    rising = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    assert raised(result("b", "brepmi", 0.2, curve=rising, curve_falls=False)) == {"b": {FlagId.NOT_CONVERGED}}
    settled = (1.0, 2.0, 3.0, 3.2, 3.21, 3.22)
    assert raised(result("b", "brepmi", 0.2, curve=settled, curve_falls=False)) == {}


def test_an_attack_with_a_stopping_rule_is_believed_when_it_stopped() -> None:
    steep = (1.0, 0.8, 0.6, 0.4, 0.3, 0.2)
    assert raised(result("a", "auto", 0.5, curve=steep, converged=True)) == {}
    assert raised(result("a", "auto", 0.5, curve=(1.0, 1.0), converged=False)) == {"a": {FlagId.NOT_CONVERGED}}


def test_diagnostics_become_flags() -> None:
    found = raised(result("s", "search", 0.0, averages=False, diverged=0.1, zero_gradient=1.0), random_release=True)
    assert found["s"] == {FlagId.DIVERGED, FlagId.ZERO_GRADIENT, FlagId.NOISE_NOT_AVERAGED}
    assert set(FLAGS) == set(FlagId)


def test_a_failed_control_is_a_flag_of_every_result_of_the_attack() -> None:
    failed = ControlResult(Control.POSITIVE, "decoder", 0.1, 0.9, False, FlagId.CONTROL_FAILED)
    own = replace(result("d", "decoder", 0.2), controls=(failed,))
    (flagged,) = with_flags(target(), [own])
    assert [(flag.id, flag.where) for flag in flagged.flags] == [(FlagId.CONTROL_FAILED, "decoder")]
    assert flagged.doubtful


def test_reconstructions_that_fit_others_accuse_the_evaluation() -> None:
    assert raised(replace(result("d", "decoder", 0.2), mismatched=0.3)) == {"d": {FlagId.NEGATIVE_CONTROL}}


def test_a_useless_target_is_not_a_private_one() -> None:
    assert collapsed(0.11, None, classes=10)
    assert collapsed(0.80, 0.95, classes=10)
    assert not collapsed(0.90, 0.95, classes=10)
    (flagged,) = with_flags(target(accuracy=0.5), [result("d", "decoder", 0.0)], twin_accuracy=0.95)
    assert {flag.id for flag in flagged.flags} == {FlagId.ACCURACY_COLLAPSED}
