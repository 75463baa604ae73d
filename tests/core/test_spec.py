"""Specifications: parsing, checking, identity."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.core.attack import ATTACKS
from leakscope.core.defense import DEFENSES, Defense, Stack, build_defense
from leakscope.core.errors import UsageError
from leakscope.core.spec import Kind, describe, digest, label, nested, parse
from leakscope.defenses.gaussian import Gaussian
from leakscope.defenses.laplace import Laplace


def test_a_method_has_one_identity_however_it_is_written() -> None:
    built = [
        DEFENSES.build("gaussian:sigma=1"),
        DEFENSES.build("gaussian:1"),
        DEFENSES.build({"kind": "gaussian", "sigma": 1.0}),
        Gaussian(sigma=1),
    ]
    assert len({digest(describe(defense)) for defense in built}) == 1


def test_every_field_and_the_revision_are_part_of_the_identity() -> None:
    plain = describe(Gaussian(sigma=0.5))
    assert digest(plain) != digest(describe(replace(Gaussian(sigma=0.5), at_release=False)))
    assert digest(plain) != digest({**plain, "revision": plain["revision"] + 1})


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
        max_size=6,
    )
)
def test_the_digest_ignores_the_order_of_keys(plain: dict[str, object]) -> None:
    backwards = dict(reversed(list(plain.items())))
    assert digest(plain) == digest(backwards)


def test_a_misspelt_field_names_the_right_one() -> None:
    with pytest.raises(UsageError, match="did you mean sigma"):
        DEFENSES.build("gaussian:sigm=0.5")


def test_a_wrong_type_or_value_is_one_line() -> None:
    for spec in ("gaussian:sigma=loud", "gaussian:sigma=-1"):
        with pytest.raises(UsageError) as error:
            DEFENSES.build(spec)
        assert "\n" not in str(error.value)
        assert "sigma" in str(error.value)


def test_an_unknown_name_lists_near_matches() -> None:
    with pytest.raises(UsageError, match="did you mean ridge"):
        ATTACKS.build("rigde")


def test_only_the_first_setting_may_go_without_its_name() -> None:
    assert parse("folder:/a/b") == {"kind": "folder", "*": "/a/b"}
    with pytest.raises(UsageError, match="field=value"):
        parse("gaussian:0.5,true")


def test_lists_may_hold_commas() -> None:
    assert parse("mlp:widths=[500,2,100],drift=1.0") == {"kind": "mlp", "widths": [500, 2, 100], "drift": 1.0}
    with pytest.raises(UsageError, match="cannot read"):
        parse("mlp:widths=[500")


def test_a_label_can_be_parsed_back() -> None:
    stack = Stack((Gaussian(sigma=0.25), Laplace(scale=2.0)))
    assert build_defense(label(stack)) == stack


def test_two_methods_cannot_share_a_name() -> None:
    kind: Kind[Defense] = Kind("toy", "leakscope.defenses")

    @dataclass(frozen=True)
    class One(Defense):
        pass

    @dataclass(frozen=True)
    class Two(Defense):
        pass

    kind.register("same")(One)
    with pytest.raises(ValueError, match="already"):
        kind.register("same")(Two)


def test_a_stack_refuses_two_owners_of_the_gradient_step() -> None:
    @dataclass(frozen=True)
    class Owner(Defense):
        owns_backward = True
        kind_name = "owner"

    with pytest.raises(ValueError, match="only one"):
        Stack((Owner(), Owner()))


@dataclass(frozen=True)
class Holder(Defense):
    inner: Defense = nested(DEFENSES, "gaussian")
    widths: tuple[int, ...] = ()


HOLDERS: Kind[Defense] = Kind("holder", "leakscope.defenses")
HOLDERS.register("holder")(Holder)


@pytest.mark.parametrize(
    "spec",
    [
        "holder:inner=gaussian:0.5,widths=[1,2]",
        "holder:widths=[1,2],inner=gaussian:sigma=0.5",
        "holder:inner={kind: gaussian, sigma: 0.5},widths=[1,2]",
        {"kind": "holder", "inner": {"kind": "gaussian", "sigma": 0.5}, "widths": [1, 2]},
        {"kind": "holder", "inner": Gaussian(0.5), "widths": [1, 2]},
    ],
)
def test_a_field_may_hold_a_method(spec: str | dict[str, object]) -> None:
    expected = Holder(Gaussian(0.5), (1, 2))
    built = HOLDERS.build(spec)
    assert built == expected
    assert HOLDERS.build(describe(built)) == expected
    assert HOLDERS.build(label(built)) == expected
    assert describe(built)["inner"] == describe(Gaussian(0.5))


def test_a_held_method_is_written_shortly_where_it_can_be() -> None:
    assert label(Holder()) == "holder"
    assert label(Holder(Laplace())) == "holder:inner=laplace"
    assert label(Holder(Gaussian(0.5))) == "holder:inner=gaussian:sigma=0.5"
    long = Holder(Gaussian(0.5, at_release=False), (3,))
    assert label(long) == 'holder:inner={"kind":"gaussian","sigma":0.5,"at_release":false},widths=[3]'
    assert HOLDERS.build(label(long)) == long
    # A method inside a method inside a method: defaults are left out at every depth.
    base = {"kind": "dcgan", "steps": 7, "opening": 3}
    deep = ATTACKS.build({"kind": "kedmi", "prior": {"kind": "kedmi-gan", "steps": 5, "base": base}})
    written = '{"kind":"kedmi-gan","base":{"kind":"dcgan","steps":7,"opening":3},"steps":5}'
    assert label(deep) == f"kedmi:prior={written}"
    assert ATTACKS.build(label(deep)) == deep


def test_a_bad_held_method_is_one_line() -> None:
    for spec, message in (("holder:inner=gausian", "gaussian"), ("holder:inner=gaussian:sigm=1", "sigma")):
        with pytest.raises(UsageError, match=f"did you mean {message}"):
            HOLDERS.build(spec)
    with pytest.raises(UsageError, match="holder: inner"):
        HOLDERS.build("holder:inner=3")


def test_brackets_may_be_nested() -> None:
    assert parse("x:a={b: 1, c: [1, 2], d: 3},e=4") == {"kind": "x", "a": {"b": 1, "c": [1, 2], "d": 3}, "e": 4}
