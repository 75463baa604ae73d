"""A `torch.export` program, cut by node."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, fx, nn

from leakscope.core.errors import UsageError
from leakscope.models.architecture import MODELS, Brought, normalize_field
from leakscope.models.weights import file_digest

#: The check of input shapes that torch puts in front of a program; batches of an audit differ in size.
_GUARDS = "_guards_fn"


@MODELS.register("pt2")
@dataclass(frozen=True)
class ExportedProgram(Brought):
    """A network that `torch.export.save` wrote to the file `path`; its cuts are the operations of its graph.

    PyTorch reads parts of such files by unpickling, which can run code: `trust_code` says that you trust the file,
    as in `--model pt2:net.pt2,trust_code=true`. Export it in eval mode with a batch of any size:
    `torch.export.export(net.eval(), (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))`.
    """

    path: str
    content: str = field(default="", metadata={"shown": False})
    normalize: str = normalize_field()
    trust_code: bool = field(default=False, metadata={"identity": False, "shown": False})

    def __post_init__(self) -> None:
        found = file_digest(self.path)
        if self.content and self.content != found:
            raise UsageError(f"{self.path} has changed since this was configured; configure it anew")
        object.__setattr__(self, "content", found)
        if not self.trust_code:
            raise UsageError(
                f"{self.path} is a torch.export program, parts of which PyTorch reads with pickle, which can run code: "
                f"if you trust the file, write --model pt2:{self.path},trust_code=true"
            )

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program = torch.export.load(Path(self.path)).module()
        except Exception as error:  # torch has no one error for a file that it cannot read
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise UsageError(
                f"{self.path} cannot be read by this version of PyTorch ({reason}); export it again"
            ) from None
        network = with_taps(program)
        for count in (2, 3):
            try:
                with torch.no_grad():
                    network(self._read(torch.zeros(count, *image_shape)))
            except Exception as error:  # whatever an operation raises
                reason = " ".join(str(error).split())[:200]
                raise UsageError(
                    f"{self.path} cannot read {count} pictures of {'×'.join(map(str, image_shape))} ({reason}); export "
                    'it for such pictures with dynamic_shapes=({0: torch.export.Dim("batch")},)'
                ) from None
        return network

    def _read(self, x: Tensor) -> Tensor:
        layer = self.normalization()
        return x if layer is None else layer(x)


def with_taps(program: fx.GraphModule) -> fx.GraphModule:
    """The graph with a layer behind every operation, called as the node is: there it can be read, and cut."""
    graph = program.graph
    for node in list(graph.nodes):
        if node.op == "call_module" and node.target == _GUARDS:
            graph.erase_node(node)
        elif node.op == "call_function" and isinstance(node.meta.get("val"), Tensor):
            program.add_submodule(node.name, nn.Identity())
            with graph.inserting_after(node):
                tap = graph.call_module(node.name, (node,))
            node.replace_all_uses_with(tap, delete_user_cb=lambda user, tap=tap: user is not tap)
    return fx.GraphModule(program, graph)
