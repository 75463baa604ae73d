"""A target from a folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from leakscope.core.errors import UsageError
from leakscope.models._exported import ExportedArchitecture
from leakscope.models.architecture import MODELS


@MODELS.register("path")
@dataclass(frozen=True)
class ExportedTarget(ExportedArchitecture):
    """A target that `leakscope export` wrote to the folder `path`, or a snapshot of it from the Hugging Face hub.

    It brings its weights, cut and defence; nothing in the folder is executed unless `trust_code` says so, and
    weights that do not hash to what its description says are refused. `weights` is their hash and fills itself in.
    """

    path: str = field(metadata={"identity": False})
    weights: str = field(default="", metadata={"shown": False})
    #: Whether Python code that comes with it may be run.
    trust_code: bool = field(default=False, metadata={"identity": False})

    def __post_init__(self) -> None:
        found = self.exported.digest
        if self.weights and self.weights != found:
            raise UsageError(f"{self.path} holds other weights than when this was configured; configure it anew")
        object.__setattr__(self, "weights", found)

    @property
    def folder(self) -> Path:
        return Path(self.path)
