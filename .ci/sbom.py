"""Write a bill of materials (CycloneDX 1.5, JSON) of what the wheel needs at run time, beside the wheel.

Usage: python .ci/sbom.py [FOLDER]   (dist by default; the dependencies are those of this environment)
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(name: str) -> dict[str, list[str]]:
    """Packages reached from `name` without extras, each with those it asks for."""
    found: dict[str, list[str]] = {}
    todo = [plain(name)]
    while todo:
        own = todo.pop()
        if own in found:
            continue
        try:
            asked = distribution(own).requires or []
        except PackageNotFoundError:  # for another system or Python
            continue
        names = [plain(re.split(r"[\s;<>=!~\[(]", text, maxsplit=1)[0]) for text in asked if "extra ==" not in text]
        found[own] = sorted({each for each in names if _is_here(each)})
        todo += found[own]
    return found


def _is_here(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def hashes() -> dict[str, list[str]]:
    """From requirements.lock, by `name==version`."""
    found: dict[str, list[str]] = {}
    own = ""
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if "==" in line and not line.startswith(("#", " ")):
            name, version = line.rstrip(" \\").split("==")
            own = f"{plain(name)}=={version}"
            found[own] = []
        elif "--hash=sha256:" in line:
            found[own].append(line.strip(" \\").removeprefix("--hash=sha256:"))
    return found


def component(name: str, known: dict[str, list[str]], kind: str = "library") -> dict[str, Any]:
    meta = distribution(name).metadata
    version = str(meta["Version"])
    made: dict[str, Any] = {
        "type": kind, "bom-ref": f"pkg:pypi/{name}@{version}", "name": name, "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }  # fmt: skip
    licence = meta.get("License-Expression") or ""
    if licence:
        made["licenses"] = [{"expression": licence}]
    files = known.get(f"{name}=={version.partition('+')[0]}", [])
    if files:  # one for each file of the release
        made["hashes"] = [{"alg": "SHA-256", "content": each} for each in files]
    return made


def bill() -> dict[str, Any]:
    packages, known = needed("leakscope"), hashes()
    own = component("leakscope", known, "application")
    others = {name: component(name, known) for name in sorted(packages) if name != "leakscope"}
    refs = {name: made["bom-ref"] for name, made in {**others, "leakscope": own}.items()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(sorted(refs.values())))}",
        "version": 1,
        "metadata": {"component": own},
        "components": list(others.values()),
        "dependencies": [
            {"ref": refs[name], "dependsOn": [refs[each] for each in asked]} for name, asked in sorted(packages.items())
        ],
    }


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    folder.mkdir(parents=True, exist_ok=True)
    found = bill()
    path = folder / f"leakscope-{found['metadata']['component']['version']}.cdx.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(f"{path}: {len(found['components'])} packages\n")


if __name__ == "__main__":
    main()
