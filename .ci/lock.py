"""Write requirements.lock: every version of constraints.txt with the SHA-256 of its files, as an index states them.

Usage: python .ci/lock.py INDEX_URL [WHEEL …]

INDEX_URL is a simple index (`…/simple`); further wheels (such as a CPU build of torch that lies elsewhere) are hashed
from the files given. `constraints.txt` itself has no hashes: with one hash in play pip asks for hashes of everything,
and refuses editable installs, so `make install` would stop working. `make install-locked` uses the lock.
"""

from __future__ import annotations

import hashlib
import re
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = """\
# Made by .ci/lock.py from constraints.txt: what Leakscope is tested with, and the SHA-256 of every file of it for
# CPython 3.11 to 3.13 on Linux and macOS. `make install-locked` installs exactly these.
"""
LINK = re.compile(r'href="[^"#]*/([^"/#]+)#sha256=([0-9a-f]{64})"')
#: File names of wheels for other Pythons and machines.
OTHERS = re.compile(r"win32|win_|cp2|cp3[0-9]-|cp31[0-9]t|cp310-cp310|cp314-|pp3|i686|ppc64|s390|armv|riscv|musllinux")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def hashes(index: str, name: str, version: str) -> dict[str, str]:
    """File names of a version, and their hashes."""
    with urllib.request.urlopen(f"{index.rstrip('/')}/{plain(name)}/", timeout=60) as page:  # noqa: S310 (as given)
        links = LINK.findall(page.read().decode())
    mark = re.compile(rf"^{re.escape(plain(name))}-{re.escape(version.lower())}(-|\.tar|\.zip)")
    own = {file: found for file, found in links if mark.match(plain_file(file))}
    abi3 = {file for file in own if "abi3" in file}
    kept = {file: found for file, found in own.items() if file in abi3 or not OTHERS.search(file)}
    return {file: found for file, found in kept.items() if not re.search(r"win32|win_|musllinux|i686", file)} or own


def plain_file(file: str) -> str:
    """`Some_Name-1.0-….whl` as `some-name-1.0-….whl`."""
    name, _, rest = file.partition("-") if file.endswith(".whl") else re.split(r"(-)(?=\d)", file, maxsplit=1)
    return f"{plain(name)}-{rest}".lower()


def main() -> None:
    index, wheels = sys.argv[1], [Path(text) for text in sys.argv[2:]]
    lines, wanting = [HEAD.rstrip()], []
    for name, version in sorted(pinned().items(), key=lambda item: plain(item[0])):
        found = set(hashes(index, name, version).values())
        found |= {
            hashlib.sha256(wheel.read_bytes()).hexdigest()
            for wheel in wheels
            if plain_file(wheel.name).startswith(f"{plain(name)}-{version}")
        }
        if not found:
            wanting.append(f"{name}=={version}")
        marks = " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{each}" for each in sorted(found))])
        lines.append(marks)
    (ROOT / "requirements.lock").write_text("\n".join(lines) + "\n")
    if wanting:
        sys.exit(f"no files for {', '.join(wanting)}")


if __name__ == "__main__":
    main()
