"""The configurations that come with Leakscope."""

from __future__ import annotations

from pathlib import Path

from leakscope.core.errors import UsageError


def shipped() -> dict[str, Path]:
    """Their files by name."""
    folder = Path(__file__).parents[1] / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def configuration_at(path: Path) -> Path:
    """The file itself, or, where there is none, the shipped configuration of that name: `demo`."""
    if path.exists() or path.suffix:
        return path
    found = shipped()
    if str(path) not in found:
        raise UsageError(f"no file {path}, and no configuration of that name ships; those are: {', '.join(found)}")
    return found[str(path)]
