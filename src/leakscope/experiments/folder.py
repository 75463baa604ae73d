"""The folder an audit leaves: audit.json and the pictures that go with it."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from leakscope.core.data import ImageSet
from leakscope.core.durable import appearing, save_tensors
from leakscope.core.errors import UsageError
from leakscope.core.escaping import json_text
from leakscope.core.results import to_json
from leakscope.experiments.finished import Audit
from leakscope.report import write as write_report


def require_writable(folder: Path) -> None:
    """Create the output folder now: a long run must not end in a write error."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from None


def write_folder(audit: Audit, folder: Path) -> list[Path]:
    """Write audit.json, its pictures and every rendering; each file appears whole or not at all."""
    require_writable(folder)
    pictures, document = folder / "pictures.safetensors", folder / "audit.json"
    with appearing(pictures) as temporary:
        save_tensors(audit.images, temporary)
    with appearing(document) as temporary:
        temporary.write_text(json_text(to_json(audit.report)), encoding="utf-8")
    return [document, pictures, *write_report(folder)]


def write_reconstructions(victims: ImageSet, guesses: dict[str, Tensor], folder: Path) -> None:
    """Every reconstruction as a tensor, and a sheet: originals in the first row, one row for each result."""
    with appearing(folder / "reconstructions.safetensors") as temporary:
        save_tensors({"truth": victims.images, **guesses}, temporary)
    if victims.pixels:
        count = min(16, len(victims))
        rows = [victims.images[:count], *(guess[:count] for guess in guesses.values())]
        lines = [torch.cat(list(torch.nn.functional.pad(row, (1, 1, 1, 1), value=1.0)), dim=2) for row in rows]
        sheet = (torch.cat(lines, dim=1) * 255).round().to(torch.uint8).permute(1, 2, 0).squeeze(-1)
        Image.fromarray(sheet.numpy()).save(folder / "sheet.png")
