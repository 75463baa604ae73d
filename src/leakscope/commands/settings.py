"""Options of a command become settings, plans and a place to work; heavy imports happen inside."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import typer

from leakscope.core.errors import UsageError


def settings_of(given: dict[str, Any], extra: list[str] | None) -> dict[str, Any]:
    """Options the user gave, as dotted settings."""
    from leakscope.core.yaml_text import parse_yaml

    settings = {key: value for key, value in given.items() if value is not None}
    for item in extra or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--set {item}: write it as --set name=value")
        settings[key] = parse_yaml(value, f"--set {key}")
    return settings


def plan_of(config: Path | None, scale: str | None, extra: list[str] | None, threads: int | None, **given: Any) -> Any:
    import torch

    from leakscope.experiments.config import AuditConfig
    from leakscope.experiments.plan import make_plan

    if threads is not None:
        torch.set_num_threads(threads)
    return make_plan(AuditConfig.read(config, settings_of(given, extra), scale))


def work_at(store: Path, device: str) -> Any:
    from leakscope.experiments.workplace import Workplace
    from leakscope.runners.devices import chosen
    from leakscope.store import Store

    return Workplace(Store(store), chosen(device))


def print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def show_plans(plans: Any, as_json: bool) -> int:
    """What would be done."""
    for name, plan in plans.items():
        if name:
            typer.echo(f"{'variant':10} {name}")
        show_plan(plan, as_json)
    return 0


def show_plan(plan: Any, as_json: bool) -> int:
    from leakscope.core.spec import label

    scene, splits = plan.scene, plan.scene.splits
    shown = {
        "data": f"{scene.short_data_name}: {len(splits.private)} private, {len(splits.heldout)} held out, "
        f"{len(splits.public)} public, {len(scene.first_victims)} victims",
        "model": label(scene.architecture),
        "cuts": plan.cuts,
        "defenses": [label(defense) for defense in plan.defenses],
        "attacks": [label(attack) for attack in plan.attacks],
        "added": [label(attack) for attack in plan.added if attack in plan.attacks],
        "seeds": plan.seeds,
        "targets": len(plan.targets),
        "results": plan.results,
    }
    if as_json:
        print_json(shown)
    else:
        for name, value in shown.items():
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            if name == "added" and text:
                text += " (made against the defences; every target meets them)"
            if name != "added" or text:
                typer.echo(f"{name:10} {text}")
    return 0
