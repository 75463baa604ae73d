"""Arrays and tensors become image sets: converted, checked, resized."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from leakscope.core.data import UNLABELLED, ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.memory import allocating, require_room


def checked(data: ImageSet, name: str = "the data set") -> ImageSet:
    """`data`, or a `UsageError` that names the set, the first bad image and the remedy."""
    if len(data) == 0 or data.images.numel() == 0:
        raise UsageError(f"{name} is empty: it has no images of any size; point it at a folder or file with pictures")
    low, high = torch.aminmax(data.images)  # a NaN anywhere makes both NaN
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        first = int((~torch.isfinite(data.images)).flatten(1).any(1).nonzero()[0, 0])
        raise UsageError(f"{name}: image {first} has NaN or infinite pixels; remove it or repair its values")
    if data.pixels and (low < 0 or high > 1):
        raise UsageError(
            f"{name}: pixels lie in [{float(low):.4g}, {float(high):.4g}], not in [0, 1]; "
            "divide 8-bit values by 255 and make normalisation a layer of the model"
        )
    lowest, highest = int(data.labels.min()), int(data.labels.max())
    if lowest < 0 or highest >= len(data.classes):
        raise UsageError(
            f"{name}: labels run from {lowest} to {highest} but there are {len(data.classes)} class names; "
            "number the classes from 0"
        )
    if lowest == highest and data.classes != UNLABELLED:
        raise UsageError(
            f"{name} has one class only, {data.classes[lowest]!r}; a classifier needs two: add images of another"
        )
    return data


def resized(data: ImageSet, size: int) -> ImageSet:
    """Every image as `size`×`size`: the largest centred square, then antialiased bilinear interpolation."""
    if not data.pixels:
        raise UsageError("these are points, not pictures, and cannot be resized; leave --resize out")
    if size < 1:
        raise UsageError(f"images cannot be resized to {size} pixels; give --resize a positive number")
    height, width = data.shape[1:]
    side = min(height, width)
    if (height, width) == (size, size):
        return data
    values = len(data) * data.shape[0] * size * size
    # The result, and what interpolation keeps beside it.
    require_room(8 * values, f"{len(data)} pictures at {size}×{size}", "give a smaller --resize or use fewer pictures")
    top, left = (height - side) // 2, (width - side) // 2
    square = data.images[:, :, top : top + side, left : left + side]
    scaled = functional.interpolate(square, (size, size), mode="bilinear", align_corners=False, antialias=True)
    return replace(data, images=scaled.clamp_(0, 1))


def from_arrays(
    images: NDArray[Any], labels: NDArray[Any], name: str, classes: Sequence[str] | None = None
) -> ImageSet:
    """An image set from N×H×W[×C] pixels (8-bit, or float in [0, 1]) and N or N×1 class numbers."""
    if images.ndim not in (3, 4):
        raise UsageError(f"{name}: images have the shape {images.shape}; they must be N×H×W or N×H×W×3")
    if images.ndim == 4 and images.shape[3] not in (1, 3):
        raise UsageError(f"{name}: images have {images.shape[3]} channels (last axis); they must have 1 or 3")
    if images.dtype != np.uint8 and not np.issubdtype(images.dtype, np.floating):
        raise UsageError(f"{name}: pixels are {images.dtype}; save them as uint8, or as float in [0, 1]")
    with allocating(name, "use fewer pictures"), np.errstate(over="ignore"):  # what overflows is infinite, and told
        if images.dtype == np.uint8:
            pixels = torch.from_numpy(np.ascontiguousarray(images)).float().div_(255)
        else:
            pixels = torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))
        pixels = pixels.unsqueeze(1) if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()
    return _labelled(pixels, _numbers(labels, name), name, classes)


def from_torch(
    dataset: torch.utils.data.Dataset[Any] | torch.utils.data.DataLoader[Any] | tuple[Tensor, Tensor],
    classes: Sequence[str] | None = None,
    name: str = "the given data",
) -> ImageSet:
    """An image set from a torch data set or loader of (image, label), or from a pair of tensors (images, labels).

    Tensors are N×C×H×W or N×H×W; arrays and PIL pictures, as a data set without transform gives
    them, are H×W[×C]. Pixels are uint8, or float in [0, 1].
    """
    if isinstance(dataset, torch.utils.data.DataLoader):
        classes = getattr(dataset.dataset, "classes", None) if classes is None else classes
        dataset = _loaded(dataset, name)
    if classes is None:
        classes = getattr(dataset, "classes", None)
    whole = dataset.tensors if isinstance(dataset, torch.utils.data.TensorDataset) else dataset
    if isinstance(whole, tuple):
        if len(whole) != 2:
            raise UsageError(f"{name} has {len(whole)} tensors; give two: images and labels")
        images, labels = (torch.as_tensor(part) for part in whole)
    else:
        images, labels = _gathered(whole, name)
    if images.ndim == 3:
        images = images.unsqueeze(1)
    if images.ndim != 4:
        raise UsageError(f"{name}: images have the shape {tuple(images.shape)}; they must be N×C×H×W")
    if images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        raise UsageError(f"{name}: channels come last in {tuple(images.shape)}; permute the images to N×C×H×W")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise UsageError(f"{name}: pixels are {images.dtype}; convert them to uint8, or to float in [0, 1]")
    pixels = images.float().div(255) if images.dtype == torch.uint8 else images.float()
    numbers = _numbers(labels.detach().cpu().numpy(), name)
    return _labelled(pixels.detach().cpu().contiguous(), numbers, name, classes)


def _loaded(loader: torch.utils.data.DataLoader[Any], name: str) -> tuple[Tensor, Tensor]:
    """All batches of a loader, stacked in the order of its data set: a shuffled one would be a new set each time."""
    in_order = torch.utils.data.DataLoader(
        loader.dataset, batch_size=loader.batch_size or 1, collate_fn=loader.collate_fn
    )
    batches = list(in_order)
    if not batches:
        raise UsageError(f"{name} is empty; give a loader with pictures")
    if not all(isinstance(batch, tuple | list) and len(batch) == 2 for batch in batches):
        raise UsageError(f"{name}: its batches are not pairs of images and class numbers; give such a loader")
    return torch.cat([torch.as_tensor(images) for images, _ in batches]), torch.cat(
        [torch.as_tensor(labels).reshape(-1) for _, labels in batches]
    )


def _gathered(dataset: torch.utils.data.Dataset[Any], name: str) -> tuple[Tensor, Tensor]:
    """All pairs of a torch data set, stacked."""
    pairs: Iterable[Any]
    if hasattr(dataset, "__len__"):
        pairs = (dataset[position] for position in range(len(dataset)))
    elif isinstance(dataset, torch.utils.data.IterableDataset):
        pairs = dataset
    else:
        raise UsageError(f"{name} has neither a length nor an iterator; give a torch Dataset or two tensors")
    images: list[Tensor] = []
    labels: list[int] = []
    for position, pair in enumerate(pairs):
        try:
            picture, label = pair
            labels.append(int(label))
        except (TypeError, ValueError):
            raise UsageError(f"{name}: item {position} is not a pair of an image and a class number") from None
        if not isinstance(picture, Tensor):
            array = np.array(picture)
            picture = torch.from_numpy(array if array.ndim < 3 else np.moveaxis(array, -1, 0))
        if images and picture.shape != images[0].shape:
            raise UsageError(
                f"{name}: image {position} is {tuple(picture.shape)} but image 0 is {tuple(images[0].shape)}; "
                "resize all images to one size"
            )
        images.append(picture)
    if not images:
        raise UsageError(f"{name} is empty; give a data set with pictures")
    return torch.stack(images), torch.tensor(labels)


def _numbers(labels: NDArray[Any], name: str) -> Tensor:
    """Class numbers as N int64."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise UsageError(f"{name}: labels have the shape {labels.shape}; give one class number for each image")
    if not np.issubdtype(labels.dtype, np.integer):
        raise UsageError(f"{name}: labels are {labels.dtype}; give class numbers as integers from 0")
    return torch.from_numpy(labels.astype(np.int64))


def _labelled(images: Tensor, labels: Tensor, name: str, classes: Sequence[str] | None) -> ImageSet:
    if len(images) != len(labels):
        raise UsageError(f"{name} has {len(images)} images but {len(labels)} labels; there must be one for each")
    if classes is None:
        count = int(labels.max()) + 1 if len(labels) else 0
        if count > len(labels):  # a stray label would otherwise ask for a network with that many outputs
            raise UsageError(
                f"{name}: the largest label is {count - 1} for {len(labels)} images; number classes from 0"
            )
        classes = [str(number) for number in range(count)]
    return checked(ImageSet(images, labels, tuple(str(item) for item in classes)), name)
