"""Fakes whose server hides what it reads: it works picture by picture, outside of PyTorch, or behind a lot of noise."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

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
