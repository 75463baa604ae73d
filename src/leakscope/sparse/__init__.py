"""Sparse coding: solvers for (convolutional) dictionaries, gradients through them, and a layer."""

from leakscope.sparse.abcd import Abcd
from leakscope.sparse.batch import SOLVERS, Solver, choose, solve
from leakscope.sparse.fista import Fista
from leakscope.sparse.implicit import Implicit, differentiable
from leakscope.sparse.layer import Coding, SparseCoding, codes_key, encode_dataset, standardized, unit_norm
from leakscope.sparse.lca import Lca
from leakscope.sparse.problem import Diverged, Problem, Terms, pose
from leakscope.sparse.progress import Solution

__all__ = [
    "SOLVERS",
    "Abcd",
    "Coding",
    "Diverged",
    "Fista",
    "Implicit",
    "Lca",
    "Problem",
    "Solution",
    "Solver",
    "SparseCoding",
    "Terms",
    "choose",
    "codes_key",
    "differentiable",
    "encode_dataset",
    "pose",
    "solve",
    "standardized",
    "unit_norm",
]
