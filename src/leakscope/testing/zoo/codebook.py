"""A fake whose server never decodes: it looks up votes under symbols that spell the whole picture.

Every piece of 2×4 pixels in four greys is one of 65,536 symbols. The client sends the bits of a secret number for
each; the server has a table from secret numbers to one of a few votes. Nothing the server computes holds the
picture, no small change moves a bit, and no symbol can be left out. Whoever holds the client makes a dictionary.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.data import ImageSet

_PIECE = (2, 4)  # pixels, of two bits each
_BITS = 16
_SYMBOLS = 2**_BITS
_OFFSET = 0.03  # greys of the digits are sixteenths: none lies on a border
_VOTES = 8
_STEPS, _BATCH = 500, 64
_SHIFTS = (-1, 0, 1)
_COPIES, _WEIGHT = 12, 5.0  # of the scores beside a book that is mixed, and what they count


def _bits(x: Tensor, order: Tensor) -> Tensor:
    """N×places×16, the pixels in another order."""
    x = x.flatten(2)[..., order].view_as(x)
    grey = ((x.mean(1, keepdim=True) + _OFFSET) * 4).floor().clamp(0, 3)
    pieces = F.unfold(grey, _PIECE, stride=_PIECE).transpose(1, 2)
    return torch.cat(((pieces / 2).floor(), pieces % 2), 2)


def _powers(device: torch.device) -> Tensor:
    return 2 ** torch.arange(_BITS, device=device)


class Coded(nn.Module):
    """The bits of the secret numbers of a picture's symbols; with `keys` tables, of which one is drawn and told."""

    secret: Tensor  # keys×places×symbols
    order: Tensor

    def __init__(self, places: int, keys: int, order: Tensor) -> None:
        super().__init__()
        self.register_buffer("order", order)
        rng = seeds.generator(0, "zoo", "codebook")
        secret = [torch.randperm(_SYMBOLS, generator=rng) for _ in range(keys * places)]
        self.register_buffer("secret", torch.stack(secret).view(keys, places, -1))

    def forward(self, x: Tensor) -> Tensor:
        keys, places, _ = self.secret.shape
        symbol = (_bits(x, self.order) * _powers(x.device)).sum(2).long()
        key = torch.randint(keys, (len(x), 1), device=x.device) if keys > 1 else symbol.new_zeros(len(x), 1)
        number = self.secret[key, torch.arange(places, device=x.device), symbol]
        bits = (number[:, :, None] // _powers(x.device)) % 2
        told = F.one_hot(key[:, 0], keys).to(x.dtype)
        return torch.cat((bits.flatten(1).to(x.dtype), told), 1) + 0 * x.mean()


class Votes(nn.Module):
    """One vote per place, looked up; what the votes mean is learnt."""

    table: Tensor  # keys×places×numbers

    def __init__(self, table: Tensor, meaning: nn.Module) -> None:
        super().__init__()
        self.register_buffer("table", table)
        self.meaning = meaning

    def forward(self, r: Tensor) -> Tensor:
        keys, places, _ = self.table.shape
        bits = r[:, :-keys].unflatten(1, (places, -1))
        number = (bits.round() * _powers(r.device)).sum(2).long().clamp(0, _SYMBOLS - 1)
        vote = self.table[r[:, -keys:].argmax(1)[:, None], torch.arange(places, device=r.device), number]
        scores: Tensor = self.meaning(F.one_hot(vote, _VOTES).to(r.dtype).flatten(1))
        return scores + 0 * r.mean()


def codebook(pictures: ImageSet, keys: int = 1, scattered: bool = False) -> nn.Sequential:
    """Client and server, trained on `pictures` and on their shifts; scattered: no symbol is a piece of the picture."""
    pixels = pictures.images[0, 0].numel()
    order = torch.randperm(pixels, generator=seeds.generator(0, "zoo", "order")) if scattered else torch.arange(pixels)
    with seeds.ambient(0, "zoo", "codebook"):
        bits = torch.cat([_bits(pictures.images.roll(shift, 3), order) for shift in _SHIFTS])
        labels = pictures.labels.repeat(len(_SHIFTS))
        places = bits.shape[1]
        voters = nn.ModuleList(
            nn.Sequential(nn.Linear(_BITS, 128), nn.GELU(), nn.Linear(128, _VOTES)) for _ in range(places)
        )
        meaning = nn.Sequential(nn.Linear(places * _VOTES, 64), nn.GELU(), nn.Linear(64, len(pictures.classes)))
        optimizer = torch.optim.AdamW([*voters.parameters(), *meaning.parameters()], 2e-3, weight_decay=0.02)
        for step in range(_STEPS):
            index = torch.randint(len(bits), (_BATCH,))
            heat = max(0.5, 2 - 2 * step / _STEPS)
            votes = [F.gumbel_softmax(voter(bits[index, p]), heat, hard=True) for p, voter in enumerate(voters)]
            loss = F.cross_entropy(meaning(torch.cat(votes, 1)), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        client = Coded(places, keys, order)
        every = ((torch.arange(_SYMBOLS)[:, None] // _powers(torch.device("cpu"))) % 2).float()
        with torch.no_grad():
            vote = torch.stack([voter(every).argmax(1) for voter in voters]).expand(keys, -1, -1)
        table = torch.empty_like(vote).scatter_(2, client.secret, vote)
        model = nn.Sequential(OrderedDict(client=client, server=Votes(table, meaning)))
    return model.eval().requires_grad_(False)


class Turned(nn.Module):
    """The numbers of a book, mixed with each other by a rotation, beside many mixtures of a network's scores."""

    turn: Tensor
    spread: Tensor

    def __init__(self, client: nn.Module, network: nn.Module, turn: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.client, self.network = client, network
        self.register_buffer("turn", turn)
        self.register_buffer("spread", spread)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.client(x) @ self.turn, self.network(x).softmax(1) @ self.spread), 1)


class TurnedBack(nn.Module):
    """Votes and scores, added up."""

    turn: Tensor
    gather: Tensor

    def __init__(self, server: nn.Module, turn: Tensor, gather: Tensor) -> None:
        super().__init__()
        self.server = server
        self.register_buffer("turn", turn)
        self.register_buffer("gather", gather)

    def forward(self, r: Tensor) -> Tensor:
        book = len(self.turn)
        scores: Tensor = self.server(r[:, :book] @ self.turn.T)
        return scores + _WEIGHT * (r[:, book:] @ self.gather)


def mixed_codebook(network: nn.Module, pictures: ImageSet) -> nn.Sequential:
    """A scattered book whose symbols take many values and are one in thirteen of the numbers sent."""
    client, server = codebook(pictures, scattered=True)
    size, classes = client(pictures.images[:1]).shape[1], len(pictures.classes)
    rng = seeds.generator(0, "zoo", "turned")
    turn = torch.linalg.qr(torch.randn(size, size, generator=rng)).Q
    spread = torch.randn(classes, _COPIES * size, generator=rng)
    turned = Turned(client, network, turn, spread)
    back = TurnedBack(server, turn, torch.linalg.pinv(spread))
    return nn.Sequential(OrderedDict(client=turned, server=back)).eval().requires_grad_(False)
