"""Weights from files, without running what is in them."""

from __future__ import annotations

import hashlib
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from leakscope.core.durable import save_tensors
from leakscope.core.errors import UsageError
from leakscope.core.files import require_file
from leakscope.core.memory import require_room
from leakscope.models.formats import refuse_weights_file

_COUNTER = "num_batches_tracked"

#: In front of every name by DataParallel, torch.compile, Lightning and training scripts; the first that fits counts.
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.", "backbone.")
#: Where training scripts keep the weights beside the optimiser.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "weights")
_CONVERT = "convert it where you trust it: safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"
#: A file of tensors is hardly smaller than they are; what unpacks to much more was made to do so.
_PACKED = 4


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Fill `model` from a safetensors file, or a `.pt`/`.pth` file of plain tensors; all names and shapes must fit."""
    path = Path(path)
    own = model.state_dict()
    state = _without_prefixes(read_state(path), own, path)
    reshaped, missing, extra = _compared(own, state)
    if reshaped or missing or extra:
        raise UsageError(_difference(path, own, state, reshaped, missing, extra))
    model.load_state_dict(sound(state, own, path), strict=False)


def save_weights(model: nn.Module, path: Path) -> None:
    """Write all weights of `model` as safetensors; `load_weights` reads them."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(model.state_dict(), path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another file") from None


def fits(model: nn.Module, state: dict[str, Tensor]) -> bool:
    """Whether these tensors are all that `model` needs, and no more."""
    own = model.state_dict()
    return not any(_compared(own, _without_prefixes(state, own, Path("weights"))))


def _compared(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> tuple[list[str], list[str], list[str]]:
    """Names of tensors of another shape, of those that are missing, and of those that nobody asked for."""
    reshaped = [name for name in own if name in state and own[name].shape != state[name].shape]
    # Checkpoints older than this counter (PyTorch 0.4) lack it, and nothing depends on it but momentum=None.
    missing = [name for name in own if name not in state and not name.endswith(_COUNTER)]
    return reshaped, missing, [name for name in state if name not in own]


def read_state(path: Path) -> dict[str, Tensor]:
    """Names and tensors of a weights file; nothing in the file is executed."""
    if not require_file(path).is_file():
        raise UsageError(f"no weights file {path}; check the path")
    require_room(2 * path.stat().st_size, str(path), "use a machine with more memory")
    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UsageError(f"{path} is not a whole safetensors file ({reason}); copy or export it again") from None
    refuse_weights_file(path)
    _require_weights(path)
    return _plain_tensors(_unpickled(path), path)


def sound(state: Mapping[str, Tensor], own: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """`state` as the types of `own`; values that no trained network has are refused.

    NaN and infinite values make every score NaN; a matrix of denormal numbers (below 1.2e-38) is zero on
    some machines and not on others.
    """
    fitting: dict[str, Tensor] = {}
    for name, value in state.items():
        wanted = own[name].dtype
        if value.layout != torch.strided or value.is_meta or value.is_quantized:
            raise UsageError(f"{path}: {name} is a sparse, quantised or empty tensor; save the plain float32 weights")
        if value.is_complex() or (wanted.is_floating_point and not value.is_floating_point()):
            raise UsageError(f"{path}: {name} is {_type(value)}, the network has {_type(own[name])}; save it as that")
        value = value.to(wanted)
        if wanted.is_floating_point and value.numel():
            odd = int((~torch.isfinite(value)).sum())
            if odd:
                raise UsageError(
                    f"{path}: {name} has {odd} NaN or infinite values of {value.numel()}; export the weights again"
                )
            largest = float(value.abs().max())
            if value.ndim > 1 and 0 < largest < torch.finfo(torch.float32).tiny:
                raise UsageError(f"{path}: all values of {name} are below {largest:.1g}; export the weights again")
        fitting[name] = value
    return fitting


def file_digest(path: str | Path) -> str:
    """The identity of a file: SHA-256 of its content."""
    try:
        with require_file(path).open("rb") as file:
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


def _require_weights(path: Path) -> None:
    """Refuse, by looking at the names inside, what is no file of weights; and what would unpack to far more."""
    try:
        with zipfile.ZipFile(path) as archive:
            items = archive.infolist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, UnicodeDecodeError):
        return  # the older format, or damaged: reading it will tell
    inside = {item.filename.rpartition("/")[2] for item in items}
    if "constants.pkl" in inside:
        raise UsageError(f"{path} is a TorchScript network, not weights; {_CONVERT}")
    if sum(item.file_size for item in items) > _PACKED * path.stat().st_size + 1_000_000:
        raise UsageError(f"{path} unpacks to many times its size, which no file of weights does; get a clean copy")


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


def _without_prefixes(state: dict[str, Tensor], own: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The names as the network has them: what wrappers put in front, or torch.compile in between, taken off.

    Behind a prefix that fits, tensors of other parts of a training script (a loss, a teacher) are left out.
    """
    if any("_orig_mod." in name for name in state) and not any("_orig_mod." in name for name in own):
        state = {name.replace("_orig_mod.", ""): value for name, value in state.items()}
    needed = [name for name in own if not name.endswith(_COUNTER)]
    if not needed or needed[0] in state:
        return state
    fitting = []
    for name in state:
        prefix = name.removesuffix(needed[0])
        if name.endswith("." + needed[0]) and all(prefix + other in state for other in needed):
            fitting.append(prefix)
    if not fitting:
        return _stripped(state, own)
    known = [prefix for known in _PREFIXES for prefix in fitting if prefix.split(".")[0] + "." == known]
    if len(fitting) > 1 and not known:
        raise UsageError(f"{path} holds {len(fitting)} such networks ({', '.join(fitting)[:200]}); save one of them")
    chosen = (known or fitting)[0]
    return {name.removeprefix(chosen): value for name, value in state.items() if name.startswith(chosen)}


def _stripped(state: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For the sake of an error that compares like with like: prefixes that all names share are taken off."""
    while True:
        prefix = next((p for p in _PREFIXES if state and all(name.startswith(p) for name in state)), None)
        if prefix is None or all(name.startswith(prefix) for name in own):
            return state
        state = {name.removeprefix(prefix): value for name, value in state.items()}


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


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
