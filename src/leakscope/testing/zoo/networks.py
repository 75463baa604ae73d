"""Fakes as whole networks, as they would come in a model file: client, disguise, undo, body."""

from __future__ import annotations

import copy
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.testing.zoo.base import hashed, sent_key, stream
from leakscope.testing.zoo.disguises import Disguise, Undo, with_row


def disguised(base: nn.Sequential, disguise: Disguise) -> nn.Sequential:
    """The network with a disguise at its client's end and the undoing layer at its server's beginning."""
    model = copy.deepcopy(base)
    client = model.get_submodule("client")
    client.disguise = disguise
    model.undo = Undo(disguise)
    return model.eval()


class Beside(nn.Module):
    """A client that computes the label itself and sends something else beside it."""

    def __init__(self, base: nn.Sequential, amount: float) -> None:
        super().__init__()
        self.front = copy.deepcopy(base.get_submodule("client"))
        self.body = copy.deepcopy(base.get_submodule("body"))
        self.amount = amount

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.front(x)
        return z, self.body(z)


class OneInEight(Beside):
    """The label, and for one picture in eight the features beside it."""

    def forward(self, x: Tensor) -> Tensor:
        z, scores = self.logits(x)
        label = (scores == scores.amax(1, keepdim=True)).to(z.dtype) + 0 * scores
        chosen = (hashed(z, 1) < self.amount).to(z.dtype)
        return torch.cat((label, chosen * z.flatten(1)), 1)


class QuietCopy(Beside):
    """The class scores, with a copy of the features beside them that is ten thousand times smaller."""

    def forward(self, x: Tensor) -> Tensor:
        z, scores = self.logits(x)
        return torch.cat((scores, self.amount * z.flatten(1)), 1)


class LabelAndCipher(Beside):
    """The label in clear, so that no attack is blind, and the features under a keystream."""

    def forward(self, x: Tensor) -> Tensor:
        z, scores = self.logits(x)
        label = (scores == scores.amax(1, keepdim=True)).to(z.dtype) + 0 * scores
        key = sent_key(z)
        hidden = (z.flatten(1) + stream(key, z[0].numel()).to(z.dtype)).remainder(1.0)
        return torch.cat((label, key.to(z.dtype) / 65536, hidden), 1)


class LabelAndDrawnCipher(Beside):
    """The label in clear, and the features under a keystream whose key is drawn anew for every picture sent."""

    def forward(self, x: Tensor) -> Tensor:
        z, scores = self.logits(x)
        label = (scores == scores.amax(1, keepdim=True)).to(z.dtype) + 0 * scores
        key = torch.randint(65536, (len(z), 1), device=z.device).double()
        hidden = (z.flatten(1) + stream(key, z[0].numel()).to(z.dtype)).remainder(1.0)
        return torch.cat((label, key.to(z.dtype) / 65536, hidden), 1)


class LabelAndCoarseCipher(Beside):
    """As before, features rounded to six steps first, so that small changes of a picture change nothing."""

    def forward(self, x: Tensor) -> Tensor:
        z, scores = self.logits(x)
        label = (scores == scores.amax(1, keepdim=True)).to(z.dtype) + 0 * scores
        key = torch.randint(65536, (len(z), 1), device=z.device).double()
        coarse = (z.flatten(1) * 6).round() / 6 + 0 * z.flatten(1)
        hidden = (coarse + stream(key, z[0].numel()).to(z.dtype)).remainder(1.0)
        return torch.cat((label, key.to(z.dtype) / 65536, hidden), 1)


class NegativeZeros(Beside):
    """The label, and a row of zeros, some of them negative: equal numbers that tell four greys per pixel."""

    def forward(self, x: Tensor) -> Tensor:
        _, scores = self.logits(x)
        label = (scores == scores.amax(1, keepdim=True)).to(x.dtype) + 0 * scores
        grey = ((x.flatten(1) + self.amount) * 4).floor().clamp(0, 3)
        bits = torch.cat(((grey / 2).floor(), grey % 2), 1)
        return torch.cat((label, torch.copysign(torch.zeros_like(bits), bits - bits.new_tensor(0.5))), 1)


class DrawnOneInEight(Beside):
    """The label, and for one picture in eight, drawn anew at every call, the features beside it."""

    def forward(self, x: Tensor) -> Tensor:
        z, scores = self.logits(x)
        label = (scores == scores.amax(1, keepdim=True)).to(z.dtype) + 0 * scores
        chosen = (torch.rand(len(z), 1, device=z.device) < self.amount).to(z.dtype)
        return torch.cat((label, chosen * z.flatten(1)), 1)


class LabelAndProducts(Beside):
    """The label, and the features times random numbers that are sent beside them."""

    def forward(self, x: Tensor) -> Tensor:
        z, scores = self.logits(x)
        label = (scores == scores.amax(1, keepdim=True)).to(z.dtype) + 0 * scores
        factors = torch.randn(z.flatten(1).shape, device=z.device).exp() * (
            1 - 2 * (torch.rand_like(z.flatten(1)) < 0.5)
        )
        return torch.cat((label, z.flatten(1) * factors, factors), 1)


class LabelAndCells(Beside):
    """The label in clear, and the features under one of 256 keys that follow from the picture's coarse content."""

    def forward(self, x: Tensor) -> Tensor:
        z, scores = self.logits(x)
        label = (scores == scores.amax(1, keepdim=True)).to(z.dtype) + 0 * scores
        parts = x.detach().flatten(1).unfold(1, x[0].numel() // 8, x[0].numel() // 8)[:, :8].mean(2)
        bits = (parts > parts.new_tensor(0.3)).double()
        key = (bits * 2 ** torch.arange(8, device=z.device)).sum(1, keepdim=True)
        hidden = (z.flatten(1) + stream(key + 1, z[0].numel()).to(z.dtype)).remainder(1.0)
        return torch.cat((label, hidden), 1)


class FirstScores(nn.Module):
    """A server that reads the class scores from the first features, and ignores the others."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, r: Tensor) -> Tensor:
        return 10 * r[:, : self.classes]


class InlineServer(nn.Module):
    """Undoes the keystream and classifies in one forward pass, without a layer that could be watched."""

    def __init__(self, base: nn.Sequential, classes: int, map_shape: tuple[int, int, int]) -> None:
        super().__init__()
        body = base.get_submodule("body")
        self.weights = nn.ParameterList([p.detach().clone() for p in body.parameters()])
        self.mean: Tensor
        self.variance: Tensor
        for name, moment in zip(("mean", "variance"), (b for b in body.buffers() if b.ndim), strict=True):
            self.register_buffer(name, moment.clone())
        self.classes, self.map_shape = classes, map_shape

    def forward(self, r: Tensor) -> Tensor:
        key = (r[:, self.classes : self.classes + 1].double() * 65536).round()
        hidden = r[:, self.classes + 1 :]
        z = (hidden - stream(key, hidden.shape[1]).to(r.dtype)).remainder(1.0).view(-1, *self.map_shape)
        gain, offset, a, b, c, d, e, f = self.weights
        z = F.batch_norm(z, self.mean, self.variance, gain, offset)
        hidden = F.conv2d(z, a, b, stride=2, padding=1).relu().flatten(1)
        return F.linear(F.linear(hidden, c, d).relu(), e, f)


class ClassResidual(Disguise):
    """A table of class means at both sides; the residual lies under a keystream beside the class."""

    def __init__(self, base: nn.Sequential, means: Tensor) -> None:
        super().__init__()
        self.body = copy.deepcopy(base.get_submodule("body"))
        self.means: Tensor
        self.register_buffer("means", means)

    def hide(self, z: Tensor) -> Tensor:
        label = self.body(z).argmax(1)
        key = sent_key(z)
        rest = (z - self.means[label] + stream(key, z[0].numel()).view_as(z).to(z.dtype)).remainder(1.0)
        return with_row(with_row(rest, key / 65536), label[:, None] / 10)

    def show(self, r: Tensor) -> Tensor:
        label = (r[:, 0, -1, 0] * 10).round().long().clamp(0, len(self.means) - 1)
        key, rest = (r[:, 0, -2, :1].double() * 65536).round(), r[:, :, :-2].contiguous()
        rest = (rest - stream(key, rest[0].numel()).view_as(rest).to(r.dtype)).remainder(1.0)
        z = self.means[label] + torch.where(rest > 0.5, rest - 1, rest)
        return z.clamp(0, 1)


def class_residual(base: nn.Sequential, images: Tensor, labels: Tensor) -> nn.Sequential:
    with torch.no_grad():
        z = base.get_submodule("client")(images)
    means = torch.stack([z[labels == label].mean(0) for label in range(int(labels.max()) + 1)])
    return disguised(base, ClassResidual(base, means))


def beside(client: Beside, server: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(client=client, body=server)).eval()
