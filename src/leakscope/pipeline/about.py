"""What a result says about itself, so that tables can be drawn from results alone."""

from __future__ import annotations

import json
import shlex
from typing import Any

import torch

from leakscope.core.data import DATASETS, ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.spec import label
from leakscope.core.threat import ThreatModel
from leakscope.pipeline.plan import Plan
from leakscope.report.results import setting_of
from leakscope.store import Store

#: Settings that do not change a result, or that the command names for themselves.
_APART = {"scales", "variants", "study", "results", "gate", "evidence", "cuts", "defenses", "attacks", "seeds"}
#: Victims kept as pictures, to be shown beside what was rebuilt of them.
KEPT = 16


def about(plan: Plan) -> dict[str, Any]:
    """The data's name, and the command that repeats any result of a plan but for cut, defence, attack and seed."""
    return {"data": _data(plan), "command": _command(plan)}


def _data(plan: Plan) -> str:
    try:
        name = label(DATASETS.build(plan.config.data))
    except UsageError:  # pictures handed over in Python have no name to ask for
        name = plan.data_name
    return name if plan.config.resize is None else f"{name}, {plan.config.resize} px"


def _command(plan: Plan) -> str | None:
    config = plan.config
    if "given" in (config.data, config.model):
        return None
    changed = config.model_dump(mode="json", exclude_defaults=True, exclude=_APART)
    words = ["leakscope", "audit" if plan.rebuilds_classes else "attack"]
    for name, value in changed.items():
        words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(words)


def threat_name(threat: ThreatModel) -> str:
    """`all`, or what is granted and what is not."""
    usual = ThreatModel()
    if threat == usual:
        return "all"
    parts = ["all" if threat.access == usual.access else "+".join(sorted(threat.access)) or "nothing"]
    if not threat.public_data:
        parts.append("no public data")
    if not threat.knows_defense:
        parts.append("defence unknown")
    if threat.queries is not None:
        parts.append(f"{threat.queries} queries")
    return ", ".join(parts)


def described(record: dict[str, Any], threat: ThreatModel, victims: ImageSet) -> dict[str, Any]:
    """Target, threat model and victims of a result; nothing of a control, which has no plan."""
    if "plan" not in record:
        return {}
    return {
        **{name: record[name] for name in ("model", "cut", "defense", "accuracy")},
        "threat": threat_name(threat),
        "setting": setting_of(record["plan"]),
        "victims": victims.digest(),
    }


def keep_victims(store: Store, victims: ImageSet) -> None:
    """The first victims at 8 bits, once."""
    if victims.pixels and store.get("victims", key := victims.digest()) is None:
        pictures = (victims.images[:KEPT] * 255).round().to(torch.uint8)
        store.put("victims", key, {"count": len(victims)}, {"truth": pictures})
