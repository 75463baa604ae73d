"""Evidence without what it was got from: what verdicts, pages and leaderboards read of a store, as a pack.

Scores of every victim, targets, controls, floors, bounds, tables of blocks and the figures that studies keep go in.
Weights, what attacks learnt, reconstructions and pictures stay: a store that a pack was unpacked into folds to the same
page without them, and makes again what a new seed or attack needs of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from leakscope.core.errors import UsageError, said_by
from leakscope.core.reports import Blocks, Bound
from leakscope.core.results import AttackResult, ControlResult, Summary, TargetRecord, from_json, to_json
from leakscope.experiments.reading import Trained, read_trained
from leakscope.experiments.stages import SCALE
from leakscope.experiments.submissions import Submitted
from leakscope.store import Store
from leakscope.store.entry import TENSORS
from leakscope.store.pack import Packed, read_pack, refuse, require_small, write_pack
from leakscope.store.sealing import VARIABLE, secret
from leakscope.studies.fisher import CLASSIFICATION, INVERSION, Comparison

#: Kinds that stand for another, of which a pack holds a figure or two: for weights, and for the judge of classes.
_STAND_FOR = {"training": "trained", "ceiling": "evaluator"}


@dataclass(frozen=True)
class Written:
    """What went into a pack."""

    kinds: Mapping[str, int]
    left_out: tuple[str, ...]  # entries whose form no fold of this version reads, and why
    bytes: int


@dataclass(frozen=True)
class Taken:
    """What became of the entries of a pack in a store."""

    added: int
    there: int  # already, and the same
    differing: tuple[str, ...]  # there, and not the same: the store keeps its own


def pack(store: Store, path: Path) -> Written:
    """Write everything that folds read to one file."""
    fitting, left_out = [], []
    for own in _evidence(store):
        require_small(own)
        try:
            require_form(own)
        except ValueError as error:
            left_out.append(f"{own.kind} {own.key}: {said_by(error)[:200]}")
        else:
            fitting.append(own)
    kinds: dict[str, int] = {}
    for own in fitting:
        kinds[own.kind] = kinds.get(own.kind, 0) + 1
    if "result" not in kinds:
        raise UsageError(f"{store.root} has no results to pack; give the store of a run with --store")
    if path.exists():  # so that a store that was begun anew does not take the place of what was saved of the old one
        here = {(own.kind, own.key) for own in fitting}
        lost = [own for own in read_pack(path, FORMS) if (own.kind, own.key) not in here]
        if lost:
            raise UsageError(
                f"{path} has {len(lost)} entries that {store.root} has not; unpack it into that store first, or name "
                "another file"
            )
    return Written(kinds, tuple(left_out), write_pack(path, fitting))


def unpack(path: Path, store: Path) -> Taken:
    """Add what a pack holds to a store, which is made if there is none. Nothing is added unless all of it is sound.

    A signature says that its writer computed an entry; who unpacks has only been told, and signs nothing.
    """
    if secret() is not None:
        raise UsageError(
            f"{VARIABLE} is set, and what is unpacked would be signed as if it had been computed here; unset it, and "
            "unpack into a store of its own"
        )
    entries = read_pack(path, FORMS)
    for own in entries:
        try:
            require_form(own)
        except ValueError as error:
            refuse(path, f"its {own.kind} {own.key}: {said_by(error)}")
    place = Store(store)
    added, there, differing = 0, 0, []
    for own in entries:
        known = _of(place, own.kind, own.key)
        if known is None:
            # A table of blocks is read with its maps, which are pictures: it gets none.
            tensors = own.tensors or ({} if own.kind == "blocks" else None)
            place.put(own.kind, own.key, own.record, tensors)
            added += 1
        elif known.same(own):
            there += 1
        else:
            differing.append(f"{own.kind} {own.key}")
    return Taken(added, there, tuple(differing))


def _evidence(store: Store) -> Iterator[Packed]:
    """Every entry of a store that a fold reads."""
    for kind in sorted(FORMS):
        keys = store.keys(kind)
        if kind in _STAND_FOR:
            keys |= store.keys(_STAND_FOR[kind])
        for key in sorted(keys):
            own = _of(store, kind, key)
            if own is not None:
                yield own


def _of(store: Store, kind: str, key: str) -> Packed | None:
    """An entry of a store as a pack holds it."""
    if kind == "training":
        trained = read_trained(store, key)
        return None if trained is None else Packed(kind, key, to_json(trained), {})
    if kind == "ceiling":
        judge = store.get("evaluator", key) or store.get("ceiling", key)
        return None if judge is None else Packed(kind, key, {"accuracy": judge.record.get("accuracy")}, {})
    entry = store.get_whole(kind, key)
    if entry is None:
        return None
    scored = kind == "result" and (entry.folder / TENSORS).exists()
    return Packed(kind, key, entry.record, entry.tensors() if scored else {})


def require_form(own: Packed) -> None:
    """`ValueError`, with the reason, unless an entry is one that folds can read."""
    try:
        FORMS[own.kind](own)
        sound = own.kind == "result" or not own.tensors
    except Exception as error:  # whatever made-up JSON does to its reader
        raise ValueError(said_by(error) or type(error).__name__) from None
    if not sound:
        raise ValueError("it has tensors")


def _field(own: Packed, name: str) -> Any:
    """The one field of a record."""
    (found,) = own.record.items()
    if found[0] != name:
        raise ValueError(f"it has no {name}")
    return found[1]


def _target(own: Packed) -> None:
    record = from_json(TargetRecord, _field(own, "summary"))
    if record.key != own.key:
        raise ValueError("it is another target's")


def _result(own: Packed) -> None:
    result = from_json(AttackResult, _field(own, "summary"))
    if result.key != own.key:
        raise ValueError("it is another result's")
    if "leak" not in result.metrics:
        raise ValueError("it has no leak")
    names, victims = set(result.metrics), result.metrics["leak"].n
    if not names <= set(result.directions) or not names <= set(own.tensors) <= names | {SCALE}:
        raise ValueError("its metrics, their directions and their values do not belong together")
    for name, values in own.tensors.items():
        one_in_all = values.numel() == 1 and values.ndim < 2 and name not in {"leak", SCALE}
        known = values.dtype in {torch.float32, torch.float64}
        if not known or not (values.shape == (victims,) or one_in_all):
            raise ValueError(f"{name} has {values.dtype} {tuple(values.shape)} for {victims} victims")


def _control(own: Packed) -> None:
    summary = _field(own, "summary")
    if set(summary) != {"controls"}:
        raise ValueError("it has no controls")
    for control in summary["controls"]:
        from_json(ControlResult, control)


def _floors(own: Packed) -> None:
    for scores in _field(own, "floors").values():
        for score in scores.values():
            from_json(Summary, score)


def _bound(own: Packed) -> None:
    bound = _field(own, "bound")
    if bound is not None:
        from_json(Bound, bound)


def _blocks(own: Packed) -> None:
    plain = _field(own, "blocks")
    blocks = None if plain is None else from_json(Blocks, plain)
    if blocks is not None and len({len(attack.rows) for attack in blocks.attacks}) > 1:
        raise ValueError("its attacks have different blocks")


def _outside(own: Packed) -> None:
    Submitted.model_validate(_field(own, "summary"))


def _training(own: Packed) -> None:
    from_json(Trained, own.record)


def _ceiling(own: Packed) -> None:
    _require_number(_field(own, "accuracy"))


def _fisher(own: Packed) -> None:
    found = from_json(Comparison, _field(own, "fisher"))
    if any(len(profile) != len(found.layers) for profile in found.profiles.values()):
        raise ValueError("its profiles have different layers")
    for value in (found.correlation(), found.early_share(INVERSION), found.early_share(CLASSIFICATION)):
        _require_number(value)


def _timing(own: Packed) -> None:
    if set(own.record) != {"epoch_seconds", "training"}:
        raise ValueError("it is no timing")
    _require_number(own.record["epoch_seconds"])


def _silhouette(own: Packed) -> None:
    _require_number(_field(own, "silhouette"))


def _require_number(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("it has no number")


#: What a pack may hold, and what makes an entry of that kind one that folds can read.
FORMS: Mapping[str, Callable[[Packed], None]] = {
    "target": _target, "result": _result, "control": _control, "floors": _floors, "bound": _bound, "blocks": _blocks,
    "outside": _outside, "training": _training, "ceiling": _ceiling,
    "fisher": _fisher, "timing": _timing, "silhouette": _silhouette,
}  # fmt: skip
