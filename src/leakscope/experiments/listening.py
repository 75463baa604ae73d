"""Listening to client and server for one picture at a time: what the server sees, what it undoes, what it hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks._sights import held_out_error
from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.model import SplitModel
from leakscope.experiments.floors import class_means

#: Pictures from which a server is read, pictures that are rebuilt, and tensors that are read at most.
_KNOWN, _REBUILT, _TENSORS = 240, 60, 1024
#: Operations that may be listened to, and pictures that are rebuilt in any case.
_OPERATIONS, _FEWEST = 200_000, 20
#: Numbers of each tensor that are compared between client and server, and numbers that are examined at most.
_COMPARED, _EXAMINED = 32, 24
#: Two numbers that correlate like this over all pictures are the same number, or nearly the same.
_EQUAL, _NEAR = 1 - 1e-6, 0.999
#: Share of its variance that a linear reader finds in what was sent, if a number is readable there.
_READABLE = 0.9
#: Numbers that may reach the server's operations in another way than through them.
_STRAY = 8


@dataclass(frozen=True)
class Listened:
    """What single pictures showed."""

    server_leak: float  # what ridge rebuilds from any tensor that the server computes, of whatever shape
    undone: bool  # the server works out numbers of the client that cannot be read from what was sent
    opaque: bool  # what the server computes with comes to it by a way that cannot be watched


@torch.no_grad()
def listen(split: SplitModel, public: ImageSet, heldout: ImageSet, device: torch.device) -> Listened:
    """One forward pass per picture, each with random numbers of its own."""
    # A solver inside the network may take thousands of operations: then fewer pictures have to do.
    with seeds.ambient(0, "probe"):
        cost = split.overheard(public.images[:1].to(device), seeds.generator(0, "probe", device=device))[0].operations
    asked = heldout.images[: min(_REBUILT, len(public) // 4, max(_FEWEST, _OPERATIONS // max(1, 5 * cost)))]
    images = torch.cat((public.images[: 4 * len(asked)][:_KNOWN], asked))
    clients, servers, foreign, numbers, sent, labels = [], [], [], [], [], []
    for number, x in enumerate(images):
        with seeds.ambient(1000 + number, "probe"):
            rng = seeds.generator(1000 + number, "probe", device=device)
            heard, found = split.overheard(x[None].to(device), rng)
        clients.append(heard.client.tensors)
        servers.append(heard.server.tensors)
        foreign.append(heard.foreign.tensors)
        numbers.append([torch.tensor(heard.numbers)])
        sent.append(found.released[0].flatten().cpu())
        labels.append(int(found.scores.argmax()))
    server, released = _lined_up(servers), torch.stack(sent)
    unknown = float((asked - class_means(public, heldout.labels[: len(asked)])).square().mean())
    coordinates = _coordinates(images)
    share = coordinates.shape[1] / images[0].numel()  # errors are means over pixels
    errors = [share * held_out_error(features, coordinates) for features in server[:_TENSORS]]
    stray = sum(int((part.std(0) > 0).sum()) for part in (*_lined_up(foreign), *_lined_up(numbers)))
    return Listened(
        max((1 - error / unknown for error in errors), default=0.0) if unknown else 0.0,
        _undone(_lined_up(clients), server, released, torch.tensor(labels)),
        stray > _STRAY,
    )


def _coordinates(images: Tensor) -> Tensor:
    """As many numbers per picture as there are pictures at most, with the same distances between them."""
    flat = images.flatten(1).double()
    if flat.shape[1] <= len(flat):
        return flat
    values, vectors = torch.linalg.eigh(flat @ flat.T)
    coordinates: Tensor = vectors * values.clamp_min(0).sqrt()
    return coordinates


def _lined_up(heard: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Tensors (pictures × numbers) that move and are finite, each once.

    Counted from the front and from the back: a network may compute something more for some pictures.
    """
    fewest = min(len(own) for own in heard)
    found: dict[bytes, Tensor] = {}
    for place in (*range(fewest), *range(-fewest, 0)):
        rows = [own[place] for own in heard]
        if len({len(row) for row in rows}) == 1 and len(rows[0]):
            stacked = torch.stack(rows)
            if bool((stacked.std(0) > 0).any()) and bool(stacked.isfinite().all()):
                found.setdefault(stacked[:2].numpy().tobytes(), stacked)
    return list(found.values())


def _undone(client: Sequence[Tensor], server: Sequence[Tensor], released: Tensor, labels: Tensor) -> bool:
    """Whether the server arrives at numbers of the client's that no linear reader finds in what was sent.

    A keystream, a permutation, a decoded map: whoever hides and brings back computes the same thing twice. What the
    label determines is left out: a client may send it in any form.
    """
    ours, theirs = (_standardised(_columns(side)) for side in (client, server))
    if not ours.shape[1] or not theirs.shape[1]:
        return False
    theirs = theirs[:, _largest(ours, theirs) > _EQUAL]
    theirs = theirs[:, _largest(_standardised(released.double()), theirs) <= _NEAR]
    step = max(1, theirs.shape[1] // _EXAMINED)
    return any(
        _within(column, labels) > 1 - _READABLE and held_out_error(released, column[:, None]) > 1 - _READABLE
        for column in theirs[:, ::step].T
    )


def _largest(first: Tensor, second: Tensor) -> Tensor:
    """For each column of the second, the largest correlation with a column of the first."""
    if not first.shape[1] or not second.shape[1]:
        return second.new_zeros(second.shape[1])
    return (first.T @ second / len(first)).abs().amax(0)


def _within(column: Tensor, labels: Tensor) -> float:
    """The share of a number's variance that its label leaves open."""
    away = column.clone()
    for label in labels.unique():
        away[labels == label] -= column[labels == label].mean()
    return float(away.square().mean() / column.var())


def _standardised(columns: Tensor) -> Tensor:
    """Columns of mean zero and variance one, without far values, which alone would make two columns alike.

    A number that is the same for half of the pictures or more is left out.
    """
    middle = columns.median(0).values
    away = columns - middle
    width = away.abs().median(0).values
    moving = width > 1e-6 * columns.abs().amax(0)
    if not bool(moving.any()):
        return columns[:, :0]
    clipped = (away[:, moving] / width[moving]).clamp(-4, 4)
    return (clipped - clipped.mean(0)) / clipped.std(0, correction=0)


def _columns(tensors: Sequence[Tensor]) -> Tensor:
    """Some numbers of every tensor, side by side."""
    few = [t[:, :: max(1, -(-t.shape[1] // _COMPARED))] for t in tensors]
    return torch.cat(few, 1).double() if few else torch.zeros(1, 0, dtype=torch.float64)
