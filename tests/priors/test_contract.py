"""What every prior keeps: determinism, pixels, plain state, opinions on single pictures, resumption."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from leakscope.core import progress
from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.prior import PRIORS, Prior, PriorField, PriorState
from leakscope.core.seeds import generator
from leakscope.core.spec import describe, validated
from leakscope.nn.style_space import from_p, to_p
from leakscope.priors import _game
from leakscope.priors.dcgan import Dcgan
from leakscope.priors.kedmi_gan import KedmiGan
from leakscope.priors.linear import Linear
from leakscope.priors.style import Style
from leakscope.testing import PriorContract
from leakscope.testing.priors import same
from leakscope.testing.synthetic import CPU, image_set, small_split

STEPS = 4
TINY = Dcgan(width=4, latent=6, steps=STEPS, batch=4, penalty_every=2, opening=2)
TRAINED: list[Prior] = [
    TINY,
    Dcgan(
        loss="wgan-gp", width=4, latent=6, steps=STEPS, batch=4, critic_steps=2, penalty=10, penalty_every=1, opening=0
    ),
    Dcgan(loss="logistic", width=4, latent=6, steps=STEPS, batch=4, opening=0),
    Style(width=4, latent=6, steps=STEPS, batch=4, penalty_every=2, opening=2),
    KedmiGan(base=TINY, steps=STEPS, batch=4, kernels=3, kernel_size=2),
]
ALL: list[Prior] = [Linear(6), *TRAINED]
PUBLIC = image_set(40, "public")


def _name(prior: object) -> str:
    return f"{prior.kind_name}-{getattr(prior, 'loss', '')}" if isinstance(prior, Prior) else str(prior)


def _fit(prior: Prior, public: ImageSet = PUBLIC, seed: int = 0, checkpoint: Path | None = None) -> PriorState:
    scores = (lambda x: small_split()(x)) if prior.reads_scores else None
    return prior.fit(public, generator(seed, "fit"), device=CPU, checkpoint=checkpoint, scores=scores)


@pytest.mark.parametrize("prior", ALL, ids=_name)
class TestPriors(PriorContract):
    def test_styles_come_back_from_p_space(self, prior: Prior) -> None:
        made = self.made(prior)
        w = made.to_style(made.sample(3, self.rng("z")))
        torch.testing.assert_close(from_p(made, to_p(made, w)), w)


class _Killed(Exception):
    pass


class _Killer:
    """Ends the process, as far as the training loop can tell, at the third step of a game."""

    def __init__(self) -> None:
        self.steps = 0

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.steps += steps
        if self.steps == 3:
            raise _Killed

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[_Killer]:
        self.steps = 0 if name != "opening" else -100
        yield self

    def say(self, text: str) -> None:
        pass


@pytest.mark.parametrize("prior", TRAINED, ids=_name)
def test_a_killed_run_ends_bit_for_bit_like_one_that_was_not(
    prior: Prior, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _fit(prior)
    monkeypatch.setattr(_game, "_SECONDS", -1)
    with pytest.raises(_Killed), progress.listening(_Killer()):
        _fit(prior, checkpoint=tmp_path)
    (saved,) = tmp_path.iterdir()
    assert torch.load(saved, weights_only=True)["step"] == 2
    resumed = _fit(prior, checkpoint=tmp_path)
    assert same(whole.tensors, resumed.tensors)
    assert whole.notes["curve"] == resumed.notes["curve"]

    with pytest.raises(UsageError, match="belongs to another prior"):
        _fit(prior, seed=1, checkpoint=tmp_path)
    saved.write_bytes(b"half a file")  # thrown away with a word; the fit begins again
    assert same(whole.tensors, _fit(prior, checkpoint=tmp_path).tensors)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 64, 64)])
@pytest.mark.parametrize("cls", [Dcgan, Style])
def test_sizes_and_channels(cls: type[Dcgan] | type[Style], shape: tuple[int, int, int]) -> None:
    prior = cls(width=2, latent=4, steps=1, batch=2, size=shape[1], opening=1)
    made = prior.generator(prior.fit(image_set(4, "few", shape), generator(0, "fit"), device=CPU), CPU)
    assert made.pictures(3, generator(0, "s")).shape == (3, *shape)


@pytest.mark.parametrize("prior", TRAINED, ids=_name)
@pytest.mark.parametrize("shape", [(1, 16, 20), (2, 16, 16), (3, 30, 30)])
def test_shapes_it_cannot_make_are_refused(prior: Prior, shape: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="resize the dataset") as raised:
        _fit(prior, image_set(8, "odd", shape))
    assert "\n" not in str(raised.value)


def test_other_bad_input_is_one_line() -> None:
    with pytest.raises(UsageError, match="set to size 32 and the public pictures are 1×16×16"):
        _fit(Dcgan(size=32))
    with pytest.raises(UsageError, match="needs 2 public pictures or more, not 1"):
        _fit(TINY, image_set(1, "one"))
    with pytest.raises(UsageError, match="learns from the target's scores"):
        TRAINED[-1].fit(PUBLIC, generator(0, "fit"), device=CPU)
    points = ImageSet(torch.rand(8, 5, 1, 1), torch.zeros(8, dtype=torch.int64), ("a",), pixels=False)
    with pytest.raises(UsageError, match="learns pictures"):
        _fit(Linear(2), points)


@pytest.mark.parametrize(
    "spec", ["dcgan:width=0", "dcgan:loss=wgan", "style:average=1", "kedmi-gan:batch=1", "linear:0", "style:steps=-1"]
)
def test_fields_are_checked(spec: str) -> None:
    with pytest.raises(UsageError):
        PRIORS.build(spec)


@dataclass(frozen=True)
class _Searcher:
    """What an attack's field looks like."""

    prior: PriorField = field(default_factory=lambda: Linear(6))


@pytest.mark.parametrize("written", ["style:width=4", {"kind": "style", "width": 4}, Style(width=4)])
def test_a_field_takes_a_prior_by_name(written: object) -> None:
    built = validated(_Searcher, {"prior": written}, "searcher")
    assert built.prior == Style(width=4)
    assert validated(_Searcher, describe(built), "searcher") == built
    with pytest.raises(UsageError, match="unknown prior 'stile'; did you mean style"):
        validated(_Searcher, {"prior": "stile"}, "searcher")
