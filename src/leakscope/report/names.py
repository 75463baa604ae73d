"""Short names of attacks: a page speaks of `kedmi`, and tells its settings once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: A label up to this long is shown as it is.
SHORT = 40


def short_names(audit: Mapping[str, Any]) -> dict[str, str]:
    """Long labels → the name of the attack, where no other attack of the audit has it."""
    labels = list(dict.fromkeys(result["attack"] for result in audit["results"]))
    kinds = [label.partition(":")[0] for label in labels]
    return {
        label: kind for label, kind in zip(labels, kinds, strict=True) if len(label) > SHORT and kinds.count(kind) == 1
    }


def readable(audit: Mapping[str, Any]) -> dict[str, Any]:
    """The audit with short names; what a reader may run again stays as it was written."""
    kept = {name: audit[name] for name in ("command", "config") if name in audit}
    return {**renamed(audit, short_names(audit)), **kept}


def renamed(tree: Any, names: Mapping[str, str]) -> Any:
    """A JSON tree with these names replaced wherever they stand, in keys and inside sentences too."""
    if isinstance(tree, str):
        for full, short in names.items():
            tree = tree.replace(full, short)
        return tree
    if isinstance(tree, Mapping):
        return {renamed(key, names): renamed(value, names) for key, value in tree.items()}
    return [renamed(item, names) for item in tree] if isinstance(tree, list) else tree
