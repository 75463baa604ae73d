"""The configuration's text means what the configuration says."""

from __future__ import annotations

import math
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.report.outline import outline

words = st.one_of(
    st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"], max_codepoint=0xD7FF), max_size=12),
    st.sampled_from(["no", "null", "1e3", "1:30", "2026-11-15", "a: b", "- x", "#", "gaussian:sigma=0.5", "~", "x:"]),
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), words)
plain = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=60)
@given(plain)
def test_yaml_reads_it_back(value: Any) -> None:
    assert yaml.safe_load(outline(value)) == value


def test_a_missing_number_is_read_back_too() -> None:
    assert math.isnan(yaml.safe_load(outline({"a": math.nan}))["a"])


def test_it_is_pleasant_to_read() -> None:
    config = {
        "model": {"kind": "convnet", "width": 16},
        "cuts": ["features.3"],
        "attacks": [{"kind": "ridge"}],
        "seed": 0,
    }
    assert outline(config).splitlines() == [
        "model:", "  kind: convnet", "  width: 16", "cuts: [features.3]", "attacks:", "  -", "    kind: ridge",
        "seed: 0",
    ]  # fmt: skip
