"""The compiled sweep against its truth, the torch path; and what happens where it cannot be built."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from leakscope.core import progress, seeds
from leakscope.sparse import kernel, solve, unit_norm
from leakscope.sparse.progress import Solution

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")


def _refusing(made: list[object]) -> Callable[..., object]:
    """A kernel that is noted and cannot be made."""

    def make(*given: object) -> object:
        made.append(given)
        raise ZeroDivisionError

    return make


def coded(compiled: bool, patch: pytest.MonkeyPatch, *arguments: Tensor, **terms: object) -> Solution:
    patch.setenv(kernel.SWITCH, "1" if compiled else "0")
    return solve(*arguments, **terms)  # type: ignore[arg-type]


@needs_compiler
@pytest.mark.parametrize("nonneg", [True, False], ids=["nonneg", "signed"])
@pytest.mark.parametrize(
    ("shape", "atoms", "stride"),
    [
        ((1, 3, 12, 12), (7, 3, 5, 5), 1),  # one sample: a group that is nearly empty
        ((37, 1, 12, 12), (20, 1, 5, 5), 2),  # two blocks of features; samples beside whole groups
        ((16, 2, 30), (9, 2, 5), 1),  # a signal
        ((20, 15), (40, 15), 1),  # vectors
    ],
    ids=["image", "strided", "signal", "vector"],
)
def test_codes_are_torchs(
    shape: tuple[int, ...], atoms: tuple[int, ...], stride: int, nonneg: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = seeds.generator(0, "kernel")
    x, dictionary = torch.randn(shape, generator=rng), unit_norm(torch.randn(atoms, generator=rng))
    terms = {"penalty": 0.2, "stride": stride, "nonneg": nonneg}
    wanted, found = (coded(compiled, monkeypatch, x, dictionary, **terms) for compiled in (False, True))
    assert (wanted.codes != 0).any()
    torch.testing.assert_close(found.codes, wanted.codes, atol=2e-4, rtol=0)
    torch.testing.assert_close(found.objective, wanted.objective, atol=0, rtol=1e-5)
    # From a warm start too: the codes that it is given are marked.
    again = coded(True, monkeypatch, x, dictionary, start=wanted.codes, **terms)
    assert (again.objective <= wanted.objective * (1 + 1e-5)).all()
    assert again.iterations.float().mean() < wanted.iterations.float().mean()


@needs_compiler
def test_it_runs_when_it_is_asked_for_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(kernel, "CompiledDescent", _refusing(made))
    x, dictionary = torch.randn(2, 15), unit_norm(torch.randn(4, 15))
    coded(False, monkeypatch, x, dictionary, penalty=0.1)
    coded(True, monkeypatch, x.double(), dictionary.double(), penalty=0.1)  # float64 stays with torch
    assert not made
    with pytest.raises(ZeroDivisionError):
        coded(True, monkeypatch, x, dictionary, penalty=0.1)


class Said:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def stage(self, name: str, total: int) -> AbstractContextManager[progress.Bar]:
        raise NotImplementedError


def test_without_a_compiler_torch_does_it_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    kernel.library.cache_clear()
    said = Said()
    try:
        with progress.listening(said):
            found = coded(True, monkeypatch, torch.randn(2, 15), unit_norm(torch.randn(4, 15)), penalty=0.1)
    finally:
        kernel.library.cache_clear()
    assert found.objective.isfinite().all()
    assert said.said == ["sparse coding runs in torch: no C++ compiler; install g++, or name one in CXX"]
