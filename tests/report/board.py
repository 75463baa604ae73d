"""Made-up entries of a leaderboard, and a store with the pictures behind them, without running anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leakscope.core.results import Flag, Summary, to_json
from leakscope.core.spec import digest
from leakscope.core.words import FlagId
from leakscope.report.leaderboard import Group, sections
from leakscope.report.leaderboard_page import leaderboard_page
from leakscope.report.leaderboard_text import leaderboard_csv, leaderboard_latex, leaderboard_markdown, record_links
from leakscope.report.results import Entry, choose, parse_filters
from leakscope.report.strips import RECONSTRUCTIONS, SCORES
from leakscope.store import Store

from .sample import attack_result, target_record

COMMAND = "leakscope attack --set data=digits"
TEXTS = {"md": leaderboard_markdown, "tex": leaderboard_latex, "csv": leaderboard_csv}


def put(root: Path, kind: str, key: str, record: Mapping[str, Any], tensors: Any = None) -> None:
    """One entry of a store; a later one replaces it."""
    store = Store(root)
    store.discard(kind, key)
    plain = None if tensors is None else {name: torch.from_numpy(array) for name, array in tensors.items()}
    store.put(kind, key, record, plain)


def entry(
    defense: str, attack: str, seed: int, leak: float, accuracy: float, *flags: FlagId, cut: str = "features.2",
    data: str = "digits", victims: str = "71c7145" + "0" * 17, command: str = COMMAND, label: str | None = None,
) -> Entry:  # fmt: skip
    """One attack on one target; `label` renames the defence."""
    key = digest([defense, attack, seed, cut, data, victims, str(leak)])
    target = digest([defense, seed, cut])
    record = target_record(target, defense, cut, seed, accuracy, data=data)
    if label is not None:
        record = replace(record, defense=replace(record.defense, label=label))
    metrics = {
        "leak": Summary(leak, 0.1, leak - 0.02, leak + 0.02, leak + 0.2, 8),
        "mse": Summary(1 - leak, 0.1, 0.9 - leak, 1.1 - leak, 0.8 - leak, 8),
        "fid": Summary(100 * (1 - leak), 0, 100 * (1 - leak), 100 * (1 - leak), 100 * (1 - leak), 1),
    }
    made = attack_result(
        key, target, attack, leak, seed, metrics=metrics, directions={"leak": "high", "mse": "low", "fid": "low"},
        victims=victims, command=command, flags=tuple(Flag(flag, f"{attack} on {defense}", key) for flag in flags),
        reconstruction=digest(["pictures", key]),
    )  # fmt: skip
    return Entry(record, made)


def keep(root: Path, entries: Sequence[Entry], *, pictures: str | None = None) -> Store:
    """A store that holds the entries' records, and reconstructions of those with this defence."""
    for made in entries:
        put(root, SCORES, made.result.key, to_json(made.result))
        if made.target.defense.label == pictures:
            guess = np.linspace(0, 1, 8 * 64, dtype=np.float32).reshape(8, 1, 8, 8)
            put(root, RECONSTRUCTIONS, made.result.reconstruction, {}, {"guess": guess})
    return Store(root)


def text(
    entries: Sequence[Entry], form: str, store: Store, out: Path, *, metric: str = "leak", group: Group = "defense",
    filters: Sequence[str] = (),
) -> str:  # fmt: skip
    """A leaderboard of these entries in one of its formats."""
    found = choose(entries, metric, parse_filters(filters))
    tables = sections(found, group)
    if form == "html":
        return leaderboard_page(found, tables, store, out, group)
    return TEXTS[form](found, tables, record_links(store, out), group)
