"""Weights from files, without running what is in them."""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leakscope.core.errors import UsageError
from leakscope.models.formats import format_of, refuse_weights_file

#: Put in front of every name by DataParallel, torch.compile and Lightning.
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.")
#: Where training scripts keep the weights beside the optimiser.
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_CONVERT = "convert it where you trust it: safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Fill `model` from a safetensors file, or a `.pt`/`.pth` file of plain tensors; all names and shapes must fit."""
    path = Path(path)
    own = model.state_dict()
    state = _without_prefixes(read_state(path), own)
    reshaped, missing, extra = _compared(own, state)
    if reshaped or missing or extra:
        raise UsageError(_difference(path, own, state, reshaped, missing, extra))
    model.load_state_dict(state, strict=False)


def save_weights(model: nn.Module, path: Path) -> None:
    """Write all weights of `model` as safetensors; `load_weights` reads them."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another file") from None


def fits(model: nn.Module, state: dict[str, Tensor]) -> bool:
    """Whether these tensors are all that `model` needs, and no more."""
    own = model.state_dict()
    return not any(_compared(own, _without_prefixes(state, own)))


def _compared(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> tuple[list[str], list[str], list[str]]:
    """Names of tensors of another shape, of those that are missing, and of those that nobody asked for."""
    reshaped = [name for name in own if name in state and own[name].shape != state[name].shape]
    # Checkpoints older than this counter (PyTorch 0.4) lack it, and nothing depends on it but momentum=None.
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    return reshaped, missing, [name for name in state if name not in own]


def read_state(path: Path) -> dict[str, Tensor]:
    """Names and tensors of a weights file; nothing in the file is executed."""
    if not path.is_file():
        raise UsageError(f"no weights file {path}; check the path")
    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except (SafetensorError, OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"{path} is not a whole safetensors file ({reason}); copy or export it again") from None
    refuse_weights_file(path)
    if format_of(path) == "torchscript":
        return _of_script(path)
    return _plain_tensors(_unpickled(path), path)


def _of_script(path: Path) -> dict[str, Tensor]:
    """The tensors of a TorchScript file; loading it runs no Python, and its own code is not called."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that TorchScript is no longer developed
            return {
                name: tensor.detach() for name, tensor in torch.jit.load(path, map_location="cpu").state_dict().items()
            }
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} is not a whole TorchScript file ({reason}); save it again") from None


def file_digest(path: str | Path) -> str:
    """The identity of a file: SHA-256 of its content."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:24]
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}); check the path") from None


def state_digest(model: nn.Module) -> str:
    """The identity of a network's weights and buffers: SHA-256 of names, types, shapes and bytes."""
    whole = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        whole.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()[:24]


def _unpickled(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on the pickle's protocol: what matters about it is in the error
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # The restricted unpickler names what it would not call, before calling it.
        if "Unsupported" in str(error) or "GLOBAL" in str(error):
            raise UsageError(f"{path} would run code when loaded and was not; {_CONVERT}") from None
        raise UsageError(f"{path} is not a PyTorch weights file; {_CONVERT}") from None
    except Exception as error:  # torch.load has no one error for a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{path} is not a whole PyTorch weights file ({reason}); copy or export it again") from None


def _plain_tensors(content: Any, path: Path) -> dict[str, Tensor]:
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise UsageError(f"{path} holds no table of named tensors; save model.state_dict() instead")
    return dict(content)


def _without_prefixes(state: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    while True:
        prefix = next((p for p in _PREFIXES if state and all(name.startswith(p) for name in state)), None)
        if prefix is None or all(name.startswith(prefix) for name in own):
            return state
        state = {name.removeprefix(prefix): value for name, value in state.items()}


def _size(tensor: Tensor) -> str:
    return "×".join(str(length) for length in tensor.shape) or "a scalar"


def _difference(
    path: Path,
    own: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    reshaped: list[str],
    missing: list[str],
    extra: list[str],
) -> str:
    """One line that names the first tensor of each sort and counts the rest."""
    parts = []
    if reshaped:
        name = reshaped[0]
        parts.append(
            f"{len(reshaped)} of another shape (first {name}: {_size(state[name])} in the file, "
            f"{_size(own[name])} in the network)"
        )
    if missing:
        parts.append(f"{len(missing)} missing (first {missing[0]})")
    if extra:
        parts.append(f"{len(extra)} unexpected (first {extra[0]})")
    return (
        f"{path} does not fit the network of {len(own)} tensors: {', '.join(parts)}; "
        "give the weights of this architecture, image size and number of classes"
    )
