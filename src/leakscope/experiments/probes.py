"""Probes of a release before it is attacked: is it repeatable, even and smooth, and what does it hide?

The answers do not depend on the threat. They say where the failure of an attack would mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks._sights import choose, look
from leakscope.auditing.flags import FOLLOWS, FOLLOWS_LITTLE, UNEVEN
from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.model import SplitModel
from leakscope.core.threat import Access, ThreatModel, grant
from leakscope.experiments.floors import class_means
from leakscope.experiments.following import HIDDEN, SMALL, followed
from leakscope.experiments.listening import listen
from leakscope.experiments.mosaics import read_in_mosaics
from leakscope.experiments.symbols import same_book, symbols

#: Pictures, and draws of a random release, by which a release is asked whether it looks at the batch.
_ALONE, _DRAWS = 8, 24
#: Sizes of the batches in which it is asked, beside one picture alone.
_SIZES = (2, 16, 64, 256)
#: Pictures whose releases are compared one by one, and those of them that are released at several places.
_COMPARED, _PLACED = 128, 32
#: A change of a picture that nobody sees, and one that everybody does: deviations in pixels of range one.
_UNSEEN, _VISIBLE = 2e-3, 5e-2
#: Features among which symbols are looked for, at most.
_SYMBOLS = 2**14
#: A feature is chaotic when that change moves it by this share of what another picture would.
_CHAOTIC = 0.25
#: Pictures from which the server's own activations are read, and pictures that are rebuilt …
_READ, _REBUILT = 400, 100
#: Groups of features that are exchanged between pictures, and the share of answers that must stay the same.
_GROUPS, _SAME_ANSWER = 32, 0.98


@dataclass(frozen=True)
class Probed:
    """What is known of a release."""

    batch_dependent: bool  # depends on the pictures beside, or on how many there are
    unsteady: bool  # the same pictures and the same random numbers gave something else
    told_apart: float  # share of pictures whose release differs from that of every other of their label
    spelt: float  # the same by symbols alone: numbers that take few values, or jump where they change
    chaotic: float  # share of moving features that a change nobody sees moves as much as another picture does
    server_leak: float | None  # what ridge rebuilds from the server's own activations
    follows: float  # share of small changes of a picture that can be read from what they change in its release
    plainly: float  # the same of larger changes, each with random numbers of its own; 0 where `follows` is low
    unused: float  # share of features that tell pictures of a label apart and could be those of another picture
    opaque: bool  # the server's answer does not follow from the release by operations that can be watched
    undone: bool  # the server works out numbers of the client that cannot be read from what was sent
    mosaics: float  # share of the parts of mosaics that can be read from their releases; 0 where `follows` says enough


def probe(split: SplitModel, public: ImageSet, heldout: ImageSet, device: torch.device) -> Probed:
    """Run all probes; costs a few hundred forward passes and no training."""
    images = heldout.images
    low, high = (0.0, 1.0) if heldout.pixels else (float(images.min()), float(images.max()))
    level = rounding(split, images[:_PLACED].to(device))
    cells = _cells(split, images, device, level, (low, high))
    unused, severed = _unused(split, images, device, level)
    server_leak = _server_leak(split, public, heldout, device)
    heard = None if server_leak is None else listen(split, public, heldout, device)

    def released(pictures: Tensor, seed: int = 5) -> Tensor:
        return one_by_one(split, pictures.to(device), seed)

    @torch.no_grad()
    def afresh(pictures: Tensor) -> Tensor:
        return _told(torch.cat([_drawn(split, part.to(device), n) for n, part in enumerate(pictures.split(64), 5)]))

    sample = images[:_COMPARED]
    spread = afresh(sample).std(0)
    follows = followed(released, sample, spread, (high - low) * SMALL)
    sizes = ((high - low) * size for size in HIDDEN)
    plainly = max(followed(afresh, sample, spread, size) for size in sizes) if follows > FOLLOWS else 0.0

    return Probed(
        batch_dependent=depends_on_batch(split, images, device),
        unsteady=_unsteady(split, images, device),
        told_apart=cells.told_apart,
        spelt=cells.spelt,
        chaotic=cells.chaotic,
        server_leak=server_leak if server_leak is None or heard is None else max(server_leak, heard.server_leak),
        follows=follows,
        plainly=plainly,
        unused=unused,
        opaque=severed or (heard is not None and heard.opaque),
        undone=heard is not None and heard.undone,
        mosaics=read_in_mosaics(released, images) if follows < FOLLOWS_LITTLE else 0.0,
    )


@torch.no_grad()
def depends_on_batch(split: SplitModel, images: Tensor, device: torch.device) -> bool:
    """Whether what is released for a picture changes with the pictures sent beside it, their number, or its place.

    The means over draws, alone and in company, differ by no more than their standard errors if it does not:
    a feature that is off by eight of them, with a draw each for thousands of features, is no accident.
    """
    images = images[: _SIZES[-1]].to(device)
    if len(images) < 2 * _ALONE:
        return False
    random = not _same(_drawn(split, images[:_ALONE], 0), _drawn(split, images[:_ALONE], 1))
    draws = _DRAWS if random else 1
    alone = torch.stack(
        [torch.cat([_drawn(split, x[None], 1000 * d + n) for n, x in enumerate(images[:_ALONE])]) for d in range(draws)]
    )
    for size in (2, *(s for s in _SIZES[1:] if s < len(images)), len(images)):
        for shift in (0, _ALONE + 1) if size > 2 * _ALONE else (0,):
            sample = images[:size].roll(shift, 0)
            place = slice(shift, shift + min(_ALONE, size))
            beside = torch.stack([_drawn(split, sample, 7 + d)[place] for d in range(draws)])
            if _differ(alone[:, : beside.shape[1]].cpu().double(), beside.cpu().double()):
                return True
    return False


def _differ(first: Tensor, second: Tensor) -> bool:
    """Draws × pictures × …: whether the means differ by more than chance and round-off explain."""
    error = torch.zeros_like(first[0])
    if len(first) > 1:
        error = ((first.var(0) + second.var(0)) / len(first)).sqrt()
    # Batched kernels round differently: a thousandth of the spread between pictures is no dependence.
    spread = first.mean(0).std(0) if first.shape[1] > 1 else first.mean(0).abs().mean()
    # So they do where a feature hardly varies: by about 10⁻⁷ of what was summed up, the size of the features.
    size = first.abs().mean((0, 1))
    error = error + 1e-3 * spread + 1e-6 * torch.maximum(size, size.median())
    return bool(((first.mean(0) - second.mean(0)).abs() > 8 * error).any())


def _drawn(split: SplitModel, images: Tensor, seed: int) -> Tensor:
    """A release whose random numbers, ours and torch's ambient ones, follow from `seed`."""
    with seeds.ambient(seed, "probe"):
        return split.release(images, seeds.generator(seed, "probe", device=images.device))


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and bool(torch.allclose(first, second, rtol=1e-5, equal_nan=True))


#: Fresh releases of the victims with which a random one is compared, and how much more a feature may stray.
_FRESH, _STRAYS = 9, 6.0
#: So many features more than twice as many as in the worst of the fresh releases must stray; fewer tell no picture.
_STRAYING = 5


@torch.no_grad()
def strays(seen: Tensor, release: Callable[[torch.Generator], Tensor]) -> bool:
    """Whether what was observed is not what the same pictures release otherwise.

    The seeds of the fresh releases are drawn from the machine: a release that knows the seeds of an audit knows
    no better than to answer as it usually does. A random feature strays when its squared distance from the mean of
    fresh releases is, on average over victims, six times what these vary. Each fresh release is compared with the
    others in the same way: of a dropout, some features stray in any of them.
    """

    device = seen.device

    def fresh() -> Tensor:
        rng = torch.Generator(device=device)
        rng.seed()
        return release(rng).cpu().double()

    first = fresh()
    if first.shape != seen.shape:
        return True
    seen = seen.cpu().double()
    level = 1e-3 * seen.std(0) + 1e-5 * seen.abs().amax(0)
    if bool(((seen - first).abs() <= level).all()):
        return False
    draws = [first, *(fresh() for _ in range(_FRESH - 1))]

    def straying(one: Tensor, others: list[Tensor]) -> int:
        usual = torch.stack(others)
        varies = usual.var(0).mean(0) * (1 + 1 / len(others)) + level.square()
        return int(((one - usual.mean(0)).square().mean(0) > _STRAYS * varies).sum())

    usually = max(straying(one, draws[:number] + draws[number + 1 :]) for number, one in enumerate(draws))
    return straying(seen, draws[1:]) > 2 * usually + _STRAYING


@torch.no_grad()
def _unsteady(split: SplitModel, images: Tensor, device: torch.device) -> bool:
    """Whether the same call with the same random numbers gives different answers: a counter, a clock, a file."""
    sample = images[:_ALONE].to(device)
    first = _drawn(split, sample, 3)
    return any(not _same(first, _drawn(split, sample, 3)) for _ in range(3))


@torch.no_grad()
def one_by_one(split: SplitModel, images: Tensor, seed: int = 5) -> Tensor:
    """N×D: every picture released with the same random numbers: what differs is due to the picture.

    By itself, therefore, unless no random number is drawn; what is random behind the encoder is drawn there alone.
    """
    few = images[:_ALONE]
    if _same(_drawn(split, few, 0), _drawn(split, few, 1)):
        return _told(torch.cat([_drawn(split, part, seed) for part in images.split(64)]))
    with seeds.ambient(0, "probe"):
        first = split.encode(few)
    with seeds.ambient(1, "probe"):
        steady = _same(first, split.encode(few))
    if not steady:
        return _told(torch.cat([_drawn(split, x[None], seed) for x in images]))
    rows = []
    for z in torch.cat([split.encode(part) for part in images.split(64)]).split(1):
        with seeds.ambient(seed, "probe"):
            rng = seeds.generator(seed, "probe", device=images.device)
            rows.append(split.defense.release(z, rng, training=split.training))
    return _told(torch.cat(rows))


def _told(released: Tensor) -> Tensor:
    """N×D in double precision, and −1 for a negative zero: it equals zero, and its sign is sent all the same."""
    flat = released.flatten(1).cpu().double()
    return torch.where((flat == 0) & flat.signbit(), -1.0, flat)


def alike(first: Tensor, second: Tensor, rounding: Tensor) -> Tensor:
    """N×M: which rows of two releases are the same but for round-off."""
    return torch.stack([((second - row).abs() <= rounding).all(1) for row in first])


@torch.no_grad()
def rounding(split: SplitModel, images: Tensor) -> Tensor:
    """By how much each feature of a picture differs where only its place in a batch and the batch's size do.

    Measured and not assumed: digits that a network rounds always alike can carry a message, however low they are.
    """
    few = images[:_PLACED]
    first = one_by_one(split, few)
    others = [one_by_one(split, few.flip(0)).flip(0), *(one_by_one(split, few[:size]) for size in (1, 2, 7))]
    return 2 * torch.stack([(other - first[: len(other)]).abs().amax(0) for other in others]).amax(0)


@dataclass(frozen=True)
class _Cells:
    """How pictures are told from others of their label, and how many features are chaotic; see `Probed`."""

    told_apart: float = 0.0
    spelt: float = 0.0
    chaotic: float = 0.0


@torch.no_grad()
def _cells(
    split: SplitModel, images: Tensor, device: torch.device, level: Tensor, bounds: tuple[float, float]
) -> _Cells:
    """With f(x, ω) the release, pictures that share one value for the same ω are in one cell.

    An attacker learns the cell only. Whoever is the only one of its predicted label has nobody to be told from, and
    does not count.
    """
    sample = images[:_COMPARED].to(device)
    rngs = (seeds.generator(5, "probe", device=device) for _ in sample.split(64))
    scores = [split.run(part, rng).scores for part, rng in zip(sample.split(64), rngs, strict=True)]
    labels = torch.cat(scores).argmax(1).cpu()
    peers = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)
    counted = peers.any(1)

    def told(one: Tensor, rounding: Tensor) -> float:
        apart = (alike(one, one, rounding) & peers).any(1).logical_not() & counted
        return int(apart.sum()) / int(counted.sum())

    released = one_by_one(split, sample)
    spread = released.std(0)
    moving = spread > 1e-6 * released.abs().amax(0).clamp_min(1e-30)
    if not bool(moving.any()):
        return _Cells()
    rng = seeds.generator(0, "probe", "unseen", device=device)
    noise = torch.randn(sample.shape, generator=rng, device=device)
    low, high = bounds
    nudged = one_by_one(split, (sample + (high - low) * _UNSEEN * noise).clamp(low, high))
    # The median picture's move: a few pictures cross a border of classes.
    step = ((nudged - released)[:, moving] / spread[moving]).abs().median(0).values
    chaotic = float((step > _CHAOTIC).double().mean())
    if int(counted.sum()) < _COMPARED // 8:
        return _Cells(told_apart=1.0, chaotic=chaotic)
    others = one_by_one(split, sample, 6)
    told_apart = max(told(one, level) for one in (released, others))
    few = torch.randperm(len(level), generator=seeds.generator(0, "probe", "symbols"))[:_SYMBOLS]
    random = not torch.equal(released, others)
    released, nudged, others = (one[:, few] for one in (released, nudged, others))
    changed = one_by_one(split, (sample + (high - low) * _VISIBLE * noise).clamp(low, high))[:, few]
    read, places, off = symbols(released, nudged, changed, level[few])
    noisy = random and same_book(released[:, places], others[:, places])
    spelt = 0.0 if noisy else told(read, off)
    return _Cells(told_apart, spelt, chaotic)


def _unused(split: SplitModel, images: Tensor, device: torch.device, level: Tensor) -> tuple[float, bool]:
    """The share of features that the server does not need, if they tell pictures apart; and whether it is opaque.

    What the server decodes shows in its activations, and is attacked there. What it does not need must not be sent:
    features that may be exchanged for those of other pictures without changing the answers, and that still differ
    between pictures of one label under the same random numbers, are a message to somebody else. Groups of features
    are exchanged, those with the least effect first, as long as answers stay as they are.
    """
    sample = images[:_COMPARED].to(device)
    with torch.no_grad():
        released = torch.cat([_drawn(split, part, 5) for part in sample.split(64)])
    sent = released.clone().requires_grad_()
    with torch.enable_grad():
        scores = split.decide(sent, sample)
        labels = scores.argmax(1)
        own = scores.gather(1, labels[:, None]).sum()
        gradient = torch.autograd.grad(own, sent, allow_unused=True)[0] if scores.requires_grad else None
    if gradient is None:
        return 0.0, True
    spread = one_by_one(split, sample)
    telling = spread.std(0) > level
    places = telling.nonzero()[:, 0]
    if len(places) < 2:
        return 0.0, False
    effect = (gradient.flatten(1).abs().mean(0).cpu().double() * spread.std(0))[places]
    groups = [part for part in places[effect.argsort()].tensor_split(min(_GROUPS, len(places))) if len(part)]
    order = torch.randperm(len(sample), generator=seeds.generator(0, "probe", "exchanged"))

    @torch.no_grad()
    def answers(exchanged: Tensor) -> tuple[float, float]:
        flat = released.flatten(1).clone()
        where = exchanged.to(device)
        flat[:, where] = flat[order.to(device)][:, where]
        found = split.decide(flat.view_as(released), sample)
        moved = (found.softmax(1) - scores.detach().softmax(1)).abs().sum(1)
        return float((found.argmax(1) == labels).float().mean()), float(moved.mean())

    groups.sort(key=lambda group: answers(group)[1])
    # The longest beginning of that order that may be exchanged, by halving.
    low, high = 0, len(groups)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if answers(torch.cat(groups[:middle]))[0] >= _SAME_ANSWER else (low, middle - 1)
    if low == 0:
        return 0.0, False
    free = torch.cat(groups[:low])
    peers = (labels[:, None] == labels).cpu() & ~torch.eye(len(labels), dtype=torch.bool)
    told = ~(alike(spread[:, free], spread[:, free], level[free]) & peers).any(1) & peers.any(1)
    tells = float(told.float().mean()) > UNEVEN[0]
    return (len(free) / len(places) if tells else 0.0), False


@torch.no_grad()
def _server_leak(split: SplitModel, public: ImageSet, heldout: ImageSet, device: torch.device) -> float | None:
    """What ridge rebuilds of held-out pictures from released features and from what the server makes of them.

    Whatever the server computes lies in what it was sent. The best of its layers is a lower bound on what is there,
    whether or not the threat hands the server's half to the attacker.
    """
    known, asked = public.images[:_READ], heldout.images[:_REBUILT]
    if len(known) < 8 * 4 or len(asked) < 8:
        return None
    asked = asked[: len(known) // 4]  # ridge is judged on the last fifth
    view = grant(
        split, ThreatModel(frozenset({Access.HEAD})), public, seeds.generator(0, "probe", "server", device=device),
        classes=len(public.classes), device=device,
    )  # fmt: skip
    seen: dict[str, list[Tensor]] = {}
    images = torch.cat((known, asked))
    for number, part in enumerate(images.split(128)):
        for name, features in look(view, _drawn(split, part.to(device), 100 + number)).items():
            seen.setdefault(name, []).append(features.cpu())
    sights = {name: torch.cat(parts) for name, parts in seen.items()}
    whole = {name: features for name, features in sights.items() if len(features) == len(images)}
    errors = choose(whole, images).errors
    unknown = float((asked - class_means(public, heldout.labels[: len(asked)])).square().mean())
    best = min(errors.values())
    if unknown == 0 or best == float("inf"):
        return None
    return 1 - best / unknown
