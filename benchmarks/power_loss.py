"""What a power cut leaves of a store: writes that were not synced are dropped, cut short or filled with zeros.

`sync_log` makes Python processes note every `fsync`; `lose_power` then spoils what the log does not vouch for.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Put as `sitecustomize.py` on the path of a process: it notes which state of which file is on the disk.
RECORDER = """
import json, os, time
_fsync, _log = os.fsync, os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def fsync(handle):
    number = handle if isinstance(handle, int) else handle.fileno()
    state, began = os.fstat(number), time.time_ns()
    _fsync(handle)
    line = json.dumps([state.st_ino, state.st_size, state.st_mtime_ns, began]) + "\\n"
    os.write(_log, line.encode())
os.fsync = fsync
"""


def sync_log(folder: Path) -> tuple[Path, dict[str, str]]:
    """A log of syncs, and the environment in which Python processes keep it."""
    folder.mkdir(parents=True)
    log = folder / "synced"
    (folder / "sitecustomize.py").write_text(RECORDER.format(log=str(log)))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return log, {"PYTHONPATH": path}


@contextmanager
def noted_here(log: Path) -> Iterator[None]:
    """Syncs of this process are noted too."""
    usual = os.fsync
    exec(RECORDER.format(log=str(log)), {})
    try:
        yield
    finally:
        os.fsync = usual


def _synced(log: Path) -> tuple[set[tuple[int, int, int]], dict[int, int]]:
    """States of files that are on the disk, and when each folder was last synced."""
    files, folders = set(), {}
    for line in log.read_text().splitlines() if log.exists() else []:
        try:
            number, size, changed, began = json.loads(line)
        except ValueError:  # its writer was killed
            continue
        files.add((number, size, changed))
        folders[number] = max(began, folders.get(number, 0))
    return files, folders


def lose_power(root: Path, log: Path, chance: random.Random) -> dict[str, int]:
    """Spoil what was not synced below `root`, when all its writers are dead; gives how much."""
    files, folders = _synced(log)
    lost = {"names": 0, "files": 0}
    for folder, names, inside in os.walk(root, topdown=False):
        vouched = folders.get(Path(folder).stat().st_ino, 0)
        for name in [*names, *inside]:
            path = Path(folder, name)
            state = path.lstat()
            if state.st_ctime_ns > vouched and name != "locks" and chance.random() < 0.5:
                # Its name was written after the folder was last synced.
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                lost["names"] += 1
            elif path.is_file() and state.st_size and (state.st_ino, state.st_size, state.st_mtime_ns) not in files:
                _spoil(path, state.st_size, chance)
                lost["files"] += 1
    return lost


def _spoil(path: Path, size: int, chance: random.Random) -> None:
    kept = chance.randrange(size)
    how = chance.choice(["cut", "zeros", "empty"])
    with path.open("r+b") as file:
        file.truncate(0 if how == "empty" else kept)
        if how == "zeros":
            file.truncate(size)
