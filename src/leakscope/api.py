"""The Python interface: what the command line does, for networks and pictures already in memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.data.images import from_torch
from leakscope.models.given import Given
from leakscope.pipeline.audit import run_audit
from leakscope.pipeline.config import AuditConfig
from leakscope.pipeline.document import Audit
from leakscope.pipeline.execute import Workplace
from leakscope.pipeline.folder import write_folder
from leakscope.pipeline.plan import make_plan
from leakscope.store import Store


def audit(
    model: nn.Module | str | dict[str, Any],
    data: str | dict[str, Any] | ImageSet | tuple[Tensor, Tensor] | torch.utils.data.Dataset[Any],
    *,
    cut: str | list[str] | None = None,
    out: str | Path | None = None,
    store: str | Path | None = None,
    device: str = "auto",
    **settings: Any,
) -> Audit:
    """Audit a network for what its features at `cut` give away.

    `model` is a module with its trained weights, or what `--model` takes; `data` is a pair of tensors, a
    `torch.utils.data.Dataset`, or what `--data` takes. `settings` are those of a configuration file
    (`defenses`, `attacks`, `seeds`, `gate`, `training`, …). With `out`, the report is written there;
    without `store`, finished stages are kept for this call only.
    """
    tree: dict[str, Any] = dict(settings)
    if cut is not None:
        tree["cuts"] = [cut] if isinstance(cut, str) else list(cut)
    given = isinstance(model, nn.Module)
    images = _images(data)
    tree["data"] = data if isinstance(data, str | dict) else "given"
    tree["model"] = "given" if given else model
    if given:
        # The weights are there: train only when told to.
        tree["training"] = {"epochs": 0, **tree.get("training", {})}
    tree.setdefault("data_root", os.environ.get("LEAKSCOPE_DATA"))
    config = AuditConfig.checked(tree)
    plan = make_plan(config, data=images, architecture=Given.of(model) if isinstance(model, nn.Module) else None)
    with tempfile.TemporaryDirectory(prefix="leakscope-") as passing:
        place = Workplace(Store(store if store is not None else passing), choose_device(device))
        result = run_audit(plan, place, command="leakscope.audit(…)")
    if out is not None:
        write_folder(result, Path(out))
    return result


def _images(data: Any) -> ImageSet | None:
    if isinstance(data, str | dict):
        return None
    return data if isinstance(data, ImageSet) else from_torch(data)


def choose_device(name: str) -> torch.device:
    """`auto` takes a GPU when there is one."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if accelerator is None else accelerator
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"device {name!r} cannot be used ({reason}); take --device cpu or cuda") from None
    return device
