"""The encoder of a network as a graph: traced, cropped at the cut, free of in-place layers."""

from __future__ import annotations

import copy
import inspect
import itertools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel

Function = Callable[[Tensor], Tensor]


class _Tracer(fx.Tracer):
    """Remembers which node is the output of which module."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[str, fx.Node] = {}

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        output = super().call_module(m, forward, args, kwargs)
        if isinstance(output, fx.Proxy):
            self.outputs[self.path_of_module(m)] = output.node
        return output


class _Recorder(fx.Interpreter):
    """Keeps the shape of every tensor of one forward pass."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.shapes[n] = tuple(value.shape[1:])
        return value


class EncoderGraph:
    """What the encoder computes, node by node, and its waists.

    A waist is a node that no edge jumps over: all that the encoder has computed so far passes through it.
    """

    def __init__(self, split: SplitModel, example: Tensor) -> None:
        self.model_name = type(split.model).__name__
        graph = _encoder_graph(split)
        self.module = fx.GraphModule(split.model, graph)
        _replace_in_place(self.module)
        recorder = _Recorder(self.module)
        recorder.run(example)
        self.shapes = recorder.shapes
        self.nodes = [node for node in self.module.graph.nodes if node.op not in {"get_attr", "output"}]
        self.position = {node: position for position, node in enumerate(self.nodes)}

    def waists(self) -> list[fx.Node]:
        reach, found = 0, []  # the furthest node at which an edge from before ends
        for position, node in enumerate(self.nodes):
            if reach <= position and node in self.shapes:
                found.append(node)
            reach = max([reach, *(self.position[user] for user in node.users if user in self.position)])
        return found

    def inputs(self, node: fx.Node) -> list[fx.Node]:
        """What it is computed from, weights aside."""
        return [source for source in node.all_input_nodes if source in self.position]

    def path(self, start: fx.Node, end: fx.Node) -> list[fx.Node] | None:
        """The layers after `start` up to `end` if they follow each other one by one, else None."""
        nodes: list[fx.Node] = []
        while end is not start:
            inputs = self.inputs(end)
            if len(inputs) != 1:
                return None
            nodes.append(end)
            end = inputs[0]
        return nodes[::-1]

    def between(self, start: fx.Node, end: fx.Node) -> Function:
        """What the network computes from the value of `start` to the value of `end`."""
        graph = fx.Graph()
        function: Function = fx.GraphModule(
            self.module, _cropped(self.module.graph, end, graph, {start: graph.placeholder("x")})
        )
        return function

    def submodule(self, node: fx.Node) -> nn.Module | None:
        return self.module.get_submodule(str(node.target)) if node.op == "call_module" else None

    def name(self, nodes: Iterable[fx.Node]) -> str:
        """The name of the smallest module around `nodes`."""
        listed = list(nodes)
        targets = [str(node.target).split(".") for node in listed if node.op == "call_module"]
        columns = zip(*targets, strict=False)
        shared = [column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, columns)]
        return ".".join(shared) or (".".join(targets[-1]) if targets else listed[-1].name)


def _encoder_graph(split: SplitModel) -> fx.Graph:
    ensure_torchvision()
    model, tracer = split.model, _Tracer()
    arguments = list(inspect.signature(model.forward).parameters.values())[1:]
    defaults = {a.name: a.default for a in arguments if a.default is not a.empty}
    try:
        graph = tracer.trace(model, concrete_args=defaults or None)
    except Exception as error:  # tracing runs the network's own code, which may fail in any way
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"{type(model).__name__} cannot be taken apart: torch.fx says: {reason}; use e2e-lbfgs"
        ) from None
    cut = tracer.outputs.get(split.cut)
    if cut is None:
        raise UsageError(f"layer {split.cut!r} does not run in a forward pass; cut elsewhere")
    return _cropped(graph, cut, fx.Graph(), {})


def _cropped(graph: fx.Graph, end: fx.Node, crop: fx.Graph, copies: dict[fx.Node, fx.Node]) -> fx.Graph:
    """Adds to `crop` all that `end` is computed from, except what has a copy in `copies` already."""
    needed, pending = set(copies), [end]
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending.extend(node.all_input_nodes)
    for node in graph.nodes:
        if node in needed and node not in copies:
            copies[node] = crop.node_copy(node, copies.__getitem__)
    crop.output(copies[end])
    return crop


_OUT_OF_PLACE: dict[object, object] = {
    operator.iadd: operator.add,
    operator.imul: operator.mul,
    torch.relu_: torch.relu,
}
_OUT_OF_PLACE |= {F.relu_: F.relu, F.leaky_relu_: F.leaky_relu}


def _replace_in_place(module: fx.GraphModule) -> None:
    """Let every in-place layer make a new tensor, which changes nothing unless its input is read again."""
    order = {node: position for position, node in enumerate(module.graph.nodes)}
    for node in module.graph.nodes:
        layer = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if layer is not None and getattr(layer, "inplace", False):
            layer = copy.copy(layer)
            layer.inplace = False  # type: ignore[assignment]
            parent, _, name = str(node.target).rpartition(".")
            setattr(module.get_submodule(parent), name, layer)
        elif node.op == "call_function" and node.target in _OUT_OF_PLACE:
            node.target = _OUT_OF_PLACE[node.target]
        elif node.op == "call_function" and node.kwargs.get("inplace"):
            node.kwargs = {**node.kwargs, "inplace": False}
        elif node.op == "call_method" and str(node.target).endswith("_") and not str(node.target).endswith("__"):
            node.target = str(node.target)[:-1]
        else:
            continue
        overwritten = node.all_input_nodes[0]
        if any(order[user] > order[node] for user in overwritten.users):
            raise UsageError(
                f"the in-place layer {node.target or node.name!r} overwrites a value that is read again; "
                "build it with inplace=False, or use e2e-lbfgs"
            )
    module.recompile()
