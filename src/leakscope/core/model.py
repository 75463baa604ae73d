"""Any `nn.Module`, cut in two at a named layer."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

from leakscope.core.calls import calling
from leakscope.core.defense import Defense
from leakscope.core.errors import UsageError, unknown
from leakscope.core.watching import LARGEST_SHOWN, Overheard, Watched, thinned


class Normalize(nn.Module):
    """`(x − mean) / std` per channel, as a layer, so that pixels are in [0, 1] outside the network.

    A grey picture is repeated to as many channels as the statistics have.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


@dataclass(frozen=True)
class Pass:
    """What one forward pass gives."""

    features: Tensor
    released: Tensor
    scores: Tensor


#: What mappings call the scores.
_SCORES = ("logits", "scores", "out", "output")


def scores_of(output: Any) -> Any:
    """The scores in what a network returns: a tensor, `.logits` of a `ModelOutput`, one named so, the first of a tuple.

    Anything else is returned unchanged; the caller refuses it.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits
    if isinstance(output, Mapping):
        return next((output[name] for name in _SCORES if isinstance(output.get(name), Tensor)), output)
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    return output


class _ReachedCut(Exception):
    """Stops a forward pass at the cut; the rest of the network is not computed."""

    def __init__(self, features: Tensor) -> None:
        self.features = features


class SplitModel(nn.Module):
    """A network `head ∘ encoder` with a named cut between the two.

    The cut is the output of the submodule called `cut`. Nothing is subclassed, renamed or traced: a
    forward hook reads the features there, and hands their release to the layers behind it.
    """

    def __init__(
        self,
        model: nn.Module,
        cut: str,
        *,
        normalize: nn.Module | None = None,
        defense: Defense | None = None,
    ) -> None:
        super().__init__()
        names = {name for name, _ in model.named_modules() if name}
        if cut not in names:
            raise unknown("cut", cut, names)
        self.model = model
        self.cut = cut
        self.normalize = normalize if normalize is not None else nn.Identity()
        self.defense = defense if defense is not None else Defense()
        self._shapes: dict[tuple[int, ...], tuple[int, ...]] = {}  # of pictures, and of the features they gave

    def _forward(self, x: Tensor, hook: Callable[[Tensor], Tensor]) -> Tensor:
        calls = 0

        def at_cut(module: nn.Module, args: Any, output: Any) -> Tensor:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise UsageError(f"layer {self.cut!r} runs more than once in a forward pass; cut elsewhere")
            self._require_features(output, x)
            # Features are released, attacked and kept in the precision of pictures, and go on in their own.
            return hook(output.to(x.dtype)).to(output.dtype)

        handle = self.model.get_submodule(self.cut).register_forward_hook(at_cut)
        try:
            with calling:
                scores = scores_of(self.model(self.normalize(x)))
        finally:
            handle.remove()
        if calls == 0:
            raise UsageError(f"layer {self.cut!r} does not run in a forward pass; cut elsewhere")
        if not isinstance(scores, Tensor) or scores.ndim == 0 or len(scores) != len(x):
            raise UsageError("the network must return a tensor of scores, one row for each image")
        return scores if scores.ndim == 2 else scores.reshape(len(x), -1)

    def _require_features(self, output: Any, x: Tensor) -> None:
        """Refuse what cannot be released for the pictures `x` one by one, or comes in another shape than before."""
        count = len(x)
        if not isinstance(output, Tensor):
            raise UsageError(f"layer {self.cut!r} returns {type(output).__name__}, not a tensor; cut elsewhere")
        if output.layout != torch.strided or not output.is_floating_point():
            kind = f"{str(output.dtype).removeprefix('torch.')}, {str(output.layout).removeprefix('torch.')}"
            raise UsageError(f"layer {self.cut!r} gives numbers that cannot be attacked ({kind}); cut elsewhere")
        if output.dtype.itemsize > x.dtype.itemsize:
            wide, narrow = (str(t.dtype).removeprefix("torch.") for t in (output, x))
            raise UsageError(
                f"layer {self.cut!r} gives {wide} for {narrow} pictures, and attacks would not see its last digits; "
                f"send them as {narrow}, or cut elsewhere"
            )
        if output.ndim < 2 or len(output) != count or output[:1].numel() == 0:
            shape = "×".join(map(str, output.shape)) or "one number"
            raise UsageError(
                f"layer {self.cut!r} gives {shape} for {count} pictures, not a row of features for each; cut elsewhere"
            )
        before = self._shapes.setdefault(tuple(x.shape[1:]), tuple(output.shape[1:]))
        if before != output.shape[1:]:
            now, then = ("×".join(map(str, shape)) for shape in (output.shape[1:], before))
            raise UsageError(f"layer {self.cut!r} gives {now} features now and gave {then} before; cut elsewhere")

    def run(self, x: Tensor, rng: torch.Generator | None = None) -> Pass:
        """Features, release and scores of one forward pass."""
        kept: list[Tensor] = []

        def hook(z: Tensor) -> Tensor:
            released = self.defense.release(z, rng, training=self.training)
            kept.extend((z, released))
            return released.clone()  # a layer behind the cut may work in place

        scores = self._forward(x, hook)
        return Pass(kept[0], kept[1], scores)

    def forward(self, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
        return self.run(x, rng).scores

    def encode(self, x: Tensor) -> Tensor:
        """Features at the cut before release; layers behind the cut are not computed."""

        def stop(z: Tensor) -> Tensor:
            raise _ReachedCut(z)

        try:
            self._forward(x, stop)
        except _ReachedCut as reached:
            return reached.features
        raise AssertionError("unreachable: _forward raises when the cut does not run")

    def behind(self, x: Tensor, z: Tensor, names: Collection[str] | None = None) -> dict[str, Tensor]:
        """Outputs of the layers behind the cut when the features `z` come out of it, in the order of computation.

        Then what functions compute outside of any layer. Containers whose output is that of their last layer are
        left out, and so is what is not in `names`. Of large outputs some channels are kept. `x` only starts the
        network; layers that read what comes before the cut see it, not the pictures behind `z`.
        """
        kept: dict[str, Tensor] = {}
        last: list[Tensor] = [z]
        reached = False
        watched = Watched(len(z))

        def at_cut(features: Tensor) -> Tensor:
            nonlocal reached
            reached = True
            sent = z.clone()
            watched.on = True
            return sent

        def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
            def keep(module: nn.Module, args: Any, output: Any) -> None:
                if reached and isinstance(output, Tensor) and output is not last[-1] and len(output) == len(z):
                    last.append(output)
                    watched.shown(output)
                    # A copy: the next layer may work in place. A layer that runs again has its last output kept.
                    watched.on = False
                    if names is None or name in names:
                        kept[name] = thinned(output, LARGEST_SHOWN).clone()
                    watched.on = True

            return keep

        before = {self.cut, *(self.cut.rsplit(".", depth)[0] for depth in range(1, self.cut.count(".") + 1))}
        handles = [m.register_forward_hook(watch(n)) for n, m in self.model.named_modules() if n and n not in before]
        try:
            with watched:
                self._forward(x, at_cut)
        finally:
            for handle in handles:
                handle.remove()
        functions = {name: output for name, output in watched.kept.items() if names is None or name in names}
        return kept | functions

    def overheard(self, x: Tensor, rng: torch.Generator | None = None) -> tuple[Overheard, Pass]:
        """Some numbers of every tensor computed for one picture, on both sides of the cut, and what came of it."""
        listening = Overheard([*self.parameters(), *self.buffers()])
        kept: list[Tensor] = []

        def at_cut(z: Tensor) -> Tensor:
            released = self.defense.release(z, rng, training=self.training)
            kept.extend((z, released.clone()))
            sent = released.clone()
            listening.at_server(sent)
            return sent

        listening.client.keep(x)
        with listening:
            scores = self._forward(x, at_cut)
        return listening, Pass(kept[0], kept[1], scores)

    def decide(self, z: Tensor, start: Tensor) -> Tensor:
        """Scores of the features `z` that a client sent.

        `start` are as many pictures of any content: they begin the pass, and the layers behind the cut never see them.
        """
        return self._forward(start, lambda _: z.clone())

    def release(self, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """What leaves the client for the pictures `x`."""
        return self.defense.release(self.encode(x), rng, training=self.training)

    def export(self, example: Tensor) -> tuple[nn.Module, nn.Module]:
        """The client's and the server's half as two modules in eval mode that share no weights, nor any with this one.

        The client's half carries normalisation and release. The halves are traced with `torch.fx`;
        a network whose control flow depends on the data cannot be.
        """
        # In eval mode also while tracing: functional dropout would be fixed as it is in training.
        deployed = copy.deepcopy(self).eval()
        # Optional arguments of a network's forward (masks, flags) stay at their defaults.
        arguments = list(inspect.signature(deployed.model.forward).parameters.values())[1:]
        defaults = {a.name: a.default for a in arguments if a.default is not a.empty}
        try:
            graph = _CutTracer(self.cut).trace(deployed.model, concrete_args=defaults or None)
        except (fx.proxy.TraceError, TypeError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"{type(self.model).__name__} cannot be exported: torch.fx says: {reason}") from None
        client, server = _halves(deployed.model, graph, self.cut)
        with torch.no_grad():
            whole = deployed._forward(example, torch.clone)
            again = scores_of(server(client(deployed.normalize(example))))
            if not torch.allclose(again, whole, rtol=1e-3, atol=1e-4):
                raise UsageError(f"the halves at {self.cut!r} do not compose to the network; cut elsewhere")
        # A layer called on both sides of the cut is still one object here.
        return ClientHalf(deployed.normalize, client, self.defense).eval(), copy.deepcopy(server)


class ClientHalf(nn.Module):
    """What is deployed at the client: picture in, released features out."""

    def __init__(self, normalize: nn.Module, encoder: nn.Module, defense: Defense) -> None:
        super().__init__()
        self.normalize = normalize
        self.encoder = encoder
        self.defense = defense

    def forward(self, x: Tensor) -> Tensor:
        return self.defense.release(self.encoder(self.normalize(x)), None, training=self.training)


class _CutTracer(fx.Tracer):
    """Traces a network, keeping the cut layer whole."""

    def __init__(self, cut: str) -> None:
        super().__init__()
        self.cut = cut

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name == self.cut or super().is_leaf_module(m, module_qualified_name)


def _ancestors(node: fx.Node, stop: fx.Node | None = None) -> set[fx.Node]:
    """`node` and all it is computed from, not looking behind `stop`."""
    found: set[fx.Node] = set()
    pending = [node]
    while pending:
        node = pending.pop()
        if node not in found and node is not stop:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


def _halves(model: nn.Module, graph: fx.Graph, cut: str) -> tuple[nn.Module, nn.Module]:
    middle = next(node for node in graph.nodes if node.op == "call_module" and node.target == cut)
    output = next(node for node in graph.nodes if node.op == "output")
    before, after = _ancestors(middle), _ancestors(output, stop=middle)
    if any(node.op == "placeholder" for node in after):
        raise UsageError(f"the layers behind {cut!r} also read what comes before it; cut elsewhere")

    client, server = fx.Graph(), fx.Graph()
    in_client: dict[fx.Node, fx.Node] = {}
    in_server = {middle: server.placeholder("features")}
    for node in graph.nodes:
        if node in before:
            in_client[node] = client.node_copy(node, in_client.__getitem__)
        if node in after:
            in_server[node] = server.node_copy(node, in_server.__getitem__)
    client.output(in_client[middle])
    return fx.GraphModule(model, client), fx.GraphModule(model, server)


@dataclass(frozen=True)
class Cut:
    """A place where the network can be cut in two."""

    name: str
    layer: str
    shape: tuple[int, ...]
    compute: float  # share of the multiplications done at the client


def cuts(model: nn.Module, example: Tensor, normalize: nn.Module | None = None) -> list[Cut]:
    """Every layer whose output alone determines the scores, in the order of computation."""
    outputs: list[tuple[str, str, Tensor, Any, int]] = []
    calls: dict[str, int] = {}
    counter = FlopCounterMode(display=False)

    def watch(name: str) -> Callable[[nn.Module, Any, Any], Tensor | None]:
        def hook(module: nn.Module, args: Any, output: Any) -> Tensor | None:
            calls[name] = calls.get(name, 0) + 1
            if not isinstance(output, Tensor):
                return None
            # A copy has a graph node of its own: whoever reads what came in, rather than what this layer
            # gives out (an identity shortcut), does not pass through it, and in-place layers cannot move it.
            copy = output.clone()
            outputs.append((name, type(module).__name__, copy, copy.grad_fn, counter.get_total_flops()))
            return copy

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    was_training = model.training
    model.eval()
    try:
        x = example.detach().clone().requires_grad_()
        with counter, torch.enable_grad(), calling:
            scores = scores_of(model(x if normalize is None else normalize(x)))
        total = max(counter.get_total_flops(), 1)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    if not isinstance(scores, Tensor):
        raise UsageError(
            f"the network returns {type(scores).__name__}, not a tensor of scores; return the scores alone"
        )
    return [
        Cut(name, layer, tuple(output.shape[1:]), flops / total)
        for name, layer, output, node, flops in outputs
        if calls[name] == 1 and node is not scores.grad_fn and _separates(node, scores, x)
    ]


def _separates(z: Any, scores: Tensor, x: Tensor) -> bool:
    """Whether every path of the autograd graph from scores to input runs through the node z."""
    if z is None or scores.grad_fn is None:
        return False
    pending, seen = [scores.grad_fn], {z}
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if getattr(node, "variable", None) is x:
            return False
        pending.extend(parent for parent, _ in node.next_functions if parent is not None)
    return True
