"""The command line: arguments in, exit codes out. Heavy imports happen inside commands."""

from __future__ import annotations

import errno
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from leakscope.commands import isolation
from leakscope.commands.bench import bench, status
from leakscope.commands.exchange import export, submit
from leakscope.commands.init import init
from leakscope.commands.inspection import cuts, list_, schema, show
from leakscope.commands.reports import blind, report
from leakscope.commands.reproduce import reproduce
from leakscope.commands.selftest import selftest
from leakscope.commands.settings import (
    plan_of,
    print_json,
    say,
    settings_of,
    show_plan,
    show_plans,
    use_threads,
    work_at,
)
from leakscope.commands.store import store_app
from leakscope.core.errors import OneLine, UsageError, ended_by, one_line, said_by
from leakscope.core.interrupts import interruptible
from leakscope.core.memory import is_shortage
from leakscope.core.waiting import spin_briefly
from leakscope.options import (
    RUN,
    AllowCode,
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
    Isolate,
    Json,
    Model,
    Normalized,
    Out,
    Patience,
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
    allow_code: AllowCode = False,
    seed: Seed = None,
    device: Device = "auto",
    store: StorePath = Path("runs/store"),
    out: Out = Path("runs/audit"),
    json_: Json = False,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    threads: Threads = None,
    workers: Workers = None,
    isolate: Isolate = None,
    patience: Patience = 600.0,
) -> int:
    """Attack a network with a fixed suite, check the attacks, and write a report with a verdict.

    Examples:

      leakscope audit --data mnist5k --model convnet --defense none --defense gaussian:sigma=0.5

      leakscope audit --model mine.py:build --weights mine.safetensors --data folder:photos --cut features.3

      leakscope audit demo --gate "leak<=0.3 at E1" --evidence E1
    """
    if isolate is None:
        isolate = not dry_run and isolation.gated(config, gate, set_)
    if isolate and not isolation.inside():
        return isolation.run_isolated(patience, dry=dry_run)
    use_threads(threads, workers)
    from leakscope.experiments.config import AuditConfig
    from leakscope.experiments.plan import make_plans

    given = {
        "data": data, "data_root": data_root, "resize": resize, "private": private, "heldout": heldout,
        "public": public, "normalize": normalize, "model": model, "weights": weights, "cuts": cut,
        "defenses": defense, "attacks": _attacks(attack), "victims": victims, "evidence": evidence, "gate": gate,
        "seeds": seed, "training.epochs": epochs,
    }  # fmt: skip
    configs = AuditConfig.read_all(config, settings_of(given, set_), scale, allow_code=allow_code)
    first = next(iter(configs.values()))
    from leakscope.commands.audits import Manner, run_plans, study_of, told

    study = study_of(first)
    plans = make_plans(configs)
    if dry_run:
        return isolation.finished(show_plans(plans, json_, store, device), ())
    command = shlex.join(["leakscope", *isolation.arguments()])
    manner = Manner(command, quiet=quiet or json_, silent=json_, workers=workers, threads=threads)
    audits = run_plans(plans, work_at(store, device), out, manner, study, first.results)
    return isolation.finished(told(audits, json_), [out / name / "audit.json" for name in audits])


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
    allow_code: AllowCode = False,
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
        config, scale, set_, threads, allow_code,
        data=data, data_root=data_root, resize=resize, private=private, heldout=heldout,
        public=public, normalize=normalize, model=model, weights=weights, cuts=cut,
        defenses=defense, seeds=seed, **{"training.epochs": epochs},
    )  # fmt: skip
    if dry_run:
        return show_plan(plan, json_, device)
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
            say(f"{record.key}  {record.name}, seed {record.seed}: accuracy {record.accuracy:.3f}")
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
    allow_code: AllowCode = False,
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
        config, scale, set_, threads, allow_code,
        data=data, data_root=data_root, resize=resize, private=private, heldout=heldout,
        public=public, normalize=normalize, model=model, weights=weights, cuts=cut, defenses=defense,
        attacks=_attacks(attack), victims=victims, seeds=seed, **{"training.epochs": epochs},
    )  # fmt: skip
    if dry_run:
        return show_plan(plan, json_, device)
    from leakscope.api import rebuilt_by, run_attacks
    from leakscope.core.results import to_json
    from leakscope.experiments.folder import require_writable, write_reconstructions
    from leakscope.runners.audit import Labour
    from leakscope.terminal import following, print_scores

    if out is not None:
        require_writable(out)
    place = work_at(store, device)
    with following(quiet=quiet or json_):
        entries = run_attacks(plan, place, Labour())
        rebuilt = {} if out is None else rebuilt_by(plan, place)
    if out is not None:
        write_reconstructions(plan.scene.first_victims, rebuilt, out)
    if json_:
        print_json([{"target": to_json(e.target), "result": to_json(e.result)} for e in entries])
    else:
        print_scores(entries)
    return 0


for command in (init, bench, status, report, blind, reproduce, export, submit, cuts, show, schema, selftest):
    app.command()(command)
app.command("list")(list_)
app.add_typer(store_app, name="store")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(f"leakscope {version('leakscope')}")
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
    spin_briefly()
    sys.exit(run(app, arguments))


#: Errors that lie in the path that was given, not in the disk.
_NO_PATH = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR}
#: The disk is read-only, or somebody else's.
_NOT_OURS = {errno.EROFS, errno.EACCES, errno.EPERM}
#: Letters of an error.
LONGEST = 2000
#: What a shell expects of a command that Ctrl-C ended.
INTERRUPTED = 130


def run(command: Callable[..., Any], arguments: list[str] | None = None) -> int:
    """Exit code of a command line; nothing that runs inside decides it by ending the process."""
    isolation.enter()
    given = isolation.ARGUMENTS.set(arguments)
    try:
        with interruptible():
            code = command(args=arguments, standalone_mode=False)
    except OneLine as error:
        _tell(str(error))
        return 2 if isinstance(error, UsageError) else 3
    except (KeyboardInterrupt, typer.Abort):  # older typers let the first through, others turn it into the second
        code = INTERRUPTED
    except BrokenPipeError:  # who read our output has left; Python would complain again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 3
    except OSError as error:
        if error.errno is None:
            raise
        where = f" ({str(error.filename)[:200]})" if error.filename else ""
        if error.errno in _NO_PATH:
            _tell(f"{error.strerror}{where}; check the path")
            return 2
        if error.errno in _NOT_OURS:
            _tell(f"cannot write to the store or folder{where}: {error.strerror}; choose another --store or --out")
            return 2
        _tell(f"{error.strerror}{where}; free space or choose another --store or --out")
        return 3
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):  # what rich makes of it while a help page is printed
            _tell(str(ended_by(error)))
        return 3
    except BaseException as error:  # code of a user's may raise anything
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's own usage errors
            told = error.format_message()
            if told:  # nothing: no command was given, and the help was printed
                _tell(f"{told}; see leakscope --help")
            return 2
        if is_shortage(error):
            _tell(f"not enough memory ({error}); use fewer or smaller pictures, a smaller network, or fewer --workers")
            return 3
        return _failed(error)
    finally:
        isolation.ARGUMENTS.reset(given)
    if code == INTERRUPTED:  # and the present one into this exit code
        _tell("interrupted; what is finished is kept: the same command goes on from here")
    return code if isinstance(code, int) else 0


def _failed(error: BaseException) -> int:
    """What nobody foresaw: one line where it happened in a file of the user's, and a traceback where it is ours."""
    from leakscope.core.own_code import blamed

    where = blamed(error)
    if where is not None:
        _tell(f"{where} raised {type(error).__name__}: {said_by(error)[:500] or 'no reason given'}; mend the file")
        return 3
    import traceback

    traceback.print_exc()
    return 3


def _tell(message: str) -> None:
    """One line on stderr that can be read, whatever stands in it: of a very long one, its beginning and its remedy."""
    line = one_line(" ".join(message.split()))
    sys.stderr.write(f"leakscope: {line if len(line) <= LONGEST else f'{line[:-400][:1500]} … {line[-400:]}'}\n")
