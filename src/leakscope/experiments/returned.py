"""What an attack returned, looked at before it is kept: one of a user's may return anything."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.attack import Attack
from leakscope.core.data import ImageSet
from leakscope.core.errors import RunFailed
from leakscope.core.spec import label


def returned(attack: Attack, images: Tensor, victims: ImageSet) -> Tensor:
    """The pictures on the processor, one for each victim; of an identity any number."""
    several = attack.goal == "identities"
    rows = len(images) % len(victims) if several else len(images) - len(victims)
    wanted = victims.images.shape
    if images.shape[1:] != wanted[1:] or rows != 0 or not len(images):
        got, asked = (" × ".join(map(str, shape)) for shape in (images.shape, wanted))
        raise RunFailed(
            f"{label(attack)} returned pictures of shape {got}, and {asked} were asked of it; mend the attack"
        )
    images = images.detach().float().cpu()
    if not torch.isfinite(images).all():
        raise RunFailed(f"{label(attack)} returned pictures that are not finite; mend the attack, or take another")
    return images
