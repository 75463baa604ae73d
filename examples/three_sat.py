"""Inverting a network can be as hard as 3-SAT: a network made from a formula, and how search fails on it.

    python examples/three_sat.py                 # a table over random formulas that can be satisfied
    python examples/three_sat.py formula.cnf     # invert the network of a DIMACS file

From a formula with n variables and m clauses, B of which at most share a variable, theorem B.10 of "MixCon:
adjusting the separability of data representations for harder data recovery", 2020, builds

    clause j:    relu(Σ ±x_i − 2),   + for a positive literal, − for a negated one
    variable i:  |x_i| = relu(x_i) + relu(−x_i),   100·B² times

over x ∈ [−1, 1]^n, where x_i = 1 means that variable i is false and −1 that it is true. A clause neuron is 1
when all three literals are false and 0 as soon as one is true, so an assignment that satisfies the formula
maps exactly to z = (0, …, 0, 1, …, 1), and whoever inverts z, rounding by sign, has solved the formula.

Differs from the paper: the copies of |x_i| are one output times 10·B, which is as far away as 100·B² copies in
the norm ‖·‖₂ and needs no memory.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

from leakscope.attacks.search import Search
from leakscope.core import seeds
from leakscope.core.attack import Observed, Prepared
from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.model import Normalize, SplitModel
from leakscope.core.threat import ThreatModel, grant

_MOST = 10_000  # variables, and clauses: a network of a hundred million weights


@dataclass(frozen=True)
class Formula:
    """Clauses of three literals: variable i is +i, its negation −i, counted from 1 as in DIMACS."""

    variables: int
    clauses: tuple[tuple[int, int, int], ...]

    def satisfied(self, truth: Tensor) -> Tensor:
        """Which clauses hold under each assignment: N×n booleans to N×m."""
        literals = torch.tensor(self.clauses)  # m×3
        values = truth[:, literals.abs() - 1]  # N×m×3
        held: Tensor = (values == (literals > 0)).any(2)
        return held

    @property
    def most_shared(self) -> int:
        """B: in how many clauses the commonest variable stands."""
        return int(torch.tensor(self.clauses).abs().flatten().bincount().max())


def parse_dimacs(text: str) -> Formula:
    """A formula from the DIMACS CNF format; every clause must have three literals of different variables."""
    header: tuple[int, int] | None = None
    literals: list[int] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("c"):
            continue
        if words[0] == "%":  # the end of SATLIB's files
            break
        if words[0] == "p":
            header = _header(words, number, header)
            continue
        if header is None:
            raise UsageError(f"line {number}: a clause before the header; start with 'p cnf VARIABLES CLAUSES'")
        try:
            literals += [int(word) for word in words]
        except ValueError:
            raise UsageError(f"line {number}: {line.strip()[:40]!r} is no clause; write it like '1 -2 3 0'") from None
    if header is None:
        raise UsageError("no header; a DIMACS file starts with 'p cnf VARIABLES CLAUSES'")
    return _checked(*header, literals)


def _header(words: list[str], number: int, before: tuple[int, int] | None) -> tuple[int, int]:
    if before is not None:
        raise UsageError(f"line {number}: a second header; keep one formula a file")
    if len(words) != 4 or words[1] != "cnf" or not (words[2].isdecimal() and words[3].isdecimal()):
        raise UsageError(f"line {number}: the header must be 'p cnf VARIABLES CLAUSES'")
    variables, clauses = (int(word[:9]) for word in words[2:])
    if not (3 <= variables <= _MOST and 1 <= clauses <= _MOST):
        raise UsageError(f"line {number}: needs 3 to {_MOST} variables and 1 to {_MOST} clauses")
    return variables, clauses


def _checked(variables: int, clauses: int, literals: list[int]) -> Formula:
    found: list[tuple[int, int, int]] = []
    clause: list[int] = []
    for literal in literals:
        if literal:
            clause.append(literal)
            continue
        if len(clause) != 3 or len({abs(other) for other in clause}) != 3:
            raise UsageError(f"clause {len(found) + 1} {clause[:6]} must have three literals of different variables")
        if max(abs(other) for other in clause) > variables:
            raise UsageError(f"clause {len(found) + 1} {clause} names a variable beyond the {variables} of the header")
        found.append((clause[0], clause[1], clause[2]))
        clause = []
    if clause:
        raise UsageError(f"the last clause {clause[:6]} does not end with 0")
    if len(found) != clauses:
        raise UsageError(f"the header promises {clauses} clauses, the file has {len(found)}")
    return Formula(variables, tuple(found))


class SatNet(nn.Module):
    """The network of a formula: N×1×1×n in [−1, 1] to N×(m + n) features; its scores mean nothing."""

    def __init__(self, formula: Formula) -> None:
        super().__init__()
        clauses = torch.zeros(len(formula.clauses), formula.variables)
        literals = torch.tensor(formula.clauses)
        clauses.scatter_(1, literals.abs() - 1, literals.sign().float())
        self.features = _Features(clauses, weight=10.0 * formula.most_shared)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.features(x)
        return features[:, :1].expand(-1, 2)


class _Features(nn.Module):
    clauses: Tensor

    def __init__(self, clauses: Tensor, weight: float) -> None:
        super().__init__()
        self.register_buffer("clauses", clauses)
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        unsatisfied = torch.relu(x @ self.clauses.T - 2)
        decided = torch.relu(x) + torch.relu(-x)
        return torch.cat((unsatisfied, self.weight * decided), 1)


def solution(formula: Formula) -> Tensor:
    """z: what every satisfying assignment is sent as."""
    weight = 10.0 * formula.most_shared
    return torch.cat((torch.zeros(len(formula.clauses)), weight * torch.ones(formula.variables)))


def as_picture(truth: Tensor) -> Tensor:
    """Assignments N×n as pictures N×1×1×n: black (x = −1) is true, white (x = 1) false."""
    return (~truth).float()[:, None, None]


def network(formula: Formula) -> SplitModel:
    return SplitModel(SatNet(formula), "features", normalize=Normalize((0.5,), (0.5,))).eval()


def satisfying(formula: Formula) -> Tensor:
    """All satisfying assignments, by trying every one: K×n."""
    if formula.variables > 20:
        raise UsageError(f"{formula.variables} variables have too many assignments to try; at most 20")
    every = torch.tensor(list(product((False, True), repeat=formula.variables)))
    kept = [part[formula.satisfied(part).all(1)] for part in every.split(4096)]
    return torch.cat(kept)


def planted(variables: int, clauses: int, seed: int) -> Formula:
    """A random formula that a hidden assignment satisfies."""
    if variables < 3:
        raise UsageError("a clause has three variables; ask for 3 or more")
    rng = seeds.generator(seed, "three-sat", variables, clauses)
    hidden = torch.rand(variables, generator=rng) < 0.5
    found: list[tuple[int, int, int]] = []
    while len(found) < clauses:
        chosen = torch.randperm(variables, generator=rng)[:3]
        positive = torch.rand(3, generator=rng) < 0.5
        if (positive == hidden[chosen]).any():
            signed = ((chosen + 1) * (2 * positive.long() - 1)).tolist()
            found.append((signed[0], signed[1], signed[2]))
    return Formula(variables, tuple(found))


def invert(formula: Formula, restarts: int, seed: int) -> Tensor:
    """What `search` finds for z from random starts, rounded by sign: an assignment for each start."""
    target = network(formula)
    rng = seeds.generator(seed, "three-sat", "starts")
    assignments = []
    for _ in range(restarts):
        # Search starts at the mean public picture: one random picture is a random start.
        starts = torch.rand(1, 1, 1, formula.variables, generator=rng).expand(2, -1, -1, -1)
        public = ImageSet(starts.contiguous(), torch.tensor([0, 1]), ("false", "true"))
        view = grant(target, ThreatModel(Search.needs), public, rng, classes=2, device=torch.device("cpu"))
        seen = Observed(features=solution(formula)[None])
        picture = Search(tv=0.0, distance="mse").reconstruct(view, Prepared(), seen, rng).images
        assignments.append(picture.flatten(1) < 0.5)
    return torch.cat(assignments)


def table(sizes: tuple[int, ...] = (3, 4, 6, 8, 16, 32, 64), formulas: int = 8, restarts: int = 3) -> str:
    """How often search solves planted formulas of 4.2 clauses a variable, about the hardest ratio.

    A coin toss for each variable satisfies seven clauses of eight.
    """
    rows = ["variables  clauses  solved  satisfied  not satisfied"]
    for variables in sizes:
        clauses = round(4.2 * variables)
        kept = []
        for seed in range(formulas):
            formula = planted(variables, clauses, seed)
            kept.append(formula.satisfied(invert(formula, restarts, seed)).float())
        held = torch.stack(kept)  # formulas × restarts × m
        solved = held.all(2).any(1).float().mean().item()
        best = held.mean(2).amax(1)
        missed = (clauses * (1 - best)).mean().item()
        rows.append(f"{variables:9}  {clauses:7}  {solved:6.0%}  {best.mean().item():9.1%}  {missed:13.1f}")
    return "\n".join(rows)


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    try:
        if not arguments:
            print(table())
            return 0
        path = Path(arguments[0])
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not text'}") from None
        formula = parse_dimacs(text)
    except UsageError as error:
        print(f"three_sat: {error}", file=sys.stderr)
        return 2
    held = formula.satisfied(invert(formula, restarts=10, seed=0)).float().mean(1)
    print(f"{formula.variables} variables, {len(formula.clauses)} clauses: search satisfied {held.max().item():.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
