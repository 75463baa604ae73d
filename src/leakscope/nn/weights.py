"""Trained weights: files under `<data root>/weights`, never downloaded, never substituted; parts of a state."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from leakscope.core.errors import UsageError
from leakscope.core.files import require_file

N = TypeVar("N", bound=nn.Module)


def missing(root: Path | None, file: str) -> str | None:
    """Why `weights/<file>` cannot be read, with the remedy; None when it is there."""
    if root is None:
        return f"no data root to find weights/{file} in; pass --data-root or set LEAKSCOPE_DATA"
    path = Path(root) / "weights" / file
    return None if path.is_file() else f"{path} is not there; put the file there or choose another --data-root"


def weights_path(root: Path | None, file: str) -> Path:
    """Where `weights/<file>` is."""
    problem = missing(root, file)
    if root is None or problem is not None:
        raise UsageError(str(problem))
    return Path(root) / "weights" / file


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file; a damaged one is the user's to replace."""
    try:
        tensors: dict[str, Tensor] = load_file(require_file(path))
        return tensors
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} cannot be read ({error}); copy the file again") from None


def part(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors called `name.…`, without that prefix."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def take_over(network: nn.Module, tensors: dict[str, Tensor], device: torch.device) -> None:
    """Make copies of `tensors` the network's own; those that are on the device already never leave it."""
    network.load_state_dict({name: tensor.to(device, copy=True) for name, tensor in tensors.items()}, assign=True)


def moved(network: N, device: torch.device) -> N:
    """The network on a device, its weights in one copy for each kind of number instead of one for each weight."""
    if device.type == "cpu":
        return network.to(device)
    every = [*network.parameters(), *network.buffers()]
    here = {id(tensor): tensor.detach() for tensor in every if tensor.device.type == "cpu"}
    there: dict[int, Tensor] = {}
    for dtype in {tensor.dtype for tensor in here.values()}:
        own = {name: tensor for name, tensor in here.items() if tensor.dtype == dtype}
        flat = torch.cat([tensor.flatten() for tensor in own.values()]).to(device)
        parts = flat.split([tensor.numel() for tensor in own.values()])
        there |= {name: part.view(x.shape).clone() for (name, x), part in zip(own.items(), parts, strict=True)}
    moved: N = network._apply(  # type: ignore[no-untyped-call]
        lambda tensor: there[id(tensor)] if id(tensor) in there else tensor.to(device)
    )
    return moved


def sha256(path: Path) -> str:
    """The digest of a file, computed once while size and time of change stay the same."""
    status = path.stat()
    return _sha256(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=16)
def _sha256(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
