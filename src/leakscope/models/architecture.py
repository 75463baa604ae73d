"""What a network is before it has weights: a specification that builds an `nn.Module`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import nn

from leakscope.core.model import SplitModel
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
    def defense(self) -> Plain | None:
        """The description of the defence it comes with; None: it comes without."""
        return None

    def fill(self, split: SplitModel) -> None:
        """Put in the weights it comes with, once cut and defended; most come without."""
        del split


MODELS: Kind[Architecture] = Kind("model", "leakscope.models")
