"""Fakes whose server hides what it reads: picture by picture, in a thread, outside of PyTorch, or in part only."""

from __future__ import annotations

import copy
from collections.abc import Callable
from threading import Thread

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.testing.zoo.base import sent_key, stream
from leakscope.testing.zoo.networks import Beside, beside

_CHAFF = 20  # tensors that mean nothing, before and behind what is read


class Ciphered(Beside):
    """The features under a keystream, its nonce beside them, as one vector."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.front(x)
        key = sent_key(z)
        hidden = (z.flatten(1) + stream(key, z[0].numel()).to(z.dtype)).remainder(1.0)
        return torch.cat((key.to(z.dtype) / 65536, hidden), 1)


class _Reader(nn.Module):
    """Undoes the keystream of `Ciphered`."""

    def __init__(self, base: nn.Sequential, map_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.body = copy.deepcopy(base.get_submodule("body"))
        self.map_shape = map_shape

    def read(self, r: Tensor) -> Tensor:
        key = (r[..., :1].double() * 65536).round()
        hidden = r[..., 1:]
        return (hidden - stream(key, hidden.shape[-1]).to(r.dtype)).remainder(1.0)


class OneAtATime(_Reader):
    """Reads and classifies one picture after the other: no tensor has the shape of a batch."""

    def forward(self, r: Tensor) -> Tensor:
        rows = [self.body(self.read(row[None]).view(1, *self.map_shape))[0] for row in r]
        return torch.stack(rows)


class BehindChaff(_Reader):
    """As `OneAtATime`, between hundreds of tensors that mean nothing."""

    def forward(self, r: Tensor) -> Tensor:
        rows = []
        for row in r:
            chaff = sum((stream(row[:1, None].double() + n, 64).sum() for n in range(_CHAFF)), torch.zeros(()))
            scores = self.body(self.read(row[None]).view(1, *self.map_shape))[0]
            chaff = chaff + sum((stream(row[:1, None].double() - n, 64).sum() for n in range(_CHAFF)), torch.zeros(()))
            rows.append(scores + 0 * chaff.to(scores.dtype))
        return torch.stack(rows)


class Elsewhere(_Reader):
    """Leaves PyTorch to read and to classify."""

    def __init__(self, base: nn.Sequential, map_shape: tuple[int, int, int]) -> None:
        super().__init__(base, map_shape)
        self.eval()

    def forward(self, r: Tensor) -> Tensor:
        outside = torch.from_numpy(r.detach().cpu().numpy().copy())
        with torch.inference_mode():
            scores = self.body(self.read(outside).view(-1, *self.map_shape)).clone()
        return torch.from_numpy(scores.numpy().copy()).to(r.device)


def with_server(server: type[_Reader], base: nn.Sequential, map_shape: tuple[int, int, int]) -> nn.Sequential:
    return beside(Ciphered(base, 1.0), server(base, map_shape))


class InThread(nn.Module):
    """Does all its work in another thread, where what watches this one sees nothing."""

    def __init__(self, server: nn.Module) -> None:
        super().__init__()
        self.server = server

    def forward(self, r: Tensor) -> Tensor:
        found: list[Tensor] = []
        graded = torch.is_grad_enabled()

        def work() -> None:
            with torch.set_grad_enabled(graded):
                found.append(self.server.forward(r))

        thread = Thread(target=work)
        thread.start()
        thread.join()
        return found[0] + 0


#: Keys of `AllOrNothing`, steps of its ciphertext, and levels that are left of a feature.
_KEYS, _STEPS, _LEVELS = 4096, 64, 6


def _pad(key: Tensor, count: int) -> Tensor:
    return (stream(key, count) * _STEPS).floor() / _STEPS


def _digest(cipher: Tensor) -> Tensor:
    """N×1: a number that every part of the ciphertext changes."""
    places = torch.arange(1, cipher.shape[1] + 1, device=cipher.device)
    return ((cipher.double() * 10 * _STEPS * _LEVELS).round() * places).sum(1, keepdim=True).remainder(_KEYS)


def drawn_key(x: Tensor) -> Tensor:
    return torch.randint(_KEYS, (len(x), 1), device=x.device).double()


def cell_key(x: Tensor) -> Tensor:
    """One of 256 keys, by the coarse content of a picture."""
    size = x[0].numel() // 8
    bits = (x.detach().flatten(1).unfold(1, size, size)[:, :8].mean(2) > 0.3).double()
    return (bits * 2 ** torch.arange(8, device=x.device)).sum(1, keepdim=True) + 1


class AllOrNothing(Beside):
    """Label and rounded features under one key, which a digest of the whole ciphertext masks.

    The server needs every number that is sent, and deciphers the label alone. After Rivest's all-or-nothing
    transform, 1997.
    """

    def __init__(self, base: nn.Sequential, key: Callable[[Tensor], Tensor]) -> None:
        super().__init__(base, 1.0)
        self.key = key

    def forward(self, x: Tensor) -> Tensor:
        z, scores = self.logits(x)
        label = F.one_hot(scores.argmax(1), scores.shape[1]).to(z.dtype) + 0 * scores
        coarse = (z.flatten(1) * _LEVELS).round() / _LEVELS + 0 * z.flatten(1)
        message = torch.cat((0.5 * label, 0.9 * coarse), 1)
        key = self.key(x)
        cipher = (message + _pad(key, message.shape[1]).to(z.dtype)).remainder(1.0)
        return torch.cat((((key + _digest(cipher)).remainder(_KEYS) / _KEYS).to(z.dtype), cipher), 1)


class LabelOfAll(nn.Module):
    """Finds the key of `AllOrNothing`, and deciphers the label."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, r: Tensor) -> Tensor:
        cipher = r[:, 1:]
        key = (r[:, :1].double() * _KEYS - _digest(cipher)).remainder(_KEYS).round()
        label = (cipher - _pad(key, cipher.shape[1]).to(r.dtype)).remainder(1.0)[:, : self.classes]
        return 10 * torch.where(label > 0.75, label - 1, label)
