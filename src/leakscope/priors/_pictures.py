"""Checks on the pictures a prior learns from."""

from __future__ import annotations

from torch import Tensor

from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.prior import Prior, written


def require_size(name: str, size: int | None, shape: tuple[int, int, int]) -> None:
    """Refuse pictures of another size than the one a configuration states."""
    if size is not None and shape[1:] != (size, size):
        raise UsageError(
            f"prior {name} is set to size {size} and the public pictures are {written(shape)}; "
            "leave size out, or resize the dataset"
        )


def fitting(prior: Prior, public: ImageSet, at_least: int = 2) -> Tensor:
    """The pictures, once there are enough and the prior can make their like."""
    if not public.pixels:
        raise UsageError(f"prior {prior.kind_name} learns pictures, and this dataset holds points; choose another")
    if len(public) < at_least:
        raise UsageError(
            f"prior {prior.kind_name} needs {at_least} public pictures or more, not {len(public)}; "
            "give more public data"
        )
    prior.require(public.shape)
    return public.images
