"""Who lives in the zoo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from leakscope.core.data import ImageSet
from leakscope.core.defense import DEFENSES
from leakscope.testing.zoo import disguises, networks, servers
from leakscope.testing.zoo.codebook import codebook, mixed_codebook
from leakscope.testing.zoo.defences import FAKE_DEFENCES
from leakscope.testing.zoo.honest import HONEST_DEFENCES, USELESS_DEFENCES
from leakscope.testing.zoo.sines import waves

Make = Callable[[nn.Sequential, ImageSet], nn.Module]


@dataclass(frozen=True)
class Fake:
    """A way to cheat: a network that holds it, or a defence that does."""

    name: str
    make: Make | None = None  # the network; None: the plain one, with a defence
    defense: str | None = None

    def build(self, base: nn.Sequential, pictures: ImageSet) -> tuple[nn.Module, list[str]]:
        """The network and the defences to audit it with. `pictures` are those that `base` was trained on."""
        model = base if self.make is None else self.make(base, pictures)
        return model, ["none"] if self.defense is None else ["none", self.defense]


def _with(disguise: Callable[[], disguises.Disguise]) -> Make:
    return lambda base, pictures: networks.disguised(base, disguise())


def _count(base: nn.Sequential, pictures: ImageSet) -> tuple[int, tuple[int, int, int]]:
    _, channels, height, width = base.get_submodule("client")(pictures.images[:1]).shape
    return len(pictures.classes), (channels, height, width)


def _inline(base: nn.Sequential, pictures: ImageSet) -> nn.Module:
    server = networks.InlineServer(base, *_count(base, pictures))
    return networks.beside(networks.LabelAndCipher(base, 1.0), server)


def _beside(client: type[networks.Beside], amount: float) -> Make:
    def make(base: nn.Sequential, pictures: ImageSet) -> nn.Module:
        return networks.beside(client(base, amount), networks.FirstScores(len(pictures.classes)))

    return make


def _served(server: type[servers.OneAtATime | servers.BehindChaff | servers.Elsewhere]) -> Make:
    return lambda base, pictures: servers.with_server(server, base, _count(base, pictures)[1])


def _in_thread(base: nn.Sequential, pictures: ImageSet) -> nn.Module:
    server = networks.InlineServer(base, *_count(base, pictures))
    return networks.beside(networks.LabelAndCipher(base, 1.0), servers.InThread(server))


def _all_or_nothing(key: Callable[[Tensor], Tensor]) -> Make:
    def make(base: nn.Sequential, pictures: ImageSet) -> nn.Module:
        return networks.beside(servers.AllOrNothing(base, key), servers.LabelOfAll(len(pictures.classes)))

    return make


def _phase(base: nn.Sequential, pictures: ImageSet) -> nn.Module:
    _, (channels, height, width) = _count(base, pictures)
    return networks.disguised(base, disguises.Phase(channels * height * width))


FAKES: tuple[Fake, ...] = (
    Fake("loud-row", _with(disguises.LoudRow)),
    Fake("low-digits", _with(disguises.LowDigits)),
    Fake("sent-seed", _with(disguises.SentSeed)),
    Fake("shuffled-batch", _with(disguises.Shuffled)),
    Fake("one-in-eight", _beside(networks.OneInEight, 1 / 8)),
    Fake("quiet-copy", _beside(networks.QuietCopy, 1e-4)),
    Fake("sent-permutation", _with(disguises.SentPermutation)),
    Fake("keystream", _with(disguises.Keystream)),
    Fake("phase", _phase),
    Fake("stored-noise", _with(disguises.StoredNoise)),
    Fake("rounded", _with(lambda: disguises.Rounded(disguises.LowDigits()))),
    Fake("tiny", _with(lambda: disguises.Scaled(1e-25))),
    Fake("huge", _with(lambda: disguises.Scaled(1e25))),
    Fake("infinity", _with(lambda: disguises.Trap(float("inf")))),
    Fake("no-number", _with(lambda: disguises.Trap(float("nan")))),
    Fake("by-size", _with(disguises.BySize)),
    Fake("by-mode", _with(disguises.ByMode)),
    Fake("alternating", _with(disguises.Alternating)),
    Fake("class-residual", lambda base, pictures: networks.class_residual(base, pictures.images, pictures.labels)),
    Fake("inline-server", _inline),
    Fake("label-and-cipher", _beside(networks.LabelAndCipher, 1.0)),
    Fake("label-and-drawn-cipher", _beside(networks.LabelAndDrawnCipher, 1.0)),
    Fake("label-and-coarse-cipher", _beside(networks.LabelAndCoarseCipher, 1.0)),
    Fake("label-and-products", _beside(networks.LabelAndProducts, 1.0)),
    Fake("drawn-one-in-eight", _beside(networks.DrawnOneInEight, 1 / 8)),
    Fake("one-at-a-time", _served(servers.OneAtATime)),
    Fake("behind-chaff", _served(servers.BehindChaff)),
    Fake("elsewhere", _served(servers.Elsewhere)),
    Fake("in-thread", _in_thread),
    Fake("all-or-nothing", _all_or_nothing(servers.drawn_key)),
    Fake("all-or-nothing-by-cell", _all_or_nothing(servers.cell_key)),
    Fake("label-and-cells", _beside(networks.LabelAndCells, 1.0)),
    Fake("negative-zeros", _beside(networks.NegativeZeros, 0.03)),
    Fake("codebook", lambda base, pictures: codebook(pictures)),
    Fake("drawn-codebook", lambda base, pictures: codebook(pictures, keys=16)),
    Fake("scattered-codebook", lambda base, pictures: codebook(pictures, scattered=True)),
    Fake("mixed-codebook", mixed_codebook),
    Fake("short-waves", lambda base, pictures: waves(pictures)),
    *(Fake(name.removeprefix("zoo-") + " (defence)", defense=name) for name in FAKE_DEFENCES),
)


@contextmanager
def enrolled() -> Iterator[None]:
    """The zoo's defences by name, as those of another package would be; afterwards they are gone again."""
    known = {**FAKE_DEFENCES, **HONEST_DEFENCES, **USELESS_DEFENCES}
    list(DEFENSES)  # what is installed comes first
    for name, cls in known.items():
        DEFENSES.register(name)(cls)
    try:
        yield
    finally:
        for name in known:
            DEFENSES._classes.pop(name, None)
