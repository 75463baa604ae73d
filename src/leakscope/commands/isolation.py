"""`audit --isolate`: the audit in a child process, and nothing believed of it that is not on the disk.

A network is code, and code can end its process with exit code 0. So the parent, which never runs it, answers with
0 only when the child has told, over a pipe of this run's own, that it finished, and the reports it named are there
with the digests it named. It also ends a child whose call into the network never returns.

This keeps a network from passing by accident or by `sys.exit(0)`. Code that means harm runs as you; see SECURITY.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from leakscope.core.calls import VARIABLE as WATCH
from leakscope.core.calls import longest
from leakscope.core.errors import RunFailed, UsageError
from leakscope.core.interpreter import module_command
from leakscope.core.shipped import configuration_at
from leakscope.core.yaml_text import read_yaml

#: The environment variable that tells a child its two ends of pipes: where it reports, and what closes when we die.
CHILD = "LEAKSCOPE_ISOLATED"
#: Seconds between two looks at a child, and those it has to end in once it has reported.
LOOK, GRACE = 0.5, 20.0
#: Bytes of a child's report.
LONGEST = 1 << 20

#: What stands behind `leakscope` in this run.
ARGUMENTS: ContextVar[Sequence[str] | None] = ContextVar("arguments", default=None)
_report_to: int | None = None


def arguments() -> list[str]:
    given = ARGUMENTS.get()
    return list(sys.argv[1:] if given is None else given)


def gated(config: Path | None, gate: str | None, extra: Sequence[str] | None) -> bool:
    """Whether a gate is asked for, on the command line or anywhere in the file."""
    if gate is not None or any(item.partition("=")[0].strip() == "gate" for item in extra or ()):
        return True
    return config is not None and _names_gate(read_yaml(configuration_at(config)))


def _names_gate(tree: Any) -> bool:
    if isinstance(tree, Mapping):
        return tree.get("gate") is not None or any(_names_gate(value) for value in tree.values())
    return isinstance(tree, list) and any(_names_gate(value) for value in tree)


def inside() -> bool:
    """Whether this process is the child."""
    return _report_to is not None


def enter() -> None:
    """In a child: take the pipes, and end when the parent does, however it ends."""
    global _report_to
    ends = os.environ.pop(CHILD, None)
    if ends is None:
        return
    report, lifeline = (int(end) for end in ends.split(","))
    for end in (report, lifeline):
        os.set_inheritable(end, False)
    _report_to = report

    def watch() -> None:
        os.read(lifeline, 1)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def finished(code: int, documents: Sequence[Path]) -> int:
    """In a child: report the exit code, and every audit.json with its digest. Gives the code back."""
    if _report_to is not None:
        told = {str(path.resolve()): _digest(path) for path in documents}
        os.write(_report_to, json.dumps({"code": code, "documents": told}).encode() + b"\n")
    return code


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run_isolated(patience: float, *, dry: bool) -> int:
    """In the parent: run the same command in a child, and answer for it; a dry run leaves no report."""
    if not 0 < patience < float("inf"):
        raise UsageError(f"--patience {patience:g} is no time to wait; give seconds above 0")
    with tempfile.TemporaryDirectory(prefix="leakscope-") as folder:
        child = _Child(Path(folder))
        try:
            with _forwarded(child):
                child.follow(patience)
        finally:
            child.end()
    if child.signalled is not None and child.report is None:
        return 130 if child.signalled == signal.SIGINT else 128 + child.signalled
    return _answer(child, dry)


class _Child:
    """The process that does the work, and what it reports."""

    def __init__(self, watched: Path) -> None:
        self.report: dict[str, Any] | None = None
        self.signalled: int | None = None
        self.ended_late = False
        self._watched, self._text = watched, b""
        self._reading, report = os.pipe()
        os.set_blocking(self._reading, False)  # something that the network forked may hold the other end for ever
        lifeline, self._lifeline = os.pipe()
        environment = {**os.environ, CHILD: f"{report},{lifeline}", WATCH: str(watched)}
        try:
            # A process group of its own: all that it starts can be ended with it.
            self.process = subprocess.Popen(  # noqa: S603 (our own module)
                [*module_command("leakscope"), *arguments()],
                pass_fds=(report, lifeline), env=environment, stdin=subprocess.DEVNULL, process_group=0,
            )  # fmt: skip
        finally:
            os.close(report)
            os.close(lifeline)

    def follow(self, patience: float) -> None:
        """Wait until it ends, or has to be ended."""
        reported = None
        with selectors.DefaultSelector() as selector:
            selector.register(self._reading, selectors.EVENT_READ)
            while self.process.poll() is None:
                if not selector.get_map():
                    time.sleep(LOOK)
                elif selector.select(LOOK) and not self._read():
                    selector.unregister(self._reading)
                if self.report is not None:
                    reported = reported or time.monotonic()
                    if time.monotonic() - reported > GRACE:  # a thread of the network's that never ends
                        self.ended_late = True
                        return
                elif (lasted := longest(self._watched)) > patience:
                    raise RunFailed(
                        f"one call into the network has not returned for {lasted:.0f} s; mend the network, "
                        f"or wait longer with --patience {2 * max(lasted, 1):.0f}"
                    )
        while self._read():
            pass

    def _read(self) -> bool:
        """What the child wrote meanwhile; False at the end."""
        try:
            chunk = os.read(self._reading, 65536)
        except BlockingIOError:
            return False
        self._text += chunk
        if self.report is None and b"\n" in self._text:
            with suppress(ValueError):
                found = json.loads(self._text.partition(b"\n")[0])
                self.report = found if isinstance(found, dict) else None
        return bool(chunk) and len(self._text) <= LONGEST

    def tell(self, number: int) -> None:
        """Pass a signal on; what it means is the child's to decide."""
        self.signalled = number
        self.process.send_signal(number)

    def end(self) -> None:
        """End all that is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._reading)
        os.close(self._lifeline)


@contextmanager
def _forwarded(child: _Child) -> Iterator[None]:
    """Ctrl-C and requests to end reach the child alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, frame: child.tell(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _answer(child: _Child, dry: bool) -> int:
    """The exit code of a child that ended; 0 only with finished reports."""
    code = child.process.returncode
    if child.report is None:
        if code in {2, 3, 130}:
            return code  # it has said why
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise RunFailed(
            f"the audit {how} before its report was finished, so nothing passed; "
            "a network must not end its process: look for exit() in its code, or for a crash of its libraries"
        )
    told = _compared(child.report, dry)
    if told == 0 and code != 0 and not child.ended_late:
        raise RunFailed(f"the audit's process ended with {code} after its report; run it again")
    return told


def _compared(report: Mapping[str, Any], dry: bool) -> int:
    """The exit code of a report whose documents are on the disk as it says."""
    code, documents = report.get("code"), report.get("documents")
    if not isinstance(code, int) or code not in range(5) or not isinstance(documents, dict):
        raise RunFailed("the audit's process reported nonsense; its network may have meddled with it")
    ends = [_end_of(Path(path), digest) for path, digest in documents.items()]
    if not dry and (not ends or (code == 0 and any(ends))):
        raise RunFailed("the audit's process reported a pass that its audit.json does not; nothing passed")
    return code


def _end_of(path: Path, digest: object) -> int:
    """The exit code in an audit.json with this digest."""
    try:
        content = path.read_bytes()
        end = json.loads(content)["exit_code"]
    except (OSError, ValueError, KeyError, TypeError):
        raise RunFailed(f"{path} is not the report that this run wrote; run it again") from None
    if hashlib.sha256(content).hexdigest() != digest or not isinstance(end, int):
        raise RunFailed(f"{path} was changed since this run wrote it; run it again")
    return end
