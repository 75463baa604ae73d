"""The command line: arguments in, exit codes out. Heavy imports happen inside commands."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from leakscope.commands.beginning import init
from leakscope.commands.bench import bench, status
from leakscope.commands.exchange import export, submit
from leakscope.commands.inspection import cuts, list_, schema, show
from leakscope.commands.reports import blind, report
from leakscope.commands.reproduce import reproduce
from leakscope.commands.settings import plan_of, print_json, settings_of, show_plan, show_plans, work_at
from leakscope.commands.store import store_app
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
    Heldout,
    Json,
    Model,
    Normalized,
    Out,
    Private,
    Public,
    Quiet,
    Resize,
    Scale,
    Seed,
    Set,
    StorePath,
    Threads,
    Victims,
    Weights,
    Workers,
    option,
)

app = typer.Typer(
    name="leakscope",
    help="How much of a person's picture can be rebuilt from what your network gives away.",
    epilog="Start with: leakscope audit demo, or leakscope init.  "
    "Exit codes: 0 pass, 1 gate failed, 2 usage, 3 runtime error, 4 inconclusive.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _attacks(names: list[str] | None) -> Any:
    """One suite by name, or a list of attacks."""
    if not names:
        return None
    from leakscope.auditing.suites import SUITES

    known = {name for own in SUITES.values() for name in own}
    return names[0] if len(names) == 1 and names[0] in known else names


@app.command()
def audit(
    config: Config = None,
    data: Data = None,
    data_root: DataRoot = None,
    resize: Resize = None,
    private: Private = None,
    heldout: Heldout = None,
    public: Public = None,
    model: Model = None,
    weights: Weights = None,
    normalize: Normalized = None,
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
    workers: Workers = None,
) -> int:
    """Attack a network with a fixed suite, check the attacks, and write a report with a verdict.

    Examples:

      leakscope audit --data mnist5k --model convnet --defense none --defense gaussian:sigma=0.5

      leakscope audit --model mine.py:build --weights mine.safetensors --data folder:photos --cut features.3

      leakscope audit demo --gate "leak<=0.3 at E1" --evidence E1
    """
    import torch

    from leakscope.experiments.config import AuditConfig
    from leakscope.experiments.plan import make_plans

    if threads is not None:
        torch.set_num_threads(threads)
    given = {
        "data": data, "data_root": data_root, "resize": resize, "private": private, "heldout": heldout,
        "public": public, "normalize": normalize, "model": model, "weights": weights, "cuts": cut,
        "defenses": defense, "attacks": _attacks(attack), "victims": victims, "evidence": evidence, "gate": gate,
        "seeds": seed, "training.epochs": epochs,
    }  # fmt: skip
    configs = AuditConfig.read_all(config, settings_of(given, set_), scale)
    first = next(iter(configs.values()))
    from leakscope.commands.audits import Manner, run_plans, study_of, told

    study = study_of(first)
    plans = make_plans(configs)
    if dry_run:
        return show_plans(plans, json_)
    command = shlex.join(["leakscope", *sys.argv[1:]])
    manner = Manner(command, quiet=quiet or json_, silent=json_, workers=workers, threads=threads)
    return told(run_plans(plans, work_at(store, device), out, manner, study, first.results), json_)


@app.command()
def train(
    config: Config = None,
    data: Data = None,
    data_root: DataRoot = None,
    resize: Resize = None,
    private: Private = None,
    heldout: Heldout = None,
    public: Public = None,
    model: Model = None,
    weights: Weights = None,
    normalize: Normalized = None,
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
    """Train targets with their defences; an audit with the same settings finds them in the store.

    Examples:

      leakscope train --data mnist5k --model convnet --defense bottleneck+gaussian:sigma=0.1 --save w.safetensors

      leakscope train --model mine.py:build --weights mine.safetensors --defense nopeek --epochs 3 --data folder:photos
    """
    plan = plan_of(
        config, scale, set_, threads,
        data=data, data_root=data_root, resize=resize, private=private, heldout=heldout,
        public=public, normalize=normalize, model=model, weights=weights, cuts=cut,
        defenses=defense, seeds=seed, **{"training.epochs": epochs},
    )  # fmt: skip
    if dry_run:
        return show_plan(plan, json_)
    from leakscope.core.results import to_json
    from leakscope.experiments.stages import train_target
    from leakscope.terminal import following

    place = work_at(store, device)
    with following(quiet=quiet or json_):
        trained = [train_target(plan.scene, spec, place) for spec in plan.targets]
    if save is not None:
        if len(trained) != 1:
            raise UsageError(f"--save writes one target, {len(trained)} were trained; name one cut, defence and seed")
        from leakscope.models.weights import save_weights

        save_weights(trained[0].split.model, save)
    if json_:
        print_json([to_json(target.record) for target in trained])
    else:
        for target in trained:
            record = target.record
            typer.echo(f"{record.key}  {record.name}, seed {record.seed}: accuracy {record.accuracy:.3f}")
    return 0


@app.command()
def attack(
    config: Config = None,
    data: Data = None,
    data_root: DataRoot = None,
    resize: Resize = None,
    private: Private = None,
    heldout: Heldout = None,
    public: Public = None,
    model: Model = None,
    weights: Weights = None,
    normalize: Normalized = None,
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
    plan = plan_of(
        config, scale, set_, threads,
        data=data, data_root=data_root, resize=resize, private=private, heldout=heldout,
        public=public, normalize=normalize, model=model, weights=weights, cuts=cut, defenses=defense,
        attacks=_attacks(attack), victims=victims, seeds=seed, **{"training.epochs": epochs},
    )  # fmt: skip
    if dry_run:
        return show_plan(plan, json_)
    from leakscope.api import run_attacks
    from leakscope.core.results import to_json
    from leakscope.experiments.folder import require_writable, write_reconstructions
    from leakscope.experiments.stages import read_rebuilt
    from leakscope.runners.audit import Labour
    from leakscope.terminal import following, print_scores

    if out is not None:
        require_writable(out)
    place = work_at(store, device)
    with following(quiet=quiet or json_):
        entries = run_attacks(plan, place, Labour())
    if out is not None:
        rebuilt = {e.result.key: read_rebuilt(place.store, e.result.reconstruction).images for e in entries}
        write_reconstructions(plan.scene.first_victims, rebuilt, out)
    if json_:
        print_json([{"target": to_json(e.target), "result": to_json(e.result)} for e in entries])
    else:
        print_scores(entries)
    return 0


for command in (init, bench, status, report, blind, reproduce, export, submit, cuts, show, schema):
    app.command()(command)
app.command("list")(list_)
app.add_typer(store_app, name="store")


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


#: What a shell expects of a command that Ctrl-C ended.
INTERRUPTED = 130


def run(command: Callable[..., Any], arguments: list[str] | None = None) -> int:
    """Exit code of a command line."""
    try:
        code = command(args=arguments, standalone_mode=False)
    except UsageError as error:
        sys.stderr.write(f"leakscope: {' '.join(str(error).split())}\n")
        return 2
    except (KeyboardInterrupt, typer.Abort):  # older typers let the first through, others turn it into the second
        code = INTERRUPTED
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
    if code == INTERRUPTED:  # and the present one into this exit code
        sys.stderr.write("leakscope: interrupted; what is finished is kept: the same command goes on from here\n")
    return code if isinstance(code, int) else 0
