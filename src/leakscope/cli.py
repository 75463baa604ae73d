"""The command line: arguments in, exit codes out. Heavy imports happen inside commands."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from leakscope.core.errors import UsageError
from leakscope.options import (
    RUN,
    AttackName,
    Config,
    Cut,
    Data,
    DataRoot,
    DefenseName,
    Device,
    DryRun,
    Epochs,
    Evidence,
    Gate,
    Json,
    Model,
    Out,
    Quiet,
    Resize,
    Scale,
    Seed,
    Set,
    StorePath,
    Threads,
    Victims,
    Weights,
    option,
)

app = typer.Typer(
    name="leakscope",
    help="How much of a person's picture can be rebuilt from what your network gives away.",
    epilog="Start with: leakscope audit --data mnist5k --model convnet.  "
    "Exit codes: 0 pass, 1 gate failed, 2 usage, 3 runtime error, 4 inconclusive.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _settings(given: dict[str, Any], extra: list[str] | None) -> dict[str, Any]:
    """Options the user gave, as dotted settings."""
    import yaml

    settings = {key: value for key, value in given.items() if value is not None}
    for item in extra or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--set {item}: write it as --set name=value")
        settings[key] = yaml.safe_load(value)
    return settings


def _attacks(names: list[str] | None) -> Any:
    """One suite by name, or a list of attacks."""
    if not names:
        return None
    from leakscope.auditing.suite import SUITES

    return names[0] if len(names) == 1 and names[0] in SUITES else names


def _plan(config: Path | None, scale: str | None, extra: list[str] | None, threads: int | None, **given: Any) -> Any:
    import torch

    from leakscope.pipeline.plan import AuditConfig, make_plan

    if threads is not None:
        torch.set_num_threads(threads)
    return make_plan(AuditConfig.read(config, _settings(given, extra), scale))


def _place(store: Path, device: str) -> Any:
    from leakscope.api import choose_device
    from leakscope.pipeline.execute import Workplace
    from leakscope.store import Store

    chosen = choose_device(device)
    return Workplace(Store(store), chosen)


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


@app.command()
def audit(
    config: Config = None,
    data: Data = None,
    data_root: DataRoot = None,
    resize: Resize = None,
    model: Model = None,
    weights: Weights = None,
    cut: Cut = None,
    defense: DefenseName = None,
    epochs: Epochs = None,
    attack: AttackName = None,
    victims: Victims = None,
    evidence: Evidence = None,
    gate: Gate = None,
    scale: Scale = None,
    set_: Set = None,
    seed: Seed = None,
    device: Device = "auto",
    store: StorePath = Path("runs/store"),
    out: Out = Path("runs/audit"),
    json_: Json = False,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    threads: Threads = None,
) -> int:
    """Attack a network with a fixed suite, check the attacks, and write a report with a verdict.

    Examples:

      leakscope audit --data mnist5k --model convnet --defense none --defense gaussian:sigma=0.5

      leakscope audit --model mine.py:build --weights mine.safetensors --data folder:photos --cut features.3

      leakscope audit configs/demo.yaml --gate "leak<=0.3 at E1" --evidence E1
    """
    plan = _plan(
        config, scale, set_, threads,
        data=data, data_root=data_root, resize=resize, model=model, weights=weights, cuts=cut, defenses=defense,
        attacks=_attacks(attack), victims=victims, evidence=evidence, gate=gate, seeds=seed,
        **{"training.epochs": epochs},
    )  # fmt: skip
    if dry_run:
        return _show_plan(plan, json_)
    from leakscope.data.split_index import write_index
    from leakscope.pipeline.audit import run_audit
    from leakscope.pipeline.folder import require_writable, write_folder
    from leakscope.terminal import following, print_audit

    require_writable(out)
    place = _place(store, device)
    with following(quiet=quiet or json_):
        result = run_audit(plan, place, command=shlex.join(["leakscope", *sys.argv[1:]]))
    write_folder(result, out)
    if plan.index is not None:
        write_index(plan.index, plan.data, out / "splits.json")
    if json_:
        _print_json(result.document)
    else:
        print_audit(result.document, out)
    return result.exit_code


def _show_plan(plan: Any, as_json: bool) -> int:
    from leakscope.core.spec import label

    shown = {
        "data": f"{plan.data_name}: {len(plan.splits.private)} private, {len(plan.splits.heldout)} held out, "
        f"{len(plan.splits.public)} public, {len(plan.victims)} victims",
        "model": plan.model_name,
        "cuts": plan.cuts,
        "defenses": [label(defense) for defense in plan.defenses],
        "attacks": [label(attack) for attack in plan.attacks],
        "seeds": plan.seeds,
        "targets": len(plan.cuts) * len(plan.defenses) * len(plan.seeds),
        "results": len(plan.cuts) * len(plan.defenses) * len(plan.seeds) * len(plan.attacks),
    }
    if as_json:
        _print_json(shown)
    else:
        for name, value in shown.items():
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            typer.echo(f"{name:10} {text}")
    return 0


@app.command()
def train(
    config: Config = None,
    data: Data = None,
    data_root: DataRoot = None,
    resize: Resize = None,
    model: Model = None,
    cut: Cut = None,
    defense: DefenseName = None,
    epochs: Epochs = None,
    scale: Scale = None,
    set_: Set = None,
    seed: Seed = None,
    device: Device = "auto",
    store: StorePath = Path("runs/store"),
    save: Annotated[Path | None, option("--save", help="Also write the weights here (safetensors).", panel=RUN)] = None,
    json_: Json = False,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    threads: Threads = None,
) -> int:
    """Train targets with their defences; an audit with the same settings finds them in the store."""
    plan = _plan(
        config, scale, set_, threads,
        data=data, data_root=data_root, resize=resize, model=model, cuts=cut, defenses=defense, seeds=seed,
        **{"training.epochs": epochs},
    )  # fmt: skip
    if dry_run:
        return _show_plan(plan, json_)
    from leakscope.pipeline.execute import realise, target_plan
    from leakscope.terminal import following

    place = _place(store, device)
    rows = []
    with following(quiet=quiet or json_):
        for seed_ in plan.seeds:
            for defense_ in plan.defenses:
                for cut_ in plan.cuts:
                    target = realise(plan, target_plan(plan, cut_, defense_, seed_), place)
                    rows.append({"key": target.key, **{k: v for k, v in target.record.items() if k != "plan"}})
    if save is not None:
        if len(rows) != 1:
            raise UsageError(f"--save writes one target, {len(rows)} were trained; name one cut, defence and seed")
        from safetensors.torch import save_file

        save.parent.mkdir(parents=True, exist_ok=True)
        state = {name: tensor.contiguous() for name, tensor in target.split.model.state_dict().items()}
        save_file(state, save)
    if json_:
        _print_json(rows)
    else:
        for row in rows:
            typer.echo(
                f"{row['key']}  {row['model']} ({row['defense']}) at {row['cut']}, seed {row['seed']}: "
                f"accuracy {row['accuracy']:.3f}"
            )
    return 0


@app.command()
def attack(
    config: Config = None,
    data: Data = None,
    data_root: DataRoot = None,
    resize: Resize = None,
    model: Model = None,
    weights: Weights = None,
    cut: Cut = None,
    defense: DefenseName = None,
    epochs: Epochs = None,
    attack: AttackName = None,
    victims: Victims = None,
    scale: Scale = None,
    set_: Set = None,
    seed: Seed = None,
    device: Device = "auto",
    store: StorePath = Path("runs/store"),
    out: Annotated[
        Path | None, option("--out", help="Write reconstructions (safetensors, PNG sheet) here.", panel=RUN)
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    threads: Threads = None,
) -> int:
    """Run attacks and print their scores, without controls or verdict: for looking, not for claims."""
    plan = _plan(
        config, scale, set_, threads,
        data=data, data_root=data_root, resize=resize, model=model, weights=weights, cuts=cut, defenses=defense,
        attacks=_attacks(attack), victims=victims, seeds=seed, **{"training.epochs": epochs},
    )  # fmt: skip
    if dry_run:
        return _show_plan(plan, json_)
    from leakscope.pipeline.folder import require_writable, write_reconstructions
    from leakscope.pipeline.single import attack_all
    from leakscope.terminal import following, print_scores

    if out is not None:
        require_writable(out)
    place = _place(store, device)
    with following(quiet=quiet or json_):
        rows, guesses = attack_all(plan, place)
    if out is not None:
        write_reconstructions(plan.victims, guesses, out)
    if json_:
        _print_json(rows)
    else:
        print_scores(rows)
    return 0


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `audit --out` wrote.")] = Path("runs/audit"),
    quiet: Quiet = False,
) -> int:
    """Draw report.html, summary.md, junit.xml and results.sarif again from a finished audit."""
    from leakscope.report import write

    for path in write(folder):
        if not quiet:
            typer.echo(str(path))
    return 0


class Kinds(StrEnum):
    """What `list` can list."""

    attacks = "attacks"
    defenses = "defenses"
    datasets = "datasets"
    models = "models"
    metrics = "metrics"


@app.command("list")
def list_(
    kind: Annotated[Kinds | None, typer.Argument(help="Only this kind.")] = None,
    json_: Json = False,
) -> int:
    """Show every attack, defence, data set, model and metric by name."""
    from leakscope.core.attack import ATTACKS
    from leakscope.core.data import DATASETS
    from leakscope.core.defense import DEFENSES
    from leakscope.core.metric import METRICS
    from leakscope.models.architecture import MODELS

    kinds: dict[str, Any] = {
        "attacks": ATTACKS, "defenses": DEFENSES, "datasets": DATASETS, "models": MODELS, "metrics": METRICS,
    }  # fmt: skip
    chosen = {name: table for name, table in kinds.items() if kind is None or name == kind}
    if json_:
        _print_json({name: list(table) for name, table in chosen.items()})
        return 0
    from leakscope.terminal import print_methods

    print_methods(chosen)
    return 0


@app.command()
def cuts(
    model: Annotated[str, typer.Argument(help="A network, as for --model.")],
    data: Data = None,
    data_root: DataRoot = None,
    resize: Resize = None,
    json_: Json = False,
) -> int:
    """List every layer where a network can be cut, with its feature shape and the client's share of compute."""
    from leakscope.core import seeds
    from leakscope.core.model import cuts as find_cuts
    from leakscope.models.resolve import instantiate, resolve
    from leakscope.pipeline.plan import AuditConfig, load_data

    given = _settings({"data": data, "data_root": data_root, "resize": resize}, None)
    config = AuditConfig.read(None, given)
    architecture = resolve(model)
    pictures = load_data(config, config.data_root)
    with seeds.ambient(0, "cuts"):
        network = instantiate(architecture, pictures.shape, len(pictures.classes))
    found = find_cuts(network, pictures.images[:2], architecture.normalization())
    if json_:
        _print_json([vars(cut) for cut in found])
        return 0
    from leakscope.terminal import print_cuts

    print_cuts(found)
    return 0


@app.command()
def show(
    key: Annotated[str, typer.Argument(help="A key, or its first digits.")],
    store: StorePath = Path("runs/store"),
) -> int:
    """Print what the store holds under a key."""
    from leakscope.store import Store

    if not store.is_dir():
        raise UsageError(f"no store at {store}; give it with --store")
    entry = Store(store).find(key)
    _print_json({"kind": entry.kind, "key": entry.key, "folder": str(entry.folder), **entry.record})
    return 0


@app.command()
def schema() -> int:
    """Print the JSON Schema of audit configurations."""
    from leakscope.pipeline.plan import AuditConfig

    _print_json(AuditConfig.model_json_schema())
    return 0


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"leakscope {version('leakscope')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every error a user can cause ends in one line and exit code 2."""
    sys.exit(run(app, arguments))


def run(command: Callable[..., Any], arguments: list[str] | None = None) -> int:
    """Exit code of a command line."""
    try:
        code = command(args=arguments, standalone_mode=False)
    except UsageError as error:
        sys.stderr.write(f"leakscope: {' '.join(str(error).split())}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("leakscope: interrupted; the same command goes on from here\n")
        return 130
    except OSError as error:
        if error.errno is None:
            raise
        where = f" ({error.filename})" if error.filename else ""
        sys.stderr.write(f"leakscope: {error.strerror}{where}; free space or choose another --store or --out\n")
        return 3
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's own usage errors
            sys.stderr.write(f"leakscope: {error.format_message()}; see leakscope --help\n")
            return 2
        import traceback

        traceback.print_exc()
        return 3
    return code if isinstance(code, int) else 0
