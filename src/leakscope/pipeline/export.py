"""A target as a folder that others can load: weights, description, model card, checksums; no pickles."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from leakscope.core import seeds
from leakscope.core.defense import build_defense
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.core.spec import Plain, digest, label
from leakscope.models._exported import CARD, DESCRIPTION, NOT_PORTABLE, SCHEMA, SUMS, WEIGHTS, sha256
from leakscope.models.architecture import MODELS
from leakscope.models.resolve import instantiate
from leakscope.models.weights import file_digest, load_weights
from leakscope.report import numbers
from leakscope.store import Entry, Store


def export_target(store: Store, key: str, out: Path, *, weights: Path | None = None, audit: Path | None = None) -> Path:
    """Write the target with this key (or that a result was got from) to the new folder `out`.

    `weights` is the file a target was given instead of being trained; `audit` a folder whose verdict the
    card quotes.
    """
    entry = _target(store, key)
    plan, record = entry.record["plan"], entry.record
    if plan["model"]["kind"] in NOT_PORTABLE:
        raise UsageError(
            f"{record['model']} is no architecture of Leakscope's, so others could not build it; "
            "hand its code and weights on yourself"
        )
    if "input" not in record:
        raise UsageError(f"{key} was measured by an older version; delete {entry.folder} and run its command again")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not empty; choose a new folder with --out")
    state = _state(store, record, weights)
    rows = [row for row in store.summaries("result").values() if row.get("target") == entry.key]
    incoming = out.with_name(f".{out.name}.{uuid.uuid4().hex}")
    try:
        incoming.mkdir(parents=True)
        save_file(state, incoming / WEIGHTS, metadata={"format": "pt"})
        description = _description(entry.key, record, sha256(incoming / WEIGHTS), rows)
        (incoming / DESCRIPTION).write_text(
            json.dumps(description, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        )
        (incoming / CARD).write_text(card(description, rows, _verdict(audit, entry.key)))
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


def _target(store: Store, key: str) -> Entry:
    # Looked for among targets first: a defended target, its weights and its bound share a key.
    found = [whole for whole in store.keys("target") if len(key) >= 4 and whole.startswith(key)]
    if not found:
        entry = store.find(key)
        found = [entry.record.get("summary", {}).get("target", "")] if entry.kind == "result" else []
    if len(found) > 1:
        raise UsageError(f"{len(found)} targets start with {key!r}; give more digits")
    target = store.get("target", found[0]) if found and found[0] else None
    if target is None:
        raise UsageError(f"{key} is no target; give its key, as `leakscope train` prints it")
    return target


def _state(store: Store, record: Mapping[str, Any], weights: Path | None) -> dict[str, Tensor]:
    """The weights of the split network: those it was trained to, or those it was built with."""
    plan = record["plan"]
    if plan["training"]["epochs"]:
        # As `TargetPlan.trained_key`: an undefended network is trained once for all its cuts.
        undefended = plan["defense"]["kind"] == "none"
        identity = {name: value for name, value in plan.items() if not (undefended and name == "cut")}
        trained = store.get("trained", digest(identity))
        if trained is None:
            raise UsageError("its weights are no longer in the store; run the command that trained it again")
        return trained.tensors()
    if plan["weights"] is not None and (weights is None or file_digest(weights) != plan["weights"]):
        raise UsageError("it was given its weights in a file; name that file with --weights")
    shape = tuple(record["input"]["shape"])
    architecture, defense = MODELS.build(plan["model"]), build_defense(plan["defense"])
    with seeds.ambient(record["seed"], "target", "init"):
        model = instantiate(architecture, shape, len(record["input"]["classes"]))
        if weights is not None:
            load_weights(model, weights)
        split = SplitModel(model, plan["cut"], normalize=architecture.normalization(), defense=defense)
        split = defense.rebuild(split.eval(), torch.zeros(2, *shape))
    return {name: tensor.contiguous() for name, tensor in split.state_dict().items()}


def _description(key: str, record: Mapping[str, Any], hashed: str, rows: Iterable[Plain]) -> Plain:
    plan = record["plan"]
    named = [row for row in rows if "data" in row]
    return {
        "schema": SCHEMA,
        "library_name": "leakscope",
        "key": key,
        "model": record["model"],
        "architecture": plan["model"],
        "cut": plan["cut"],
        "defense": plan["defense"],
        "defense_label": label(build_defense(plan["defense"])),
        "input": {**record["input"], "pixels": "float32 NCHW in [0, 1]; normalisation is part of the network"},
        "feature_shape": record["feature_shape"],
        "data": named[0]["data"] if named else None,
        "pictures": plan["splits"],
        "training": plan["training"],
        "seed": record["seed"],
        "accuracy": record["accuracy"],
        "calibration": record["calibration"],
        "random_release": record["random_release"],
        "versions": {"leakscope": version("leakscope"), "torch": torch.__version__},
        "files": {WEIGHTS: hashed},
    }


def _verdict(audit: Path | None, key: str) -> str | None:
    """What a finished audit says about this target."""
    if audit is None:
        return None
    from leakscope.report import read

    document, _ = read(audit)
    if key not in {target["key"] for target in document["targets"]}:
        raise UsageError(f"the audit in {audit} is of other targets; give the folder of one that attacked {key}")
    return f"{document['verdict']} at evidence {document['evidence']}: {document['sentence']}"


def card(description: Mapping[str, Any], rows: list[Plain], verdict: str | None) -> str:
    """The model card: front matter as the Hugging Face hub reads it, then what a person must know."""
    data = description["data"] or f"pictures {description['pictures'][:8]}"
    front = {
        "library_name": "leakscope",
        "pipeline_tag": "image-classification",
        "tags": ["leakscope", "split-inference", "model-inversion", "privacy"],
        "metrics": ["accuracy"],
        "model-index": [
            {
                "name": f"{description['model']} ({description['defense_label']})",
                "results": [
                    {
                        "task": {"type": "image-classification"},
                        "dataset": {"name": data, "type": data.partition(":")[0]},
                        "metrics": [{"type": "accuracy", "value": description["accuracy"]}],
                    }
                ],
            }
        ],
    }
    shape = numbers.shape(description["input"]["shape"])
    randomness = ", with fresh randomness every time" if description["random_release"] else ""
    blocks = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---",
        f"# {description['model']}, cut at `{description['cut']}`, defence `{description['defense_label']}`",
        f"A target of [Leakscope](https://pypi.org/project/leakscope/): it reads {shape} pictures in [0, 1] and tells "
        f"{len(description['input']['classes'])} classes apart. Its client sends "
        f"{numbers.shape(description['feature_shape'])} features{randomness}.",
        "| | |\n|---|---|\n"
        f"| data | {_cell(data)} |\n"
        f"| accuracy on held-out pictures | {description['accuracy']:.4f} |\n"
        f"| seed | {description['seed']} |\n"
        f"| key | `{description['key']}` |\n"
        f"| weights, SHA-256 | `{description['files'][WEIGHTS]}` |",
        "## Use\n\n```bash\nleakscope audit --model path:FOLDER --data …\n```\n\n"
        "Its cut and defence come with it. Nothing in this folder is executed when it is loaded.",
        "## Inversion leakage",
        *([f"**{verdict}**"] if verdict else []),
        _leakage(rows),
        "These attacks, on these pictures, rebuilt no more than this; others may. Leak is the share of what "
        "distinguishes a picture from the average of its class that was rebuilt: 1 is the picture, 0 what the label "
        "alone tells.",
    ]
    return "\n\n".join(blocks) + "\n"


def _leakage(rows: list[Plain]) -> str:
    if not rows:
        return "It has not been attacked yet."
    names = sorted({name for row in rows for name in row["metrics"]}, key=lambda name: (name != "leak", name))
    lines = [
        "| attack | threat model | seed | " + " | ".join(names) + " | worst leak |",
        "|---|---|---|" + "---|" * (len(names) + 1),
    ]
    for row in sorted(rows, key=lambda row: -row["metrics"].get("leak", {"mean": 0.0})["mean"]):
        scores = [row["metrics"].get(name) for name in names]
        shown = [f"{numbers.number(s['mean'])} ({numbers.interval(s)})" if s else numbers.NOTHING for s in scores]
        worst = row["metrics"].get("leak", {}).get("worst")
        threat = _cell(row.get("threat", "not recorded"))
        lines.append(
            f"| {_cell(row['attack'])} | {threat} | {row['seed']} | {' | '.join(shown)} | {numbers.number(worst)} |"
        )
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
