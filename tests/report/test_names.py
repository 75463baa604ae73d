"""Long labels are told once; everywhere else an attack has its name."""

from __future__ import annotations

from typing import Any

from leakscope.report.names import readable, short_names

LONG = 'kedmi:prior={"kind":"kedmi-gan","steps":200},steps=200,learning_rate=0.05'
TWIN = 'gmi:prior={"kind":"dcgan","steps":1000,"opening":200},steps=%d'


def _audit() -> dict[str, Any]:
    return {
        "results": [{"attack": name} for name in (LONG, "ridge", TWIN % 1, TWIN % 2, LONG)],
        "flags": [{"where": f"{LONG} on none at features, seed 0"}],
        "controls": {"positive": {"attacks": {LONG: 1.0}}},
        "command": f"leakscope audit --attack '{LONG}'",
        "config": {"attacks": [LONG]},
        "seconds": 3,
    }


def test_a_name_is_short_where_it_is_long_and_nobody_else_has_it() -> None:
    assert short_names(_audit()) == {LONG: "kedmi"}


def test_names_change_everywhere_but_in_what_can_be_run_again() -> None:
    audit = _audit()
    shown = readable(audit)
    assert [result["attack"] for result in shown["results"]] == ["kedmi", "ridge", TWIN % 1, TWIN % 2, "kedmi"]
    assert shown["flags"][0]["where"] == "kedmi on none at features, seed 0"
    assert shown["controls"]["positive"]["attacks"] == {"kedmi": 1.0}
    assert (shown["command"], shown["config"]) == (audit["command"], audit["config"])
    assert audit == _audit()
