"""From what a user writes to a network that reads the user's pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.core.calls import calling
from leakscope.core.errors import UsageError, ended_by, said_by
from leakscope.core.memory import allocating, require_room
from leakscope.core.model import scores_of
from leakscope.core.results import Method
from leakscope.models.architecture import MODELS, Architecture, normalization_from
from leakscope.models.formats import model_file

#: Networks whose size is not ours to plan: running a user's code twice, or torchvision's, tells nothing new.
_NOT_PLANNED = frozenset({"file", "given", "torchvision", "timm", "http", "asked", "pt2", "onnx"})


def resolve(spec: str | Mapping[str, Any] | Architecture) -> Architecture:
    """An architecture from a name, `name:field=value`, a mapping, `path/to/file.py:factory`, or `http://…`."""
    if isinstance(spec, str) and spec.lower().startswith(("http://", "https://")):
        spec = {"kind": "http", "url": spec}
    if isinstance(spec, str):
        path, _, factory = spec.rpartition(":")
        if path.endswith(".py") and "=" not in path:
            spec = {"kind": "file", "path": path, "factory": factory}
        elif spec.endswith(".py") and "=" not in spec:
            spec = {"kind": "file", "path": spec.removeprefix("file:")}
        else:
            spec = model_file(spec) or spec
    return MODELS.build(spec)


def normalized(architecture: Architecture, text: str | None) -> Architecture:
    """The architecture with `--normalize`; refused where the network is ours, which reads pixels, or brings its own."""
    if text is None:
        return architecture
    if "normalize" not in {own.name for own in fields(architecture)}:  # type: ignore[arg-type]
        raise UsageError(f"{architecture.kind_name} knows its own normalisation; leave --normalize out")
    normalization_from(text)  # a misspelt one fails now
    changed: Architecture = replace(architecture, normalize=text)  # type: ignore[type-var]
    return changed


def _require_room_for(architecture: Architecture, image_shape: tuple[int, int, int], classes: int) -> None:
    """Refuse a network that cannot fit: built without memory first, where that can be done."""
    name = architecture.kind_name
    if name in _NOT_PLANNED:
        return
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            model = architecture.build(image_shape, classes)
        size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    except UsageError:
        raise
    except Exception:  # a network that looks at its values while it is built; building it will tell
        return
    require_room(size, f"{name} with {size // 4:.2g} weights", "make it narrower or the pictures smaller")


def _require_plain(model: nn.Module, name: str) -> None:
    """Refuse what cannot be listened to or kept: a scripted network, and one whose state is not tensors alone."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError(f"{name} is compiled by TorchScript, which hides its layers; return what it was made of")
    for key, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise UsageError(
                f"{name} keeps {type(value).__name__} under {key!r}, as quantised layers do; "
                "return the network before it was quantised"
            )


def instantiate(
    architecture: Architecture, image_shape: tuple[int, int, int], classes: int, called: Sequence[str] = ()
) -> nn.Module:
    """The network with fresh weights from the ambient generator, once it has been seen to read such pictures.

    `called` are the names of the classes, for a message. With `classes` 0 the network may return any tensor with one
    entry per picture; only networks that bring their outputs can.

    One forward pass in eval mode, which also gives lazy layers their shapes: what does not fit is the
    user's to mend, and better known before anything is trained.
    """
    name = Method.of(architecture).plain
    if classes == 0 and not architecture.trained:
        raise UsageError(
            f"{name} is built for a number of classes, and these pictures have none; give a network of your own, "
            "FILE.py:FACTORY or in Python"
        )
    size = "×".join(str(length) for length in image_shape)
    _require_room_for(architecture, image_shape, classes)
    with allocating(name, "make it narrower or the pictures smaller"):
        model = architecture.build(image_shape, classes)
    normalize = architecture.normalization() or nn.Identity()
    try:
        with torch.no_grad(), calling:
            model.eval()  # may be code of a user's too
            _require_plain(model, name)
            scores = scores_of(model(normalize(torch.zeros(2, *image_shape))))
    except UsageError:
        raise
    except SystemExit as error:
        raise ended_by(error) from None
    except Exception as error:  # whatever a user's forward raises
        reason = said_by(error) or type(error).__name__
        several = isinstance(error, TypeError) and "required positional argument" in reason
        remedy = (
            "hold its other inputs fixed with leakscope.OneInput" if several else "resize them or take another model"
        )
        raise UsageError(f"{name} cannot read {size} pictures ({reason}); {remedy}") from None
    if classes == 0:
        if not isinstance(scores, Tensor) or scores.ndim == 0 or len(scores) != 2:
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise UsageError(f"{name} must return a tensor with one entry per picture, not {got}; wrap it so")
        model.train()
        return model
    if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != 2:
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise UsageError(
            f"{name} must return one row of scores for each picture (a tensor, `.logits`, a mapping with 'logits' or a "
            f"tuple that begins with it); for 2 pictures it returned {got}"
        )
    if scores.shape[1] != classes:
        raise UsageError(
            f"{name} scores {scores.shape[1]} classes, the data have {classes}{_some(called)}; build it for as many, "
            "give data with its classes, or name folders that are parts with --private, --heldout and --public"
        )
    model.train()
    return model


def _some(names: Sequence[str]) -> str:
    return f" ({', '.join(names[:4])}{' …' if len(names) > 4 else ''})" if names else ""
