"""A pack with a result and its target, and packs by somebody who knows the format."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from leakscope.core.results import to_json
from leakscope.store.pack import FORMAT, Packed

from ..auditing.results import result, target

KEY, OTHER = "a" * 24, "b" * 24
VALUES = torch.tensor([0.25, 0.5, 0.75, 1.0])


def entries() -> list[Packed]:
    """A result and its target, as a run leaves them."""
    own = result(KEY, "ridge", 0.625, of=OTHER)
    own = replace(own, metrics={"leak": replace(own.metrics["leak"], n=len(VALUES))})
    return [
        Packed("result", KEY, {"summary": to_json(own)}, {"leak": VALUES, "scale": 2 * VALUES}),
        Packed("target", OTHER, {"summary": to_json(target(OTHER))}, {}),
    ]


def forged(path: Path, lines: Sequence[Any], tensors: dict[str, Tensor] | None = None, format: str = FORMAT) -> Path:
    """A pack by somebody who knows the format; lines may be text that is no JSON."""
    texts = [json.dumps({"format": format}), *(line if isinstance(line, str) else json.dumps(line) for line in lines)]
    records = torch.frombuffer(bytearray("\n".join(texts), "utf-8"), dtype=torch.uint8)
    path.write_bytes(lzma.compress(save({**(tensors or {}), "records": records})))
    return path


def line(entry: Packed, **changed: Any) -> dict[str, Any]:
    return {"kind": entry.kind, "key": entry.key, "record": entry.record, **changed}


def said(kind: str, record: str) -> str:
    """A line whose record is text that `json` would not write."""
    return f'{{"kind": "{kind}", "key": "{KEY}", "record": {record}}}'


def tensors_of(entry: Packed) -> dict[str, Tensor]:
    return {f"{entry.kind}/{entry.key}/{name}": tensor for name, tensor in entry.tensors.items()}
