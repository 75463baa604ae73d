"""What a network is before it has weights: a specification that builds an `nn.Module`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field
from typing import ClassVar

from torch import nn

from leakscope.core.errors import UsageError
from leakscope.core.model import Normalize, SplitModel
from leakscope.core.spec import Kind, Plain


class Architecture(ABC):
    """A frozen dataclass whose fields are the network's hyper-parameters."""

    kind_name: ClassVar[str]
    revision: ClassVar[int]

    @abstractmethod
    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        """A network from N×C×H×W pictures to N×classes scores; its weights come from torch's ambient generator."""

    @property
    def default_cuts(self) -> tuple[str, ...]:
        """Where an audit cuts when not told: an early and a later layer. Empty: it has no opinion."""
        return ()

    def normalization(self) -> nn.Module | None:
        """The layer that turns pixels in [0, 1] into what the weights expect; None: they read pixels."""
        return None

    @property
    def foreign(self) -> bool:
        """Whether somebody else wrote its code: it may hold a defence, whatever it is called."""
        return not type(self).__module__.startswith("leakscope.")

    @property
    def trained(self) -> bool:
        """Whether it may come with weights that have learned something."""
        return False

    @property
    def grants(self) -> frozenset[str] | None:
        """All that an attacker can be handed of it, whatever the threat model names; None: everything."""
        return None

    @property
    def defense(self) -> Plain | None:
        """The description of the defence it comes with; None: it comes without."""
        return None

    def fill(self, split: SplitModel) -> None:
        """Put in the weights it comes with, once cut and defended; most come without."""
        del split


class Brought(Architecture):
    """A network that somebody else made and trained; its field `normalize` says what its weights expect."""

    normalize: str = ""

    @property
    def foreign(self) -> bool:
        return True

    @property
    def trained(self) -> bool:
        return True

    def normalization(self) -> nn.Module | None:
        return normalization_from(self.normalize)


IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalize_field() -> str:
    """The field `normalize` of an architecture whose weights may expect other numbers than pixels in [0, 1]."""
    value: str = field(default="", metadata={"identity": "unusual"})
    return value


def normalization_from(text: str, usual: nn.Module | None = None) -> nn.Module | None:
    """`imagenet`, `none`, or MEAN/STD with a number for each channel, `0.5/0.25` or `0.5,0.5,0.5/0.2,0.2,0.2`."""
    if not text:
        return usual
    if text == "none":
        return None
    if text == "imagenet":
        return Normalize(*IMAGENET)
    try:
        mean, std = (tuple(float(number) for number in part.split(",")) for part in text.split("/"))
    except ValueError:
        raise UsageError(
            f"cannot read --normalize {text!r}; write imagenet, none, or MEAN/STD such as 0.5/0.25"
        ) from None
    if len(mean) != len(std) or not all(number > 0 for number in std):
        raise UsageError(f"--normalize {text!r} needs as many deviations as means, each above 0")
    return Normalize(mean, std)


MODELS: Kind[Architecture] = Kind("model", "leakscope.models")
