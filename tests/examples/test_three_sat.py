"""The network of a 3-SAT formula: complete, isometric to the published copies, and safe to feed any file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.core.errors import UsageError

PATH = Path(__file__).parents[2] / "examples" / "three_sat.py"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("three_sat", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["three_sat"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


sat = _load()

SMALL = """c (a or b or not c) and (not a or b or c)
p cnf 4 2
1 2 -3 0
-1 2
 3 0
"""


def test_a_file_becomes_a_formula() -> None:
    formula = sat.parse_dimacs(SMALL)
    assert formula == sat.Formula(4, ((1, 2, -3), (-1, 2, 3)))
    assert formula.most_shared == 2
    assert sat.parse_dimacs(SMALL + "%\n0\n") == formula  # as SATLIB ends its files


@settings(max_examples=25, deadline=None)
@given(variables=st.integers(3, 9), density=st.floats(0.5, 6), seed=st.integers(0, 999))
def test_satisfying_assignments_and_no_others_are_sent_as_z(variables: int, density: float, seed: int) -> None:
    """Completeness, and its converse on corners of the cube, against truth by brute force."""
    formula = sat.planted(variables, max(1, round(density * variables)), seed)
    every = torch.cartesian_prod(*[torch.tensor([False, True])] * variables)
    by_hand = torch.tensor(
        [all(any(row[abs(i) - 1] == (i > 0) for i in clause) for clause in formula.clauses) for row in every.tolist()]
    )
    with torch.no_grad():
        z = sat.network(formula).encode(sat.as_picture(every))
    sent_as_solution = (z == sat.solution(formula)).all(1)
    assert by_hand.any()  # planted
    assert torch.equal(sent_as_solution, by_hand)
    assert torch.equal(sat.satisfying(formula), every[by_hand])
    # A clause neuron counts: the unsatisfied are 1, the others 0.
    assert torch.equal(z[:, : len(formula.clauses)], (~formula.satisfied(every)).float())


def test_a_formula_without_solution_is_sent_as_z_by_nobody() -> None:
    clauses = [[a * 1, b * 2, c * 3] for a in (1, -1) for b in (1, -1) for c in (1, -1)]
    text = "p cnf 3 8\n" + "".join(f"{a} {b} {c} 0\n" for a, b, c in clauses)
    formula = sat.parse_dimacs(text)
    assert len(sat.satisfying(formula)) == 0
    every = torch.cartesian_prod(*[torch.tensor([False, True])] * 3)
    with torch.no_grad():
        z = sat.network(formula).encode(sat.as_picture(every))
    assert (z[:, :8].sum(1) == 1).all()


def test_one_weighted_output_is_as_far_as_the_published_copies() -> None:
    formula = sat.parse_dimacs(SMALL)
    pictures = torch.rand(6, 1, 1, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = sat.network(formula).encode(pictures)
    x = 2 * pictures.flatten(1) - 1
    copies = 100 * formula.most_shared**2
    published = torch.cat((ours[:, :2], x.abs().repeat(1, copies)), 1)
    assert torch.allclose(torch.cdist(ours, ours), torch.cdist(published, published), rtol=1e-4, atol=1e-3)


def test_search_satisfies_less_as_the_formula_grows() -> None:
    """Small formulas are solved, or nearly; of large ones hardly more than a coin satisfies."""
    lines = sat.table(sizes=(3, 48), formulas=3, restarts=2).splitlines()
    assert len(lines) == 3
    satisfied = [float(line.split()[3].rstrip("%")) for line in lines[1:]]
    solved = [float(line.split()[2].rstrip("%")) for line in lines[1:]]
    assert satisfied[0] > satisfied[1]
    assert solved[0] > solved[1] == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no header"),
        ("1 2 3 0\n", "before the header"),
        ("p cnf 3\n1 2 3 0\n", "must be 'p cnf"),
        ("p cnf 3 -1\n", "must be 'p cnf"),
        ("p cnf 3 1\np cnf 3 1\n1 2 3 0\n", "second header"),
        ("p cnf 2 1\n1 2 2 0\n", "3 to 10000 variables"),
        ("p cnf 99999999999999999999 1\n1 2 3 0\n", "3 to 10000 variables"),
        ("p cnf 3 1\n1 2 x 0\n", "is no clause"),
        ("p cnf 3 1\n1 2 0\n", "three literals"),
        ("p cnf 3 1\n1 -1 2 0\n", "different variables"),
        ("p cnf 3 1\n1 2 4 0\n", "beyond the 3"),
        ("p cnf 3 1\n1 2 3\n", "does not end with 0"),
        ("p cnf 3 2\n1 2 3 0\n", "promises 2 clauses"),
    ],
)
def test_bad_files_are_told_in_one_line(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        sat.parse_dimacs(text)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="pcnf 0123-\n%x", max_size=60))
def test_any_text_is_a_formula_or_a_usage_error(text: str) -> None:
    said = ""
    try:
        assert sat.parse_dimacs(text).clauses
    except UsageError as error:
        said = str(error)
    assert "\n" not in said


def test_it_runs_as_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.cnf").write_text(SMALL)
    assert sat.main([str(tmp_path / "small.cnf")]) == 0
    assert "search satisfied 100.0%" in capsys.readouterr().out
    assert sat.main([str(tmp_path / "absent.cnf")]) == 2
    (tmp_path / "bytes.cnf").write_bytes(b"\xff\xfe\x00")
    assert sat.main([str(tmp_path / "bytes.cnf")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert all(line.startswith("three_sat: cannot read") for line in errors)
