"""A target from the Hugging Face hub."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from leakscope.core.errors import UsageError
from leakscope.models._exported import CARD, CODE, DESCRIPTION, EXAMPLE, SUMS, WEIGHTS, ExportedArchitecture
from leakscope.models.architecture import MODELS


@cache
def _snapshot(repository: str, version: str | None) -> Path:
    """The files of a repository: those in the cache, else fetched; the weights are checked by whoever reads them."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UsageError(
            f"hf:{repository} needs huggingface_hub; pip install it, or give path:FOLDER with a copy"
        ) from None
    wanted = [DESCRIPTION, WEIGHTS, CARD, SUMS, EXAMPLE, CODE]
    reason = ""
    for local in (True, False):
        try:
            found = snapshot_download(repository, revision=version, allow_patterns=wanted, local_files_only=local)
            return Path(found)
        except Exception as error:  # the hub has many errors; what matters is what the last one says
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise UsageError(f"cannot get hf:{repository} ({reason}); check the name and the network, or give path:FOLDER")


@MODELS.register("hf")
@dataclass(frozen=True)
class HubTarget(ExportedArchitecture):
    """A target that `leakscope export` wrote and somebody uploaded: `hf:owner/name`.

    Taken from the local cache when it is there, else fetched (huggingface_hub; HF_HUB_OFFLINE is honoured).
    """

    repository: str
    version: str | None = None  # a tag, branch or commit
    weights: str = field(default="", metadata={"shown": False})
    #: Whether Python code that comes with it may be run.
    trust_code: bool = field(default=False, metadata={"identity": False})

    def __post_init__(self) -> None:
        if self.repository.count("/") != 1:
            raise ValueError("write hf:owner/name")
        found = self.exported.digest
        if self.weights and self.weights != found:
            raise UsageError(f"hf:{self.repository} holds other weights than when this was configured")
        object.__setattr__(self, "weights", found)

    @property
    def folder(self) -> Path:
        return _snapshot(self.repository, self.version)
