"""Options of a command become settings, plans and a place to work; heavy imports happen inside."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import typer

from leakscope.core.errors import UsageError
from leakscope.core.escaping import json_text, terminal


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


def plan_of(
    config: Path | None, scale: str | None, extra: list[str] | None, threads: int | None, allow_code: bool, **given: Any
) -> Any:
    from leakscope.experiments.config import AuditConfig
    from leakscope.experiments.plan import make_plan

    use_threads(threads)
    return make_plan(AuditConfig.read(config, settings_of(given, extra), scale, allow_code=allow_code))


#: More threads or workers than this for each core is a slip; OpenMP dies of a hundred thousand.
MOST_PER_CORE = 32


def require_count(name: str, count: int | None) -> None:
    """Refuse a number of threads or workers that no machine of this size has use for."""
    most = MOST_PER_CORE * (os.cpu_count() or 1)
    if count is not None and not 1 <= count <= most:
        raise UsageError(f"{name} {count} is not between 1 and {most}; leave it out, or give about one per core")


def use_threads(threads: int | None, workers: int | None = None) -> None:
    """Work on so many cores; None leaves it to PyTorch."""
    require_count("--threads", threads)
    require_count("--workers", workers)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def work_at(store: Path, device: str) -> Any:
    from leakscope.experiments.workplace import Workplace
    from leakscope.runners.devices import chosen
    from leakscope.store import Store

    return Workplace(Store(store), chosen(device))


def say(text: object) -> None:
    """A line for a person on stdout, whatever names of files stand in it."""
    typer.echo(terminal(text))


def print_json(value: object) -> None:
    sys.stdout.write(json_text(value) + "\n")


def show_plans(plans: Any, as_json: bool, store: Path, device: str = "auto") -> int:
    """What would be done, and what it would take."""
    from dataclasses import asdict

    from leakscope.runners.outlook import outlook

    expected = outlook(list(plans.values()), store)
    if as_json:
        shown = {name: _shown(plan, device) for name, plan in plans.items()}
        print_json({**(shown if len(shown) > 1 else next(iter(shown.values()))), "expected": asdict(expected)})
        return 0
    for name, plan in plans.items():
        if name:
            say(f"{'variant':10} {name}")
        show_plan(plan, as_json, device)
    say("\n".join(expected.lines()))
    return 0


def _shown(plan: Any, device: str) -> dict[str, Any]:
    from leakscope.core.spec import label
    from leakscope.experiments.memory_plan import plan_memory
    from leakscope.runners.devices import chosen

    scene, splits = plan.scene, plan.scene.splits
    return {
        "data": f"{scene.short_data_name}: {len(splits.private)} private, {len(splits.heldout)} held out, "
        f"{len(splits.public)} public, {len(scene.first_victims)} victims",
        "model": scene.network_name,
        "cuts": plan.cuts,
        "defenses": [label(defense) for defense in plan.defenses],
        "attacks": [label(attack) for attack in plan.attacks],
        "added": [label(attack) for attack in plan.added if attack in plan.attacks],
        "seeds": plan.seeds,
        "targets": len(plan.targets),
        "results": plan.results,
        "memory": plan_memory(plan, chosen(device)).words(),
    }


def show_plan(plan: Any, as_json: bool, device: str = "auto") -> int:
    shown = _shown(plan, device)
    if as_json:
        print_json(shown)
    else:
        # How much is worked on at once is for machines with little memory; the memory itself is told further below.
        shown["chunks"] = shown.pop("memory")
        for name, value in shown.items():
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            if name == "added" and text:
                text += " (made against the defences; every target meets them)"
            if name != "added" or text:
                say(f"{name:10} {text}")
    return 0
