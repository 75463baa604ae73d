"""`leakscope selftest`: whether this machine's device computes what it should."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from leakscope.commands.settings import print_json, say
from leakscope.options import Device, Json, Quiet

if TYPE_CHECKING:
    from leakscope.experiments.selftest import SelfTest


def selftest(device: Device = "auto", json_: Json = False, quiet: Quiet = False) -> int:
    """Run every attack and defence in small on a device, and compare scores with those of a CPU.

    Takes about a minute. The report is for sending in: we have no GPU of our own. Exit code 1 when a score differs.

    Example:

      leakscope selftest --device cuda > selftest.md
    """
    from leakscope.experiments.selftest import selftest as run
    from leakscope.runners.devices import chosen
    from leakscope.terminal import following

    with following(quiet=quiet or json_):
        found = run(chosen(device))
    if json_:
        print_json(asdict(found) | {"passed": found.passed})
    else:
        say(report(found))
    return 0 if found.passed else 1


def report(found: SelfTest) -> str:
    """Markdown, for a message or an issue."""
    agreeing = sum(check.agrees for check in found.checks)
    lines = [f"# leakscope selftest on {found.device}", ""]
    lines += [f"- {name}: {value}" for name, value in found.facts.items()]
    lines += ["", f"{agreeing} of {len(found.checks)} scores agree with the CPU's.", ""]
    lines += ["| method | here | CPU | allowed | seconds | |", "|---|---|---|---|---|---|"]
    for check in sorted(found.checks, key=lambda check: check.agrees):
        here = "did not run" if check.found is None else f"{check.found:.4f}"
        note = check.problem or ("" if check.agrees else "DIFFERS")
        wanted = f"{check.reference.mean:.4f} | ±{check.reference.allowed:.4f}"
        lines.append(f"| {check.name} | {here} | {wanted} | {check.seconds:.1f} | {note} |")
    return "\n".join(lines)
