"""A target as a folder that others can load: weights, description, model card, checksums; no pickles."""

from __future__ import annotations

import os
import shutil
import uuid
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from leakscope.core.durable import save_tensors
from leakscope.core.errors import UsageError
from leakscope.core.escaping import json_text
from leakscope.core.own_code import code_in, names_code
from leakscope.core.results import TargetRecord
from leakscope.core.spec import Plain
from leakscope.experiments.building import build_split
from leakscope.experiments.card import card, example, model_name
from leakscope.experiments.experiment import TargetSpec
from leakscope.experiments.reading import read_entries, read_result, read_target
from leakscope.models._exported import CARD, CODE, DESCRIPTION, EXAMPLE, NOT_PORTABLE, SCHEMA, SUMS, WEIGHTS, sha256
from leakscope.models.architecture import MODELS
from leakscope.models.weights import file_digest
from leakscope.store import Store


def export_target(
    store: Store,
    key: str,
    out: Path,
    *,
    weights: Path | None = None,
    audit: Path | None = None,
    allow_code: bool = False,
) -> Path:
    """Write the target with this key (or that a result was got from) to the new folder `out`.

    `weights` is the file a target was given instead of being trained; `audit` a folder whose verdict the
    card quotes. What a store says is data: code that a record names is run only with `allow_code`.
    """
    record = _target(store, key)
    if set(record.model.kinds) & NOT_PORTABLE:
        raise UsageError(
            f"{record.model.plain} is no architecture of Leakscope's, so others could not build it; "
            "give it as a file, --model FILE.py:FACTORY, and its source goes with it"
        )
    if names_code(record.defense.settings) or names_code(record.identity.get("defense")):
        raise UsageError(
            f"{record.defense.label} is code of yours, which an export does not carry; ship it as a package"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not empty; choose a new folder with --out")
    if record.trained is None:
        _require_what_it_was_built_from(record, weights, allow_code)
    state = _state(store, record, weights)
    results = [entry.result for entry in read_entries(store) if entry.target.key == record.key]
    incoming = out.with_name(f".{out.name}.{uuid.uuid4().hex}")
    try:
        incoming.mkdir(parents=True)
        save_tensors(state, incoming / WEIGHTS, {"format": "pt"})
        hashes = {WEIGHTS: sha256(incoming / WEIGHTS)}
        if record.model.kinds == ("file",):
            (incoming / CODE).write_bytes(_source(record))
            hashes[CODE] = sha256(incoming / CODE)
        description = _description(record, hashes)
        (incoming / DESCRIPTION).write_text(json_text(description) + "\n", encoding="utf-8")
        (incoming / EXAMPLE).write_text(example(record))
        (incoming / CARD).write_text(card(record, hashes, results, _verdict(audit, record.key)))
        names = sorted(path.name for path in incoming.iterdir())
        sums = "".join(f"{sha256(incoming / name)}  {name}\n" for name in names)
        (incoming / SUMS).write_text(sums)
        if out.exists():
            out.rmdir()
        os.rename(incoming, out)  # noqa: PTH104 (the whole folder at once)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}; choose another folder with --out") from None
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return out


def _require_what_it_was_built_from(record: TargetRecord, weights: Path | None, allow_code: bool) -> None:
    """A target that was not trained here is built again; all that this takes is asked for in one line."""
    given = TargetSpec.from_plain(record.identity).weights
    missing = []
    if given is not None and (weights is None or file_digest(weights) != given):
        missing.append("name the file that it was given its weights in with --weights")
    if code_in(record.identity) and not allow_code:
        missing.append("add --allow-code if its code, which has to run again, is yours")
    if missing:
        raise UsageError(f"{record.model.plain} was not trained here; {', and '.join(missing)}")


def _target(store: Store, key: str) -> TargetRecord:
    """The target with this key, or that a result with this key was got from."""
    entry = store.find(key, kinds=("target", "trained", "result"))
    if entry.kind == "result":
        found = read_target(store, read_result(store, entry.key).target)
    elif entry.kind == "trained":
        records = (read_target(store, whole) for whole in store.keys("target"))
        found = next((record for record in records if record is not None and record.trained == entry.key), None)
    else:
        found = read_target(store, entry.key)
    if found is None:
        raise UsageError(f"{key} is no target; give its key, as `leakscope train` prints it")
    return found


def _state(store: Store, record: TargetRecord, weights: Path | None) -> dict[str, Tensor]:
    """The weights of the split network: those it was trained to, or those it was built with."""
    if record.trained is not None:
        trained = store.get("trained", record.trained)
        if trained is None:
            raise UsageError("its weights are no longer in the store; run the command that trained it again")
        return trained.tensors()
    spec = TargetSpec.from_plain(record.identity)
    split = build_split(
        MODELS.build(spec.model), spec.cut, spec.defense, example=torch.zeros(2, *record.input_shape),
        classes=len(record.classes), seed=record.seed, weights=weights,
    )  # fmt: skip
    return {name: tensor.contiguous() for name, tensor in split.state_dict().items()}


def _source(record: TargetRecord) -> bytes:
    """The file that builds the network, as it was when the target was made."""
    path = Path(record.model.settings["path"])
    if file_digest(path) != record.model.settings["source"]:
        raise UsageError(f"{path} has changed since this target was made; put the file back as it was")
    return path.read_bytes()


def _description(record: TargetRecord, hashes: dict[str, str]) -> Plain:
    architecture = dict(record.model.settings)
    if CODE in hashes:
        architecture["path"] = CODE
    spec = TargetSpec.from_plain(record.identity)
    shape, classes = list(record.input_shape), list(record.classes)
    pixels = "float32 NCHW in [0, 1]; normalisation is part of the network"
    return {
        "schema": SCHEMA,
        "library_name": "leakscope",
        "key": record.key,
        "model": model_name(record),
        "architecture": architecture,
        "cut": record.cut,
        "defense": record.defense.settings,
        "defense_label": record.defense.label,
        "input": {"shape": shape, "classes": classes, "pixels": pixels},
        "feature_shape": list(record.feature_shape),
        "data": record.data,
        "pictures": spec.splits,
        "training": spec.training,
        "seed": record.seed,
        "accuracy": record.accuracy,
        "calibration": record.calibration,
        "random_release": record.random_release,
        "versions": {"leakscope": version("leakscope"), "torch": torch.__version__},
        "files": hashes,
    }


def _verdict(audit: Path | None, key: str) -> str | None:
    """What a finished audit says about this target."""
    if audit is None:
        return None
    from leakscope.report import read

    report, _ = read(audit)
    if key not in {target.record.key for target in report.targets}:
        raise UsageError(f"the audit in {audit} is of other targets; give the folder of one that attacked {key}")
    return f"{report.verdict} at evidence {report.evidence.level}: {report.sentence}"
