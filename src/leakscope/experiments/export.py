"""A target as a folder that others can load: weights, description, model card, checksums; no pickles."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from leakscope.core import seeds
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.core.results import AttackResult, TargetRecord
from leakscope.core.spec import Plain
from leakscope.experiments.experiment import TargetSpec
from leakscope.experiments.reading import read_entries, read_result, read_target
from leakscope.models._exported import CARD, DESCRIPTION, NOT_PORTABLE, SCHEMA, SUMS, WEIGHTS, sha256
from leakscope.models.architecture import MODELS
from leakscope.models.resolve import instantiate
from leakscope.models.weights import file_digest, load_weights
from leakscope.report import numbers
from leakscope.store import Store


def export_target(store: Store, key: str, out: Path, *, weights: Path | None = None, audit: Path | None = None) -> Path:
    """Write the target with this key (or that a result was got from) to the new folder `out`.

    `weights` is the file a target was given instead of being trained; `audit` a folder whose verdict the
    card quotes.
    """
    record = _target(store, key)
    if set(record.model.kinds) & NOT_PORTABLE:
        raise UsageError(
            f"{record.model.label} is no architecture of Leakscope's, so others could not build it; "
            "hand its code and weights on yourself"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not empty; choose a new folder with --out")
    state = _state(store, record, weights)
    results = [entry.result for entry in read_entries(store) if entry.target.key == record.key]
    incoming = out.with_name(f".{out.name}.{uuid.uuid4().hex}")
    try:
        incoming.mkdir(parents=True)
        save_file(state, incoming / WEIGHTS, metadata={"format": "pt"})
        description = _description(record, sha256(incoming / WEIGHTS))
        (incoming / DESCRIPTION).write_text(
            json.dumps(description, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        )
        (incoming / CARD).write_text(card(record, sha256(incoming / WEIGHTS), results, _verdict(audit, record.key)))
        sums = "".join(f"{sha256(incoming / name)}  {name}\n" for name in (CARD, DESCRIPTION, WEIGHTS))
        (incoming / SUMS).write_text(sums)
        if out.exists():
            out.rmdir()
        os.rename(incoming, out)  # noqa: PTH104 (the whole folder at once)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}; choose another folder with --out") from None
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return out


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
    if spec.weights is not None and (weights is None or file_digest(weights) != spec.weights):
        raise UsageError("it was given its weights in a file; name that file with --weights")
    channels, height, width = record.input_shape
    architecture = MODELS.build(spec.model)
    with seeds.ambient(record.seed, "target", "init"):
        model = instantiate(architecture, (channels, height, width), len(record.classes))
        if weights is not None:
            load_weights(model, weights)
        split = SplitModel(model, spec.cut, normalize=architecture.normalization(), defense=spec.defense)
        split = spec.defense.rebuild(split.eval(), torch.zeros(2, channels, height, width))
    return {name: tensor.contiguous() for name, tensor in split.state_dict().items()}


def _description(record: TargetRecord, hashed: str) -> Plain:
    spec = TargetSpec.from_plain(record.identity)
    shape, classes = list(record.input_shape), list(record.classes)
    pixels = "float32 NCHW in [0, 1]; normalisation is part of the network"
    return {
        "schema": SCHEMA,
        "library_name": "leakscope",
        "key": record.key,
        "model": record.model.label,
        "architecture": record.model.settings,
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
        "files": {WEIGHTS: hashed},
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


def card(record: TargetRecord, hashed: str, results: Sequence[AttackResult], verdict: str | None) -> str:
    """The model card: front matter as the Hugging Face hub reads it, then what a person must know."""
    model, defense, data = record.model.label, record.defense.label, record.data
    metric = {"type": "accuracy", "value": record.accuracy}
    task = {"task": {"type": "image-classification"}, "dataset": {"name": data, "type": data}, "metrics": [metric]}
    front = {
        "library_name": "leakscope",
        "pipeline_tag": "image-classification",
        "tags": ["leakscope", "split-inference", "model-inversion", "privacy"],
        "metrics": ["accuracy"],
        "model-index": [{"name": f"{model} ({defense})", "results": [task]}],
    }
    shape = numbers.shape(record.input_shape)
    randomness = ", with fresh randomness every time" if record.random_release else ""
    blocks = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---",
        f"# {model}, cut at `{record.cut}`, defence `{defense}`",
        f"A target of [Leakscope](https://pypi.org/project/leakscope/): it reads {shape} pictures in [0, 1] and tells "
        f"{len(record.classes)} classes apart. Its client sends "
        f"{numbers.shape(record.feature_shape)} features{randomness}.",
        "| | |\n|---|---|\n"
        f"| data | {_cell(data)} |\n"
        f"| accuracy on held-out pictures | {record.accuracy:.4f} |\n"
        f"| seed | {record.seed} |\n"
        f"| key | `{record.key}` |\n"
        f"| weights, SHA-256 | `{hashed}` |",
        "## Use\n\n```bash\nleakscope audit --model path:FOLDER --data …\n```\n\n"
        "Its cut and defence come with it. Nothing in this folder is executed when it is loaded.",
        "## Inversion leakage",
        *([f"**{verdict}**"] if verdict else []),
        _leakage(results),
        "These attacks, on these pictures, rebuilt no more than this; others may. Leak is the share of what "
        "distinguishes a picture from the average of its class that was rebuilt: 1 is the picture, 0 what the label "
        "alone tells.",
    ]
    return "\n\n".join(blocks) + "\n"


def _leakage(results: Sequence[AttackResult]) -> str:
    if not results:
        return "It has not been attacked yet."
    names = sorted({name for result in results for name in result.metrics}, key=lambda name: (name != "leak", name))
    lines = [
        "| attack | threat model | seed | " + " | ".join(names) + " | worst leak | doubts |",
        "|---|---|---|" + "---|" * (len(names) + 2),
    ]
    for result in sorted(results, key=lambda result: -result.leak):
        scores = [result.metrics.get(name) for name in names]
        shown = [f"{numbers.number(s.mean)} ({numbers.interval(s)})" if s else numbers.NOTHING for s in scores]
        words = [_cell(result.attack.label), _cell(result.threat.label), str(result.seed), *shown]
        doubts = ", ".join(flag.id for flag in result.flags if flag.blocks)
        lines.append(f"| {' | '.join(words)} | {numbers.number(result.metrics['leak'].worst)} | {doubts} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
