"""Finds the residual blocks of any network by tracing its encoder, not by the names of its layers.

Between two neighbouring waists of the encoder's graph lies one layer, or several paths; where these end
in a sum of two, they are a residual block, of which the path without activation is the shortcut. What
precedes the first block is the shallow part.
"""

from __future__ import annotations

import copy
import itertools
import operator
from dataclasses import replace

import torch
from torch import fx, nn
from torch.nn import functional as F

from leakscope.attacks.peeling.chain import Block, Chain
from leakscope.attacks.peeling.maps import Scaling, Shape
from leakscope.attacks.peeling.pieces import IDENTITY, Affine, Piece, Rectifier, Smooth, affine
from leakscope.attacks.peeling.trace import EncoderGraph
from leakscope.core.errors import UsageError
from leakscope.core.model import Normalize, SplitModel


def take_apart(split: SplitModel, image_shape: tuple[int, int, int], *, plain_layers: bool = False) -> Chain:
    """The chain of residual blocks in front of the cut.

    `plain_layers` takes a network without shortcuts apart too, layer by layer.
    """
    parameter = next(split.parameters(), torch.zeros(()))
    with torch.no_grad():
        picture = torch.full((1, *image_shape), 0.5, device=parameter.device, dtype=parameter.dtype)
        example = split.normalize(picture)
        chain = _Reader(EncoderGraph(copy.deepcopy(split), example)).chain(plain_layers)
        if chain is None:
            raise UsageError(
                f"no residual block in front of the cut {split.cut!r} of {type(split.model).__name__}; cut behind one, "
                "set plain_layers=true (peel), or use e2e-lbfgs"
            )
        normalize = split.normalize
        scaling = affine([(normalize, normalize)], picture)
        if isinstance(normalize, Normalize) and example.shape == picture.shape:
            scaling = Affine((Scaling(1 / normalize.std.flatten(), image_shape),), normalize(torch.zeros_like(picture)))
    shallow = chain.shallow
    return Chain(replace(shallow, branch=(scaling, *shallow.branch), inputs=image_shape), chain.blocks)


def why_not(split: SplitModel, image_shape: tuple[int, int, int], *, plain_layers: bool = False) -> str | None:
    """What keeps a network from being taken apart; None when nothing does."""
    try:
        take_apart(split, image_shape, plain_layers=plain_layers)
    except UsageError as error:
        return str(error)
    except Exception as error:  # a network may hold anything; what cannot be read cannot be peeled
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        return f"{type(split.model).__name__} cannot be taken apart ({reason}); use e2e-lbfgs"
    return None


_AFFINE_MODULES = (
    nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Identity, nn.Dropout,
    nn.Dropout2d, nn.Flatten, nn.Unflatten, nn.Linear, nn.ZeroPad2d,
)  # fmt: skip
_AFFINE_FUNCTIONS = {F.avg_pool2d, F.adaptive_avg_pool2d, F.pad, torch.flatten, F.batch_norm, F.dropout}
_AFFINE_METHODS = {"flatten", "view", "reshape", "contiguous"}
_SUMS = {operator.add, torch.add}
#: Activations with neither a split into p − n nor a place in the networks this was tried on.
_UNKNOWN_MODULES = (
    nn.Sigmoid, nn.Tanh, nn.Hardtanh, nn.ReLU6, nn.Softplus, nn.ELU, nn.SELU, nn.CELU, nn.Hardswish, nn.Hardsigmoid,
    nn.Mish, nn.Softsign, nn.LogSigmoid, nn.Threshold, nn.RReLU,
)  # fmt: skip
_UNKNOWN_FUNCTIONS = {"sigmoid", "tanh", "hardtanh", "relu6", "softplus", "elu", "selu", "celu", "hardswish",
                      "hardsigmoid", "mish", "softsign", "logsigmoid", "threshold", "sin", "cos", "exp"}  # fmt: skip


class _Reader:
    """Reads blocks off an encoder's graph."""

    def __init__(self, graph: EncoderGraph) -> None:
        self.graph = graph
        self.like = next(graph.module.parameters(), torch.zeros(()))  # type and device of what is computed

    def chain(self, plain_layers: bool) -> Chain | None:
        waists = self.graph.waists()
        gaps = list(itertools.pairwise(waists))
        first = next((place for place, gap in enumerate(gaps) if self._ends_in_sum(gap[1])), None)
        if first is None:
            if not plain_layers:
                return None
            first = 0
        blocks: list[Block] = []
        between: list[fx.Node] = []  # layers since the last block
        for start, end in gaps[first:]:
            if not self._ends_in_sum(end) and self.graph.inputs(end) == [start]:
                between.append(end)
                continue
            self._append_layers(blocks, between)
            between = []
            blocks.append(self._several_paths(start, end))
        self._append_layers(blocks, between)
        names = [block.name for block in blocks]
        for place, block in enumerate(blocks):
            if names.count(block.name) > 1:  # attention and MLP of one encoder
                block.name += f"#{names[: place + 1].count(names[place])}"
        start, end = waists[0], gaps[first][0]
        shallow = Block("shallow", self._arm(start, end, strict=False), None, None, *self._shapes(start, end))
        return Chain(shallow, tuple(blocks))

    def _ends_in_sum(self, end: fx.Node) -> bool:
        added = (end.op == "call_function" and end.target in _SUMS) or (end.op == "call_method" and end.target == "add")
        return added and len(self.graph.inputs(end)) == 2

    def _append_layers(self, blocks: list[Block], nodes: list[fx.Node]) -> None:
        """Layers one after the other; an activation right behind a residual sum belongs to its block."""
        if nodes and blocks and blocks[-1].shortcut is not None:
            outer = self._rectifier(nodes[0])
            if outer is not None:
                blocks[-1].outer = outer
                nodes = nodes[1:]
        run: list[fx.Node] = []
        for node in nodes:
            run.append(node)
            if self._rectifier(node) is not None or not self._is_affine(node):
                blocks.append(self._layer(run))
                run = []
        if run:
            blocks.append(self._layer(run))

    def _layer(self, run: list[fx.Node]) -> Block:
        start, end = self.graph.inputs(run[0])[0], run[-1]
        outer = self._rectifier(end)
        for node in run:
            self._refuse_unknown(node, self.graph.name(run))
        inner = run if outer is None else run[:-1]
        return Block(self.graph.name(run), self._pieces(start, inner), None, outer, *self._shapes(start, end))

    def _several_paths(self, start: fx.Node, end: fx.Node) -> Block:
        shapes = self._shapes(start, end)
        place = self.graph.position
        inside = [node for node in self.graph.nodes if place[start] < place[node] <= place[end]]
        name = self.graph.name(inside)
        for node in inside:
            self._refuse_unknown(node, name)
        if self._ends_in_sum(end):
            arms = [self._arm(start, term) for term in self.graph.inputs(end)]
            # The shortcut is the path of affine maps alone; of two such, the shorter.
            shortcut, branch = sorted(arms, key=lambda arm: (any(not isinstance(p, Affine) for p in arm), len(arm)))
            if all(isinstance(piece, Affine) for piece in shortcut):
                straight = shortcut[0] if shortcut else IDENTITY
                assert isinstance(straight, Affine)
                return Block(name, branch, straight, None, *shapes)
        return Block(name, (Smooth(self.graph.between(start, end)),), None, None, *shapes)

    def _arm(self, start: fx.Node, end: fx.Node, *, strict: bool = True) -> tuple[Piece, ...]:
        """The pieces of a path; one smooth piece where it branches (or, if not strict, holds what cannot be split)."""
        path = self.graph.path(start, end)
        if path is not None and strict:
            for node in path:
                self._refuse_unknown(node, self.graph.name(path))
        if path is None or any(node not in self.graph.shapes for node in path):  # branched, or not of tensors
            return (Smooth(self.graph.between(start, end)),)
        return self._pieces(start, path)

    def _pieces(self, start: fx.Node, nodes: list[fx.Node]) -> tuple[Piece, ...]:
        pieces: list[Piece] = []
        run: list[fx.Node] = []
        for node in [*nodes, None]:
            if node is not None and self._is_affine(node):
                run.append(node)
                continue
            if run:
                pieces.append(self._affine(start, run))
                start, run = run[-1], []
            if node is not None:
                pieces.append(self._rectifier(node) or Smooth(self.graph.between(start, node)))
                start = node
        return tuple(pieces)

    def _affine(self, start: fx.Node, run: list[fx.Node]) -> Affine:
        sources = [start, *run]
        parts = [
            (self.graph.submodule(node), self.graph.between(source, node))
            for source, node in zip(sources, run, strict=False)
        ]
        example = self.like.new_zeros(1, *self.graph.shapes[start])
        return affine(parts, example)

    def _is_affine(self, node: fx.Node) -> bool:
        module = self.graph.submodule(node)
        if isinstance(module, nn.MaxPool2d):  # over one pixel: plain subsampling
            return module.kernel_size in (1, (1, 1))
        if module is not None:
            return isinstance(module, _AFFINE_MODULES)
        if len(self.graph.inputs(node)) != 1:
            return False
        named = node.op == "call_method" and node.target in _AFFINE_METHODS
        return named or (node.op == "call_function" and node.target in _AFFINE_FUNCTIONS)

    def _rectifier(self, node: fx.Node) -> Rectifier | None:
        module = self.graph.submodule(node)
        ndim = len(self.graph.shapes.get(node, ())) + 1
        like = self.like
        if isinstance(module, nn.PReLU):
            slope = module.weight.detach()
            return Rectifier(slope.view(1, -1, *(1 for _ in range(ndim - 2))) if ndim > 1 else slope)
        if isinstance(module, nn.LeakyReLU):
            return Rectifier(like.new_full((), module.negative_slope), relu=module.negative_slope == 0)
        method = node.op == "call_method" and node.target == "relu"
        function = node.op == "call_function" and node.target in {F.relu, torch.relu}
        if isinstance(module, nn.ReLU) or method or function:
            return Rectifier(like.new_zeros(()), relu=True)
        if node.op == "call_function" and node.target is F.leaky_relu:
            slope_given = node.args[1] if len(node.args) > 1 else node.kwargs.get("negative_slope", 0.01)
            assert isinstance(slope_given, int | float)
            return Rectifier(like.new_full((), slope_given), relu=slope_given == 0)
        return None

    def _refuse_unknown(self, node: fx.Node, block: str) -> None:
        module = self.graph.submodule(node)
        called = getattr(node.target, "__name__", str(node.target)) if module is None else ""
        if isinstance(module, _UNKNOWN_MODULES) or called in _UNKNOWN_FUNCTIONS:
            what = type(module).__name__ if module is not None else called
            raise UsageError(
                f"block {block!r} has the activation {what}, which cannot be peeled; known are ReLU, LeakyReLU, PReLU, "
                "GELU and SiLU; use e2e-lbfgs"
            )

    def _shapes(self, start: fx.Node, end: fx.Node) -> tuple[Shape, Shape]:
        return self.graph.shapes[start], self.graph.shapes[end]
