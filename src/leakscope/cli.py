"""The command line: arguments in, exit codes out. Heavy imports happen inside commands."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from leakscope.commands.asked import plan_of, print_json, settings_of, show_plan, show_plans, work_at
from leakscope.commands.reproduce import reproduce
from leakscope.commands.zoo import export, submit
from leakscope.core.errors import UsageError
from leakscope.options import (
    BOARD,
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
    Format,
    Gate,
    GroupName,
    Json,
    Model,
    Out,
    Quiet,
    Resize,
    Retry,
    RunnerName,
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
    epilog="Start with: leakscope audit --data mnist5k --model convnet.  "
    "Exit codes: 0 pass, 1 gate failed, 2 usage, 3 runtime error, 4 inconclusive.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _attacks(names: list[str] | None) -> Any:
    """One suite by name, or a list of attacks."""
    if not names:
        return None
    from leakscope.auditing.suite import SUITES

    return names[0] if len(names) == 1 and names[0] in SUITES else names


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
    workers: Workers = None,
) -> int:
    """Attack a network with a fixed suite, check the attacks, and write a report with a verdict.

    Examples:

      leakscope audit --data mnist5k --model convnet --defense none --defense gaussian:sigma=0.5

      leakscope audit --model mine.py:build --weights mine.safetensors --data folder:photos --cut features.3

      leakscope audit configs/demo.yaml --gate "leak<=0.3 at E1" --evidence E1
    """
    import torch

    from leakscope.pipeline.plan import AuditConfig, make_plans

    if threads is not None:
        torch.set_num_threads(threads)
    given = {
        "data": data, "data_root": data_root, "resize": resize, "model": model, "weights": weights, "cuts": cut,
        "defenses": defense, "attacks": _attacks(attack), "victims": victims, "evidence": evidence, "gate": gate,
        "seeds": seed, "training.epochs": epochs,
    }  # fmt: skip
    configs = AuditConfig.read_all(config, settings_of(given, set_), scale)
    first = next(iter(configs.values()))
    from leakscope.commands.audits import Manner, run_plans, study_of

    study = study_of(first)
    plans = make_plans(configs)
    if dry_run:
        return show_plans(plans, json_)
    from leakscope.auditing.verdict import gravest

    command = shlex.join(["leakscope", *sys.argv[1:]])
    manner = Manner(command, quiet=quiet or json_, silent=json_, workers=workers, threads=threads)
    finished = run_plans(plans, work_at(store, device), out, manner, study, first.results)
    if json_:
        documents = {name: result.document for name, result in finished.items()}
        print_json(documents if len(documents) > 1 else next(iter(documents.values())))
    return gravest([result.exit_code for result in finished.values()])


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
    plan = plan_of(
        config, scale, set_, threads,
        data=data, data_root=data_root, resize=resize, model=model, cuts=cut, defenses=defense, seeds=seed,
        **{"training.epochs": epochs},
    )  # fmt: skip
    if dry_run:
        return show_plan(plan, json_)
    from leakscope.pipeline.execute import realise, target_plan
    from leakscope.terminal import following

    place = work_at(store, device)
    rows = []
    with following(quiet=quiet or json_):
        for cut_, defense_, seed_ in plan.grid:
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
        print_json(rows)
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
    plan = plan_of(
        config, scale, set_, threads,
        data=data, data_root=data_root, resize=resize, model=model, weights=weights, cuts=cut, defenses=defense,
        attacks=_attacks(attack), victims=victims, seeds=seed, **{"training.epochs": epochs},
    )  # fmt: skip
    if dry_run:
        return show_plan(plan, json_)
    from leakscope.pipeline.folder import require_writable, write_reconstructions
    from leakscope.pipeline.single import attack_all
    from leakscope.terminal import following, print_scores

    if out is not None:
        require_writable(out)
    place = work_at(store, device)
    with following(quiet=quiet or json_):
        rows, guesses = attack_all(plan, place)
    if out is not None:
        write_reconstructions(plan.victims, guesses, out)
    if json_:
        print_json(rows)
    else:
        print_scores(rows)
    return 0


@app.command()
def bench(
    grid: Annotated[Path, typer.Argument(help="A YAML grid: data × models × threats × defenses × attacks × seeds.")],
    data_root: DataRoot = None,
    scale: Scale = None,
    set_: Set = None,
    runner: Annotated[RunnerName, option("--runner", help="Where jobs run.", panel=RUN)] = RunnerName.pool,
    workers: Annotated[int | None, option("--workers", help="Jobs at a time.  [one a core or GPU]", panel=RUN)] = None,
    threads: Annotated[int, option("--threads", help="CPU threads of a job.", panel=RUN)] = 1,
    device: Device = "auto",
    ray_address: Annotated[
        str | None, option("--ray-address", help="A Ray cluster: auto, HOST:PORT.  [started here]", panel=RUN)
    ] = None,
    slurm: Annotated[
        list[str] | None, option("--slurm", help="For sbatch: partition=long, account=x; repeat.", panel=RUN)
    ] = None,
    retry: Annotated[Retry, option("--retry", help="Try again what failed before.", panel=RUN)] = Retry.nothing,
    track: Annotated[
        list[str] | None, option("--track", help="Also tell tensorboard or mlflow; repeat.", panel=RUN)
    ] = None,
    store: StorePath = Path("runs/store"),
    json_: Json = False,
    quiet: Quiet = False,
    dry_run: DryRun = False,
) -> int:
    """Run a grid of audits to completion, on this machine or a cluster; the same command goes on where it was.

    Exit codes: 0 all done, 3 jobs failed, 4 stopped by its budget before the end.
    """
    from leakscope.runners.bench import plan_bench
    from leakscope.runners.run import (
        Machine,
        describe_expectation,
        expectation,
        failures,
        run_bench,
        strongest,
        usable_cores,
    )
    from leakscope.store import Store

    kept = Store(store)
    planned = plan_bench(grid, settings_of({"base.data_root": data_root and str(data_root)}, set_), scale, kept)
    if dry_run:
        shown = expectation(planned, kept, workers or max(1, usable_cores() // threads))
        if json_:
            print_json(shown)
        else:
            typer.echo("\n".join(describe_expectation(shown)))
        return 0
    # Asked to end (a shutdown, a batch system): end the workers too, as for Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machine = Machine(runner, device, workers, threads, ray_address, settings_of({}, slurm))
    watchers = []
    if track:
        from leakscope.runners.track import tracker

        watchers = [tracker(kind, kept, planned.name) for kind in track]
    schedule = run_bench(planned, kept, machine, retry=retry is Retry.failed, quiet=quiet or json_, watchers=watchers)
    failed = failures(planned, schedule, kept)
    if json_:
        rows = [{"key": job.key, "state": schedule.states[job.id], **job.row} for job in planned.of("attack")]
        print_json({"grid": planned.key, "counts": schedule.counts, "failures": failed, "results": rows})
    else:
        for line in strongest(planned, schedule, kept):
            typer.echo(line)
        for failure in failed:
            typer.echo(f"failed: {failure['title']}: {failure['error']} (leakscope show {failure['key'][:8]})")
        typer.echo(f"{planned.name}: {schedule.sentence}; store {store}")
    return 3 if failed else 0 if schedule.finished else 4


@app.command()
def status(store: StorePath = Path("runs/store"), json_: Json = False) -> int:
    """Show where every grid of a store stands: done, running, failed and why."""
    from leakscope.runners.live import print_status
    from leakscope.runners.run import store_status
    from leakscope.store import Store

    if not store.is_dir():
        raise UsageError(f"no store at {store}; give it with --store")
    grids = store_status(Store(store))
    if json_:
        print_json(grids)
    else:
        print_status(grids)
    return 0


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `audit --out` wrote.")] = Path("runs/audit"),
    group: Annotated[
        GroupName | None, option("--group", help="A leaderboard of the whole store: what its rows are.", panel=BOARD)
    ] = None,
    metric: Annotated[str, option("--metric", help="What is compared.", panel=BOARD)] = "leak",
    filter_: Annotated[
        list[str] | None, option("--filter", help="data=mnist5k, defense=gaussian* …; repeat.", panel=BOARD)
    ] = None,
    form: Annotated[Format, option("--format", help="How it is written.", panel=BOARD)] = Format.html,
    out: Annotated[
        Path | None,
        option("--out", help="File.  [runs/leaderboard.html; other formats are printed]", panel=BOARD),
    ] = None,
    store: StorePath = Path("runs/store"),
    quiet: Quiet = False,
) -> int:
    """Draw a finished audit's folder again, or, with --group, a leaderboard of everything in the store.

    Examples:

      leakscope report runs/audit

      leakscope report --group defense --filter data=mnist5k --out board.html

      leakscope report --group defense --format tex > table.tex
    """
    if group is not None:
        from leakscope.commands.leaderboard import write_leaderboard

        written = write_leaderboard(store, group.value, metric, filter_ or [], form.value, out)
        if isinstance(written, str):
            sys.stdout.write(written)
        elif not quiet:
            typer.echo(str(written))
        return 0
    if filter_ or out is not None or form is not Format.html or metric != "leak":
        raise UsageError("--filter, --metric, --format and --out belong to a leaderboard; add --group defense")
    from leakscope.report import write

    for path in write(folder):
        if not quiet:
            typer.echo(str(path))
    return 0


@app.command()
def blind(
    folder: Annotated[Path, typer.Argument(help="A folder that `attack --out` wrote.")],
    first: Annotated[str | None, typer.Argument(help="A result's key, or its first digits.")] = None,
    second: Annotated[str | None, typer.Argument(help="Another.")] = None,
    answers: Annotated[Path | None, typer.Option("--answers", help="Count the answers that the page saved.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Which order.")] = 0,
) -> int:
    """Ask people: a page that shows a real photo and two reconstructions in random order, and saves choices.

    Examples:

      leakscope attack configs/faces_toy.yaml --out runs/faces; leakscope blind runs/faces 3f2a 9c41

      leakscope blind runs/faces --answers answers.json
    """
    from leakscope.report.blind import score_blind, write_blind

    if answers is not None:
        found = score_blind(folder / "blind-key.json", answers)
        typer.echo(
            f"{found.first} was chosen over {found.second} in {found.chosen} of {found.answers} "
            f"({found.share:.0%}, 95 % interval {found.low:.0%} to {found.high:.0%})"
        )
        return 0
    if first is None or second is None:
        raise UsageError("name two results to compare by the beginnings of their keys, or give --answers")
    for path in write_blind(folder, first, second, folder, seed=seed):
        typer.echo(str(path))
    return 0


class Kinds(StrEnum):
    """What `list` can list."""

    attacks = "attacks"
    defenses = "defenses"
    datasets = "datasets"
    models = "models"
    metrics = "metrics"
    priors = "priors"
    studies = "studies"


app.command()(reproduce)
app.command()(export)
app.command()(submit)


@app.command("list")
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

    given = settings_of({"data": data, "data_root": data_root, "resize": resize}, None)
    config = AuditConfig.read(None, given)
    architecture = resolve(model)
    pictures = load_data(config, config.data_root)
    with seeds.ambient(0, "cuts"):
        network = instantiate(architecture, pictures.shape, len(pictures.classes))
    found = find_cuts(network, pictures.images[:2], architecture.normalization())
    if json_:
        print_json([vars(cut) for cut in found])
        return 0
    from leakscope.terminal import print_cuts

    print_cuts(found)
    return 0


@app.command()
def show(
    key: Annotated[str, typer.Argument(help="A key, or its first digits.")],
    store: StorePath = Path("runs/store"),
    pictures: Annotated[
        Path | None, option("--pictures", help="Also draw a result's reconstructions here (PNG).", panel=RUN)
    ] = None,
) -> int:
    """Print what the store holds under a key."""
    from leakscope.store import Store

    if not store.is_dir():
        raise UsageError(f"no store at {store}; give it with --store")
    entry = Store(store).find(key)
    if pictures is not None:
        from leakscope.report.strips import write_strip

        write_strip(Store(store), entry.key, pictures)
    print_json({"kind": entry.kind, "key": entry.key, "folder": str(entry.folder), **entry.record})
    return 0


@app.command()
def schema() -> int:
    """Print the JSON Schema of audit configurations."""
    from leakscope.pipeline.plan import AuditConfig

    print_json(AuditConfig.model_json_schema())
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
