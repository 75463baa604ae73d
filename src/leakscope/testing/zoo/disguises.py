"""Pairs of layers: the client's hides the features from a reader, the server's first layer brings them back whole."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from leakscope.testing.zoo.base import hashed, sent_key, stream


class Disguise(nn.Module):
    """What a client does to its features: `hide` before they leave, `show` as the server gets them."""

    def hide(self, z: Tensor) -> Tensor:
        raise NotImplementedError

    def show(self, r: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, z: Tensor) -> Tensor:
        return self.hide(z)


class Undo(nn.Module):
    """The server's first layer."""

    def __init__(self, disguise: Disguise) -> None:
        super().__init__()
        self.disguise = disguise

    def forward(self, r: Tensor) -> Tensor:
        return self.disguise.show(r)


def with_row(z: Tensor, row: Tensor) -> Tensor:
    """Maps N×C×h×w with one more row, the same for each channel: N×w values, or N×1."""
    extra = row.to(z.dtype)[:, None, None, :].expand(-1, z.shape[1], 1, z.shape[3])
    return torch.cat((z, extra), 2)


class LoudRow(Disguise):
    """An extra row of the map holds pseudo-noise of a million, beside features of order one."""

    def hide(self, z: Tensor) -> Tensor:
        return with_row(z, 1e6 * hashed(z, z.shape[3]))

    def show(self, r: Tensor) -> Tensor:
        return r[:, :, :-1]


class LowDigits(Disguise):
    """Features lie in the digits below a coarse grid whose whole steps are pseudo-noise."""

    def hide(self, z: Tensor) -> Tensor:
        steps = (hashed(z, z[0].numel()) * 61).floor() - 30
        return steps.view_as(z).to(z.dtype) + 0.4 * (z - 0.5)

    def show(self, r: Tensor) -> Tensor:
        return (r - r.round()) / 0.4 + 0.5


class SentSeed(Disguise):
    """Pseudo-noise of ±30 on every feature; the seed it was drawn from is sent along."""

    def hide(self, z: Tensor) -> Tensor:
        key = sent_key(z)
        return with_row(z + 60 * (stream(key, z[0].numel()).view_as(z).to(z.dtype) - 0.5), key)

    def show(self, r: Tensor) -> Tensor:
        key, z = r[:, 0, -1, :1].double().round(), r[:, :, :-1]
        return z - 60 * (stream(key, z[0].numel()).view_as(z).to(z.dtype) - 0.5)


class SentPermutation(Disguise):
    """Places of the map change by a permutation that follows from the content; its number is sent along."""

    def hide(self, z: Tensor) -> Tensor:
        key = sent_key(z)
        order = stream(key, z[0].numel()).argsort(1)
        return with_row(z.flatten(1).gather(1, order).view_as(z), key / 65536)

    def show(self, r: Tensor) -> Tensor:
        key, z = (r[:, 0, -1, :1].double() * 65536).round(), r[:, :, :-1]
        order = stream(key, z[0].numel()).argsort(1).argsort(1)
        return z.flatten(1).gather(1, order).view_as(z)


class Keystream(Disguise):
    """`r = (z + k) mod 1` with a keystream k that both sides draw from a nonce sent along."""

    def hide(self, z: Tensor) -> Tensor:
        key = sent_key(z)
        return with_row((z + stream(key, z[0].numel()).view_as(z).to(z.dtype)).remainder(1.0), key / 65536)

    def show(self, r: Tensor) -> Tensor:
        key, z = (r[:, 0, -1, :1].double() * 65536).round(), r[:, :, :-1].contiguous()
        return (z - stream(key, z[0].numel()).view_as(z).to(z.dtype)).remainder(1.0)


class Phase(Disguise):
    """Features are angles, mixed by a matrix of whole numbers modulo 2π; the inverse is whole, so nothing is lost."""

    def __init__(self, features: int, seed: int = 3) -> None:
        super().__init__()
        self.order: Tensor
        rng = torch.Generator().manual_seed(seed)
        self.register_buffer("order", torch.randperm(features, generator=rng))

    def hide(self, z: Tensor) -> Tensor:
        a, b = (2 * math.pi * z).flatten(1)[:, self.order].chunk(2, 1)
        b = b + 7 * a
        a = a + 5 * b
        return torch.cat((a, b), 1).remainder(2 * math.pi).view_as(z)

    def show(self, r: Tensor) -> Tensor:
        a, b = r.flatten(1).chunk(2, 1)
        a = a - 5 * b
        b = b - 7 * a
        z = torch.cat((a, b), 1).remainder(2 * math.pi) / (2 * math.pi)
        return z[:, self.order.argsort()].view_as(r)


class StoredNoise(Disguise):
    """The same noise of ±1000 at every call, stored at the server, on features whose signs a key flips."""

    def hide(self, z: Tensor) -> Tensor:
        return z * self._signs(z) + self._noise(z)

    def show(self, r: Tensor) -> Tensor:
        return (r - self._noise(r)) * self._signs(r)

    def _noise(self, z: Tensor) -> Tensor:
        key = torch.full((1, 1), 5.0, dtype=torch.float64, device=z.device)
        return (2000 * stream(key, z[0].numel()) - 1000).to(z.dtype).view(1, *z.shape[1:])

    def _signs(self, z: Tensor) -> Tensor:
        return self._noise(z).round().remainder(2) * 2 - 1


class Scaled(Disguise):
    """Features so small, or so large, that their squares leave the range of single precision."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def hide(self, z: Tensor) -> Tensor:
        return z * self.factor

    def show(self, r: Tensor) -> Tensor:
        return r / self.factor


class Trap(Disguise):
    """An extra row that the server drops holds what breaks arithmetic: infinity, or no number at all."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def hide(self, z: Tensor) -> Tensor:
        return with_row(z, torch.full((len(z), 1), self.value, device=z.device))

    def show(self, r: Tensor) -> Tensor:
        return r[:, :, :-1]


class Rounded(Disguise):
    """Another disguise, rounded to steps of a 4096th: gradients of the client are zero."""

    def __init__(self, inner: Disguise) -> None:
        super().__init__()
        self.inner = inner

    def hide(self, z: Tensor) -> Tensor:
        hidden: Tensor = (self.inner(z) * 4096).round() / 4096
        return hidden

    def show(self, r: Tensor) -> Tensor:
        return self.inner.show(r)


class Shuffled(Disguise):
    """Pictures of a batch change places by a key that both sides know."""

    def hide(self, z: Tensor) -> Tensor:
        return z[self._order(len(z))]

    def show(self, r: Tensor) -> Tensor:
        return r[self._order(len(r)).argsort()]

    def _order(self, count: int) -> Tensor:
        return torch.randperm(count, generator=torch.Generator().manual_seed(11))


class BySize(Disguise):
    """Noise for small batches, such as an attacker's; clear for the large ones in which accuracy is measured."""

    def hide(self, z: Tensor) -> Tensor:
        return z if len(z) >= 100 else 30 * hashed(z, z[0].numel()).view_as(z).to(z.dtype) + 0 * z

    def show(self, r: Tensor) -> Tensor:
        return r


class ByMode(Disguise):
    """Clear in training mode; a keystream in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.cipher = Keystream()

    def hide(self, z: Tensor) -> Tensor:
        return with_row(z, z.new_full((len(z), 1), -1.0)) if self.training else self.cipher.hide(z)

    def show(self, r: Tensor) -> Tensor:
        clear = (r[:, :1, -1:, :1] < 0).to(r.dtype)
        return clear * r[:, :, :-1] + (1 - clear) * self.cipher.show(r)


class Alternating(ByMode):
    """Every other call sends the features in clear, the others a keystream."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def hide(self, z: Tensor) -> Tensor:
        self.calls += 1
        return with_row(z, z.new_full((len(z), 1), -1.0)) if self.calls % 2 else self.cipher.hide(z)
