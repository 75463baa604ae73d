"""`leakscope list`, `cuts`, `show` and `schema`: what there is, without running anything."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from leakscope.commands.settings import print_json, settings_of
from leakscope.options import RUN, Data, DataRoot, Json, Resize, StorePath, option


class Kinds(StrEnum):
    """What `list` can list."""

    attacks = "attacks"
    defenses = "defenses"
    datasets = "datasets"
    models = "models"
    metrics = "metrics"
    priors = "priors"
    studies = "studies"


def list_(
    kind: Annotated[Kinds | None, typer.Argument(help="Only this kind.")] = None,
    json_: Json = False,
) -> int:
    """Show every attack, defence, data set, model, metric, prior and study by name."""
    from leakscope.core.attack import ATTACKS
    from leakscope.core.data import DATASETS
    from leakscope.core.defense import DEFENSES
    from leakscope.core.metric import METRICS
    from leakscope.core.prior import PRIORS
    from leakscope.models.architecture import MODELS
    from leakscope.studies.study import STUDIES

    kinds: dict[str, Any] = {
        "attacks": ATTACKS, "defenses": DEFENSES, "datasets": DATASETS, "models": MODELS, "metrics": METRICS,
        "priors": PRIORS, "studies": STUDIES,
    }  # fmt: skip
    chosen = {name: table for name, table in kinds.items() if kind is None or name == kind}
    if json_:
        print_json({name: list(table) for name, table in chosen.items()})
        return 0
    from leakscope.terminal import print_methods

    print_methods(chosen)
    return 0


def cuts(
    model: Annotated[str, typer.Argument(help="A network, as for --model.")],
    data: Data = None,
    data_root: DataRoot = None,
    resize: Resize = None,
    json_: Json = False,
) -> int:
    """List every layer where a network can be cut, with its feature shape and the client's share of compute.

    Examples:

      leakscope cuts lenet5

      leakscope cuts mine.py:build --data folder:photos
    """
    from leakscope.core import seeds
    from leakscope.core.data import UNLABELLED
    from leakscope.core.model import cuts as find_cuts
    from leakscope.experiments.config import AuditConfig, load_data, load_parts
    from leakscope.models.resolve import instantiate, resolve

    given = settings_of({"data": data, "data_root": data_root, "resize": resize}, None)
    config = AuditConfig.read(None, given)
    architecture = resolve(model)
    parts = load_parts(config, config.data_root)  # `train` and `val` in a folder are no classes
    pictures = load_data(config, config.data_root) if parts is None else parts[0]
    classes = () if pictures.classes == UNLABELLED else pictures.classes
    with seeds.ambient(0, "cuts"):
        network = instantiate(architecture, pictures.shape, len(classes), classes)
    found = find_cuts(network, pictures.images[:2], architecture.normalization())
    if json_:
        print_json([vars(cut) for cut in found])
        return 0
    from leakscope.terminal import print_cuts

    print_cuts(found)
    return 0


def show(
    key: Annotated[str, typer.Argument(help="A key, or its first digits.")],
    store: StorePath = Path("runs/store"),
    pictures: Annotated[
        Path | None, option("--pictures", help="Also draw a result's reconstructions here (PNG).", panel=RUN)
    ] = None,
) -> int:
    """Print what the store holds under a key."""
    from leakscope.store import Store

    kept = Store.existing(store)
    entry = kept.find(key)
    if pictures is not None:
        from leakscope.experiments.reading import read_result
        from leakscope.report.strips import write_strip

        write_strip(kept, read_result(kept, entry.key), pictures)
    print_json({"kind": entry.kind, "key": entry.key, "folder": str(entry.folder), **entry.record})
    return 0


def schema(
    audit: Annotated[bool, typer.Option("--audit", help="Of the audit.json that an audit writes, instead.")] = False,
) -> int:
    """Print the JSON Schema of audit configurations."""
    from leakscope.core.reports import audit_schema
    from leakscope.experiments.config import AuditConfig

    print_json(audit_schema() if audit else AuditConfig.model_json_schema())
    return 0
