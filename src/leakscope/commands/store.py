"""`leakscope store`: sizes, deletion, damage, location and packs of entries."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from leakscope.commands.settings import print_json, say
from leakscope.core.errors import UsageError
from leakscope.options import RUN, DryRun, Json, StorePath, option

store_app = typer.Typer(help="Look after the store: size, prune, verify, move, pack, unpack.", no_args_is_help=True)


def _opened(path: Path) -> Any:
    from leakscope.store import Store

    return Store.existing(path)


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


@store_app.command()
def size(store: StorePath = Path("runs/store"), json_: Json = False) -> int:
    """Show what each kind of entry takes."""
    from leakscope.store.care import rooms

    found = rooms(_opened(store))
    if json_:
        print_json([asdict(room) for room in found])
        return 0
    for room in found:
        say(f"{room.kind:12} {room.entries:>7} entries {_size(room.bytes):>14}")
    say(f"{'all':12} {sum(r.entries for r in found):>7} entries {_size(sum(r.bytes for r in found)):>14}")
    return 0


@store_app.command()
def prune(
    kind: Annotated[list[str] | None, option("--kind", help="Only this kind; repeat. See `size`.", panel=RUN)] = None,
    older: Annotated[float | None, option("--older", help="Only entries older than so many days.", panel=RUN)] = None,
    store: StorePath = Path("runs/store"),
    dry_run: DryRun = False,
) -> int:
    """Throw entries away, by kind or age; whatever needs one later computes it again.

    Example:

      leakscope store prune --kind prepared --kind attack --older 30
    """
    from leakscope.store import care

    if not kind and older is None:
        raise UsageError("say what may go: --kind prepared, --older 30, or both")
    place = _opened(store)
    chosen, checkpoints = care.prunable(place, kind or (), older), care.abandoned(place, kind or (), older)
    count = len(chosen) + len(checkpoints)
    if dry_run:
        say(f"{count} entries would go")
        return 0
    say(f"{count} entries gone, {_size(care.prune(place, chosen, checkpoints))} free")
    return 0


@store_app.command()
def verify(store: StorePath = Path("runs/store")) -> int:
    """Compare every file with its hash, and change nothing; exit code 3 if one is damaged."""
    from leakscope.store import verify as look

    found = list(look(_opened(store)))
    for problem in found:
        say(problem)
    say(f"{len(found)} damaged" if found else "all entries are as they were written")
    return 3 if found else 0


@store_app.command()
def move(
    to: Annotated[Path, typer.Argument(help="The new folder.")],
    store: StorePath = Path("runs/store"),
) -> int:
    """Move the store to another folder, when no run uses it."""
    from leakscope.store.care import move as take

    take(_opened(store), to)
    say(f"the store is at {to} now; give --store {to}, or set LEAKSCOPE_STORE")
    return 0


@store_app.command()
def pack(
    file: Annotated[Path, typer.Argument(help="The file to write, such as trial.pack.")],
    store: StorePath = Path("runs/store"),
) -> int:
    """Write what verdicts, pages and leaderboards read to one small file: no weights, and no pictures.

    The same command as before makes the same report from an unpacked store, and runs only what is missing.

    Example:

      leakscope store pack trial.pack --store runs/store
    """
    from leakscope.studies.packed import pack as write

    written = write(_opened(store), file)
    results, targets, kilo = written.kinds["result"], written.kinds.get("target", 0), written.bytes / 1000
    took = f"{kilo:,.1f} kB, {kilo / results:.1f} kB a result"
    say(f"{file}: {results} results on {targets} targets, {sum(written.kinds.values())} entries ({took})")
    if written.left_out:
        say(f"{len(written.left_out)} entries are none that reports read, and were left out: {written.left_out[0]}")
    return 0


@store_app.command()
def unpack(
    file: Annotated[Path, typer.Argument(help="A file that `store pack` wrote.")],
    store: StorePath = Path("runs/store"),
) -> int:
    """Add what a pack holds to a store; what the store has already stays as it is.

    A pack is its author's word: nothing of it is run, but figures can be made up. Keep it out of the store of a gate.

    Example:

      leakscope store unpack trial.pack --store runs/trial
    """
    from leakscope.studies.packed import unpack as take

    taken = take(file, store)
    say(f"{taken.added} entries added to {store}, {taken.there} were there")
    if taken.differing:
        say(f"{len(taken.differing)} are other than those of {store}, which keeps its own: {taken.differing[0]}")
    return 0
