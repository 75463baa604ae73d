"""A store of made-up results, written as the pipeline writes them but without running anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leakscope.core.spec import digest
from leakscope.store import Store

COMMAND = "leakscope attack --set data=digits"


def put(root: Path, kind: str, key: str, record: Mapping[str, Any], tensors: Any = None) -> None:
    """One entry of a store; a later one replaces it."""
    store = Store(root)
    store.discard(kind, key)
    plain = None if tensors is None else {name: torch.from_numpy(array) for name, array in tensors.items()}
    store.put(kind, key, record, plain)


def summary(defense: str, attack: str, seed: int, leak: float, accuracy: float, **facts: Any) -> dict[str, Any]:
    """What a result says about itself."""
    scores = {"mean": leak, "std": 0.1, "low": leak - 0.02, "high": leak + 0.02, "worst": leak + 0.2, "n": 8}
    error = {"mean": 1 - leak, "std": 0.1, "low": 0.9 - leak, "high": 1.1 - leak, "worst": 0.8 - leak, "n": 8}
    return {
        "target": digest([defense, seed]), "attack": attack, "seed": seed, "metrics": {"leak": scores, "mse": error},
        "model": "convnet", "cut": "features.2", "defense": defense, "accuracy": accuracy, "threat": "all",
        "setting": "5e771796", "victims": digest("victims"), "data": "digits", "command": COMMAND, **facts,
    }  # fmt: skip


def add(root: Path, said: Mapping[str, Any], *, pictures: bool = False) -> str:
    """Keep a result, and when asked the reconstructions behind it; its key."""
    key = digest(said)
    attack = digest(["attack", key])
    put(root, "result", key, {"attack": attack, "summary": said})
    if pictures:
        guess = np.linspace(0, 1, 8 * 64, dtype=np.float32).reshape(8, 1, 8, 8)
        put(root, "attack", attack, {}, {"guess": guess})
    return key
