"""Records are types: what is still read by a constant string outside (de)serialisation is counted, and limited.

Counted are all reads `x["name"]`, `x.get("name")` and `x.pop("name")` in src/leakscope, found in the syntax tree.
Writes are not reads. Left out are the receivers and the modules below, each with its reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "leakscope"
LIMIT = 39

#: What stands before the key, as source text, and why its strings are no fields of a record of ours.
RECEIVERS = {
    r"(.*\.)?_?store(\.root)?$": "the store's kinds of entries: get(kind, key)",
    r"os\.environ$|there$|error\.headers$": "environment, cluster resources and HTTP headers",
    r"(.*\.)?tensors(\(\))?$|learnt$|linear\.tensors$": "tensors by name, the safetensors format",
    r".*param_groups\[0\]$|group$|g$": "PyTorch's optimiser groups",
    r"(.*\.)?(metrics|worst_case)$": "metrics by name",
    r"(.*\.)?(values|scores)$|values_of\(.*\)$|run\.values\(.*\)$|measured(\(.*\))?$|recognition\(.*\)$|own$": (
        "metrics by name, one value per victim"
    ),
    r"(.*\.)?(item|first|error)$": "pydantic's own error records",
    r"field\.metadata$": "metadata of dataclass fields",
    r"node\.kwargs$|vars\(.*\)$|match$|cfgs$|sys\._getframe.*|members$|more$": "Python's and PyTorch's own mappings",
    r"rngs$": "random generators by the name of their stage",
    r"LOSSES$|PERCEPTIONS$|PLACES$": "constant tables in the code",
    r"runs$": "audits by the name of their variant",
    r"(entry|done|trained|answer)\.record(\['history'\]|\['notes'\])?$": "a stored entry's JSON, where it is opened",
    r"record\.identity.*$|spec$|part$|json\.loads\(.*\)$": "a specification as JSON, whose fields differ per method",
    r"(.*\.)?settings$": "settings of a method by name, which differ from method to method",
}
#: Modules (or folders) that turn outside text into types or types into text.
READERS = {
    "data/face_drawing.py": "drawing constants",
    "data/split_index.py": "reads a split file",
    "experiments/config.py": "reads configurations",
    "experiments/grid.py": "reads grids",
    "experiments/execution.py": "reads a job's JSON",
    "experiments/experiment.py": "from_plain, plain",
    "experiments/job.py": "from_json, as_json",
    "experiments/reading.py": "reads stored entries",
    "experiments/training.py": "reads a checkpoint",
    "models/_exported.py": "reads an exported target's JSON",
    "priors/_game.py": "reads a checkpoint",
    "core/spec.py": "reads and writes specifications",
    "core/own_code.py": "reads a specification",
    "report/sarif_log.py": "writes SARIF",
    "report/folder.py": "reads audit.json",
    "runners/bench.py": "reads a stored grid",
    "runners/events.py": "reads the event log",
    "runners/pool.py": "reads a worker's lines",
    "runners/slurm.py": "reads scontrol's answer",
    "store/": "the store's own format",
    "studies/reproductions.py": "reads configurations",
    "testing/": "environment of tests",
    "integrations/": "arguments of other libraries' callbacks",
}


def _read(node: ast.AST) -> tuple[ast.expr, str] | None:
    """The receiver and the key, if this is a read by a constant string."""
    match node:
        case ast.Subscript(value=receiver, slice=ast.Constant(value=str(key)), ctx=ast.Load()):
            return None if ast.unparse(receiver) in {"Literal", "Annotated"} else (receiver, key)
        case ast.Call(func=ast.Attribute(value=receiver, attr="get" | "pop"), args=[ast.Constant(value=str(key)), *_]):
            return receiver, key
    return None


def _annotations(tree: ast.AST) -> set[int]:
    """Nodes inside annotations, where a string in brackets is a type."""
    found = set()
    for node in ast.walk(tree):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(part, ast.AST):
                found |= {id(inner) for inner in ast.walk(part)}
    return found


def reads(text: str, name: str = "example.py") -> Iterator[str]:
    """`file:line receiver[key]` of every read that counts."""
    if any(name == module or (module.endswith("/") and name.startswith(module)) for module in READERS):
        return
    tree = ast.parse(text)
    types = _annotations(tree)
    for node in ast.walk(tree):
        found = None if id(node) in types else _read(node)
        if found is not None:
            receiver = ast.unparse(found[0])
            if not any(re.match(pattern, receiver) for pattern in RECEIVERS):
                yield f"{name}:{getattr(node, 'lineno', 0)} {receiver}[{found[1]!r}]"


def test_few_records_are_read_by_strings() -> None:
    found = [
        read
        for path in sorted(SOURCE.rglob("*.py"))
        for read in reads(path.read_text(encoding="utf-8"), path.relative_to(SOURCE).as_posix())
    ]
    print(f"{len(found)} reads by a constant string")
    assert len(found) <= LIMIT, "make it a type, or say why not:\n" + "\n".join(found)


def test_the_count_sees_what_it_should() -> None:
    text = """
def f(record: dict["str", int], store, tensors):
    record["leak"]; record.get("flags"); record.pop("x", None); a = record["b"]["c"]
    record["written"] = 1; store.get("trained", key); tensors["mean"]; record[name]
"""
    assert len(list(reads(text))) == 5
    assert list(reads(text, "store/entry.py")) == []


def test_every_excuse_is_used() -> None:
    """A module that reads nothing by strings any more leaves the list."""
    for module in READERS:
        paths = list((SOURCE / module).rglob("*.py")) if module.endswith("/") else [SOURCE / module]
        trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
        assert any(_read(node) is not None for tree in trees for node in ast.walk(tree)), module
