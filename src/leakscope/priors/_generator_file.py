"""Generators that others trained, read from files of plain tensors."""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.errors import UsageError
from leakscope.core.files import require_file
from leakscope.core.prior import Generator, Material, Prior, PriorState, written
from leakscope.priors._mapping import Mapping
from leakscope.priors._styled import StyledGenerator

_EXPORT = "export it where you trust it: safetensors.torch.save_file(G_ema.state_dict(), 'generator.safetensors')"
_LAYER = re.compile(r"mapping\.fc(\d+)\.weight")
_LUMINANCE = (0.299, 0.587, 0.114)

#: A synthesis network and the shape of its pictures, from named tensors; None when they are none of its kind.
Build = Callable[[dict[str, Tensor]], tuple[nn.Module, tuple[int, int, int]] | None]


@dataclass(frozen=True)
class GeneratorFile(Prior):
    """A generator in a safetensors file; `fit` trains nothing and only checks that its pictures fit the target.

    Pictures are cropped to the central `crop` pixels, resized to `resize` and made grey when asked.
    `source` is the file's content hash and fills itself in.
    """

    file: str
    crop: int | None = None
    resize: int | None = None
    grey: bool = False
    source: str = field(default="", metadata={"shown": False})

    has_mapping: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if min(self.crop or 1, self.resize or 1) < 1:
            raise ValueError("crop and resize count pixels: 1 or more, or leave them out")
        try:
            with require_file(self.file).open("rb") as opened:
                found = hashlib.file_digest(opened, "sha256").hexdigest()[:24]
        except OSError as error:
            raise UsageError(f"cannot read the generator {self.file} ({error.strerror}); check the path") from None
        if self.source and self.source != found:
            raise UsageError(f"{self.file} has changed since this was configured; configure it anew")
        object.__setattr__(self, "source", found)

    @property
    @abstractmethod
    def build(self) -> Build:
        """Which synthesis network the file holds."""

    def require(self, shape: tuple[int, int, int]) -> None:
        made = self._load().shape
        if made != shape:
            remedy = "set resize" if made[0] == shape[0] else "set grey" if shape[0] == 1 else "use colour pictures"
            raise UsageError(
                f"prior {self.kind_name} makes {written(made)} pictures and the public ones are {written(shape)}; "
                f"{remedy}"
            )

    def learn(self, given: Material) -> PriorState:
        self.require(given.public.shape)
        return PriorState({}, {"shape": list(given.public.shape), "file": Path(self.file).name})

    def generator(self, state: PriorState, device: torch.device) -> Generator:
        return self._load().to(device).eval().requires_grad_(False)

    def _load(self) -> StyledGenerator:
        tensors = self._tensors()
        with torch.device("meta"):  # names and shapes decide the network; nothing is allocated or drawn for it
            built = self.build(tensors)
            mapping = _mapping(tensors)
        if built is None or mapping is None:
            first = next(iter(sorted(tensors)), "none")
            raise UsageError(f"{self.file} holds no {self.kind_name} generator (first tensor {first}); {_EXPORT}")
        synthesis, made = built
        whole = nn.ModuleDict({"mapping": mapping, "synthesis": synthesis})
        _require_same(self.file, whole.state_dict(), tensors)
        whole.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, assign=True)
        shape = self._finished_shape(made)
        latent = tensors["mapping.fc0.weight"].shape[1]
        finish = partial(_finished, crop=self.crop, resize=self.resize, grey=self.grey)
        return StyledGenerator(shape, latent, mapping, synthesis, finish)

    def _tensors(self) -> dict[str, Tensor]:
        try:
            return dict(load_file(self.file))
        except (SafetensorError, OSError, ValueError) as error:
            reason = (str(error).splitlines() or ["damaged"])[0]
            raise UsageError(f"{self.file} is not a whole safetensors file ({reason}); {_EXPORT}") from None

    def _finished_shape(self, made: tuple[int, int, int]) -> tuple[int, int, int]:
        channels, size, _ = made
        if self.crop is not None and self.crop > size:
            raise UsageError(f"crop={self.crop} is more than the {size} pixels of {self.file}; lower crop")
        if self.grey and channels != 3:
            raise UsageError(f"{self.file} makes pictures of {channels} channel(s), so grey has no use; leave it out")
        size = self.resize or self.crop or size
        return 1 if self.grey else channels, size, size


def _finished(raw: Tensor, *, crop: int | None, resize: int | None, grey: bool) -> Tensor:
    """[−1, 1] to [0, 1], cropped at the centre, resized, grey."""
    images = raw / 2 + 0.5
    if crop is not None:
        edge = (images.shape[-1] - crop) // 2
        images = images[..., edge : edge + crop, edge : edge + crop]
    if grey:
        weights = images.new_tensor(_LUMINANCE).view(3, 1, 1)
        images = (images * weights).sum(1, keepdim=True)
    if resize is not None and resize != images.shape[-1]:
        images = F.interpolate(images, (resize, resize), mode="bilinear", align_corners=False, antialias=True)
    return images.clamp(0, 1)


def _mapping(tensors: dict[str, Tensor]) -> Mapping | None:
    numbers = sorted(int(match[1]) for name in tensors if (match := _LAYER.fullmatch(name)))
    first = tensors.get("mapping.fc0.weight")
    if first is None or first.ndim != 2 or numbers != list(range(len(numbers))):
        return None
    return Mapping(first.shape[1], first.shape[0], len(numbers))


def _require_same(file: str, own: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    """Refuse a file whose tensors are not exactly those of the network, in one line that names the first."""
    extra = sorted(given.keys() - own.keys())
    missing = sorted(own.keys() - given.keys())
    reshaped = sorted(name for name in own.keys() & given.keys() if own[name].shape != given[name].shape)
    problems = [
        f"{len(names)} {what} (first {names[0]})"
        for what, names in (("unknown tensors", extra), ("missing", missing), ("of another shape", reshaped))
        if names
    ]
    if problems:
        raise UsageError(f"{file} is not a generator this version knows: {', '.join(problems)}; {_EXPORT}")
