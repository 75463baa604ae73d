"""Slurm and Ray: nobody else's code runs in the coordinator, and nobody else reaches it."""

from __future__ import annotations

import json
import os
import pickle
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from leakscope.core.errors import UsageError

pytest.importorskip("submitit", reason="submitit is not installed (extra: slurm)")

ROOT = Path(__file__).parents[2]


class Trap:
    """Creates a file when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


class Planted:
    """A job whose result somebody else wrote, as submitit names it."""

    job_id = "77_0"

    def __init__(self, folder: Path) -> None:
        from submitit.core.utils import JobPaths

        folder.mkdir()
        self.paths = JobPaths(folder, self.job_id)

    def done(self) -> bool:
        return True

    def stderr(self) -> str:
        return "Traceback …\nRuntimeError: out of something\n"

    def result(self) -> Any:
        return pickle.loads(self.paths.result_pickle.read_bytes())[1]


def waiting(tmp_path: Path) -> tuple[Any, Planted]:
    """A coordinator that waits for one job."""
    from leakscope.runners import slurm

    runner = slurm.Slurm(tmp_path / "store", "cpu", cluster="local", workers=1)
    handle = Planted(tmp_path / "job")
    runner._running[handle] = slurm._Task(["target-k"], 0.0)
    return runner, handle


def test_a_planted_result_is_not_unpickled(tmp_path: Path) -> None:
    runner, handle = waiting(tmp_path)
    mark = tmp_path / "executed"
    handle.paths.result_pickle.write_bytes(pickle.dumps(("success", Trap(mark))))
    (outcome,) = runner.wait(5.0)
    assert not mark.exists()
    assert outcome.job == "target-k"
    assert "left no result: RuntimeError: out of something" in outcome.error


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[1]", b'[{"job": 5}]', b'[{"job": "target-k", "seconds": "x"}]', b"\xff", b"[" * 100_000,
     b'[{"job": "target-k", "unknown": 1}]', b"null", b'[{"error": "x"}]', b'"target-k"'],
)  # fmt: skip
def test_a_damaged_outcome_is_a_failure_of_its_job(tmp_path: Path, content: bytes) -> None:
    runner, handle = waiting(tmp_path)
    (handle.paths.folder / "77_0_outcomes.json").write_bytes(content)
    (outcome,) = runner.wait(5.0)
    assert outcome.job == "target-k"
    assert outcome.error is not None
    assert "\n" not in outcome.error


def test_outcomes_come_as_json(tmp_path: Path) -> None:
    runner, handle = waiting(tmp_path)
    told = [{"job": "target-k", "seconds": 2.5, "memory": 7}, {"job": "of somebody else"}]
    (handle.paths.folder / "77_0_outcomes.json").write_text(json.dumps(told))
    (outcome,) = runner.wait(5.0)
    assert (outcome.job, outcome.error, outcome.seconds, outcome.memory) == ("target-k", None, 2.5, 7)


def test_the_folder_of_a_run_is_private_and_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leakscope.runners.slurm import private_folder

    home, store = tmp_path / "home", tmp_path / "store"
    home.mkdir()
    store.mkdir()
    monkeypatch.setenv("HOME", str(home))
    folders = [private_folder(store) for _ in range(2)]
    assert folders[0] != folders[1]
    assert all(folder.is_relative_to(store) for folder in folders)
    assert all(stat.S_IMODE(folder.stat().st_mode) == 0o700 for folder in folders)
    store.chmod(0o777)  # a shared store: others could exchange the folder in it
    folder = private_folder(store)
    assert folder.is_relative_to(home)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    home.chmod(0o777)
    with pytest.raises(UsageError, match="chmod go-w"):
        private_folder(store)
    store.chmod(0o1777)  # sticky: only owners rename
    assert private_folder(store).is_relative_to(store)


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a\x1b[2Jb", "a%jb", "a\u2028b"])
def test_line_breaks_in_slurm_paths_are_refused(tmp_path: Path, name: str) -> None:
    from leakscope.runners.slurm import Slurm

    with pytest.raises(UsageError, match="Slurm cannot be given") as caught:
        Slurm(tmp_path / name, "cpu", cluster="local")
    assert str(caught.value).isprintable()


def test_line_breaks_in_slurm_options_are_refused(tmp_path: Path) -> None:
    from leakscope.runners.slurm import Slurm

    with pytest.raises(UsageError, match="Slurm cannot be given"):
        Slurm(tmp_path, "cpu", cluster="local", options={"comment": "x\ntouch /tmp/mark"})


def test_the_smallest_ray_can_ask_for_a_token() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (ray,) = extras["ray"]
    assert tuple(map(int, ray.removeprefix("ray>=").split("."))) >= (2, 52)


def listening(words: str) -> dict[str, set[str]]:
    """The addresses that processes with `words` in their environment listen on, by port."""
    sockets = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if words.encode() in (process / "environ").read_bytes():
                sockets |= {str(file.readlink()) for file in (process / "fd").iterdir()}
        except OSError:
            continue
    found: dict[str, set[str]] = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                address, _, port = fields[1].partition(":")
                found.setdefault(address, set()).add(port)
    return found


def test_ray_listens_to_this_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (extra: ray)")
    from leakscope.runners.ray_cluster import Ray

    monkeypatch.setenv("LEAKSCOPE_TEST_MARK", str(tmp_path))
    runner = Ray(tmp_path, "cpu", address=None, workers=1)
    try:
        found = listening(f"LEAKSCOPE_TEST_MARK={tmp_path}")
        assert os.environ.get("RAY_AUTH_MODE") == "token"
    finally:
        runner.close()
    assert sum(map(len, found.values())) >= 2  # its controller and its node at least
    assert found.keys() <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ
