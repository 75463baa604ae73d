"""What Leakscope is made of can be checked: hashes for every pinned version, and a bill of materials."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_pinned_version_has_hashes() -> None:
    """Made anew by `.ci/lock.py` when constraints change."""
    lock, sbom = script("lock"), script("sbom")
    wanted = {f"{lock.plain(name)}=={version}" for name, version in lock.pinned().items()}
    found = sbom.hashes()
    assert set(found) == wanted
    for name, files in found.items():
        assert files, name
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in files), name
    assert "://" not in (ROOT / "requirements.lock").read_text()


def test_file_names_are_told_apart() -> None:
    lock = script("lock")
    assert lock.plain_file("Some_Name-1.0-py3-none-any.whl") == "some-name-1.0-py3-none-any.whl"
    assert lock.plain_file("some.name-1.0.tar.gz") == "some-name-1.0.tar.gz"
    assert lock.OTHERS.search("x-1.0-cp310-cp310-manylinux_2_28_x86_64.whl")
    assert not lock.OTHERS.search("x-1.0-cp311-cp311-manylinux_2_28_x86_64.whl")


def test_the_bill_of_materials_names_what_the_wheel_needs() -> None:
    bill = script("sbom").bill()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    refs = {part["bom-ref"] for part in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    names = {part["name"] for part in bill["components"]}
    assert {"torch", "numpy", "pydantic", "pillow", "safetensors"} <= names
    assert not names & {"pytest", "hypothesis", "ray", "leakscope"}
    assert len(refs) == len(bill["components"]) + 1
    for dependency in bill["dependencies"]:
        assert {dependency["ref"], *dependency["dependsOn"]} <= refs
    own = next(item for item in bill["dependencies"] if item["ref"].startswith("pkg:pypi/leakscope@"))
    assert any(ref.startswith("pkg:pypi/torch@") for ref in own["dependsOn"])


def test_the_readme_leads_to_the_threat_model() -> None:
    assert "](SECURITY.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
