"""A network as a chain of residual blocks, with the products of its Jacobian."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.peeling.maps import Shape
from leakscope.attacks.peeling.pieces import Affine, Piece, Products, Rectifier, Smooth


@dataclass
class Block:
    """`y = outer(shortcut(x) + branch(x))`; a layer without shortcut has `shortcut=None`."""

    name: str
    branch: tuple[Piece, ...]
    shortcut: Affine | None
    outer: Rectifier | None
    inputs: Shape
    outputs: Shape

    @property
    def piecewise_linear(self) -> bool:
        return not any(isinstance(piece, Smooth) for piece in self.branch)

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers in, numbers out."""
        return int(torch.Size(self.inputs).numel()), int(torch.Size(self.outputs).numel())

    def before_outer(self, x: Tensor) -> Tensor:
        h = x
        for piece in self.branch:
            h = piece(h)
        return h if self.shortcut is None else h + self.shortcut(x)

    def __call__(self, x: Tensor) -> Tensor:
        s = self.before_outer(x)
        return s if self.outer is None else self.outer(s)

    def linearise(self, x: Tensor) -> tuple[Tensor, Products]:
        """The sum before the outer activation, with the products of its Jacobian at x."""
        h, steps, shortcut = x, [], self.shortcut
        for piece in self.branch:
            h, step = piece.linearise(h)
            steps.append(step)

        def forward(v: Tensor) -> Tensor:
            w = v
            for step in steps:
                w = step.forward(w)
            return w if shortcut is None else w + shortcut.linear(v)

        def adjoint(u: Tensor) -> Tensor:
            w = u
            for step in reversed(steps):
                w = step.adjoint(w)
            return w if shortcut is None else w + shortcut.adjoint(u)

        counts = [step.active for step in steps if step.active is not None]

        def active() -> Tensor:
            return torch.stack([count() for count in counts]).amin(0)

        return h if shortcut is None else h + shortcut(x), Products(forward, adjoint, active if counts else None)


@dataclass
class Chain:
    """An encoder as pictures in [0, 1] → shallow layers → blocks → features."""

    shallow: Block
    blocks: tuple[Block, ...]

    def __call__(self, x: Tensor) -> Tensor:
        for block in (self.shallow, *self.blocks):
            x = block(x)
        return x

    def block_inputs(self, x: Tensor) -> dict[str, Tensor]:
        """What the pictures x give each block to read, by the block's name, the first block first."""
        inputs, h = {}, self.shallow(x)
        for block in self.blocks:
            inputs[block.name] = h
            h = block(h)
        return inputs

    def linearise(self, x: Tensor) -> tuple[Tensor, Products]:
        steps = []
        for block in (self.shallow, *self.blocks):
            x, step = block.linearise(x)
            steps.append(step)
            if block.outer is not None:
                x, step = block.outer.linearise(x)
                steps.append(step)

        def forward(v: Tensor) -> Tensor:
            for step in steps:
                v = step.forward(v)
            return v

        def adjoint(u: Tensor) -> Tensor:
            for step in reversed(steps):
                u = step.adjoint(u)
            return u

        return x, Products(forward, adjoint)
