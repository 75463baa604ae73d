"""Writes one page for each method from its documentation and its fields: `make methods`."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from leakscope.core.attack import ATTACKS, Attack
from leakscope.core.data import DATASETS
from leakscope.core.defense import DEFENSES, Defense
from leakscope.core.metric import METRICS, Scored
from leakscope.core.prior import PRIORS
from leakscope.core.spec import Kind, describe, label
from leakscope.models.architecture import MODELS

DOCS = Path(__file__).parent
#: Folder of the pages, how the kind is called, the registry, how a method is asked for.
KINDS: tuple[tuple[str, str, Kind[Any], str | None], ...] = (
    ("attacks", "attack", ATTACKS, "leakscope audit --attack {}"),
    ("defenses", "defence", DEFENSES, "leakscope audit --defense {}"),
    ("metrics", "metric", METRICS, "leakscope audit --set metrics='[leak, {}]'"),
    ("models", "model", MODELS, "leakscope audit --model {}"),
    ("data", "data set", DATASETS, "leakscope audit --data {}"),
    ("priors", "prior", PRIORS, None),
)


def pages() -> dict[Path, str]:
    """Every page of this package's methods, and the list of them."""
    found: dict[Path, str] = {}
    listed = ["# Methods", "", "Generated from the code by `make methods`."]
    for folder, noun, kind, command in KINDS:
        names = [name for name in kind if kind[name].__module__.startswith("leakscope.")]
        if not names:
            continue
        listed += ["", f"## {noun[0].upper()}{noun[1:]}s", ""]
        for name in names:
            found[DOCS / folder / f"{name}.md"] = page(name, noun, kind[name], command)
            listed.append(f"- [`{name}`]({folder}/{name}.md): {sentence(kind[name])}")
    found[DOCS / "methods.md"] = "\n".join(listed) + "\n"
    return found


def sentence(cls: type) -> str:
    """The first paragraph of the documentation, on one line."""
    return " ".join(inspect.getdoc(cls).split("\n\n")[0].split())  # type: ignore[union-attr]


def page(name: str, noun: str, cls: type, command: str | None) -> str:
    """Documentation, traits, settings and source of one method."""
    text = re.sub(r"^(Differs from the papers?:)", r"**\1**", inspect.getdoc(cls) or "", flags=re.MULTILINE)
    source = Path(inspect.getfile(cls)).relative_to(DOCS.parent)
    parts = [f"# `{name}`", f"A {noun} of Leakscope." if noun[0] not in "aeiou" else f"An {noun} of Leakscope.", text]
    if command is not None:
        wanted = [f.name.upper() for f in dataclasses.fields(cls) if f.init and _default(f) is dataclasses.MISSING]
        parts.append(f"```\n{command.format(':'.join([name, *wanted[:1]]))}\n```")
    parts += ["\n".join(f"- {trait}" for trait in traits(cls)), settings(cls)]
    parts.append(f"Source: [`{source.as_posix()}`](../../{source.as_posix()}).")
    return "\n\n".join(part for part in parts if part) + "\n"


def traits(cls: type) -> list[str]:
    """What the audit knows about a method without running it."""
    told = []
    if issubclass(cls, Attack):
        needs = ", ".join(sorted(cls.needs))
        told.append(f"Must be handed: {needs}.")
        pictures = "Rebuilds the pictures whose features it sees."
        told.append("Rebuilds classes." if cls.goal == "identities" else pictures)
        if cls.white_box:
            told.append("Differentiates through the encoder.")
        if cls.averages_noise:
            told.append("Takes a random release into account.")
    if issubclass(cls, Defense):
        if cls.adaptive:
            told.append(f"Attacks made against it, which an audit adds: {', '.join(f'`{a}`' for a in cls.adaptive)}.")
        if cls.owns_backward:
            told.append("Replaces the gradient step, so a stack may hold one such defence.")
    if issubclass(cls, Scored):
        told.append(f"More was given away where it is {cls.more_leak}.")
        if cls.of_set:
            told.append("One number for all pictures together.")
    return told


def settings(cls: type) -> str:
    """The fields with their defaults, and what a comment in the source says about them."""
    rows, nested = [], []
    for field in dataclasses.fields(cls):
        if not field.init or not field.metadata.get("shown", True):
            continue
        value = _default(field)
        if hasattr(value, "kind_name"):
            shown = f"`{label(value)}`"  # a method, with a page of its own
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            nested.append((field.name, type(value)))
            shown = "see below"
        else:
            shown = "required" if value is dataclasses.MISSING else f"`{_written(value)}`"
        rows.append(
            f"| `{field.name}` | {_cell(_type(cls, field.name))} | {_cell(shown)} | {_comment(cls, field.name)} |"
        )
    if not rows:
        return "## Settings\n\nIt has none."
    blocks = ["## Settings", "\n".join(["| field | type | default | |", "|---|---|---|---|", *rows])]
    for name, inner in nested:
        table = settings(inner).partition("\n\n")[2]
        blocks += [f"### `{name}`", f"{sentence(inner)}", table]
    return "\n\n".join(blocks)


def _default(field: dataclasses.Field[Any]) -> Any:
    """The default of a field, or MISSING."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _written(value: object) -> str:
    """A value as a configuration has it."""
    return str(yaml.safe_dump(describe(value), default_flow_style=True, width=200)).removesuffix("...\n").strip()


def _type(cls: type, name: str) -> str:
    """The type of a field; for a choice of words, the words."""
    hint = get_type_hints(cls)[name]
    if get_origin(hint) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(hint))
    shown = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return f"`{shown.replace('pathlib.', '').replace('typing.', '')}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _comment(cls: type, field: str) -> str:
    """The comment behind a field or above it, in the class that declares it."""
    for owner in cls.__mro__:
        if field in inspect.get_annotations(owner):
            source = inspect.getsource(owner)
            behind = re.search(rf"^    {field}: [^#\n]*#:? *(.+)$", source, re.MULTILINE)
            above = re.search(rf"((?:^    #:? .*\n)+)^    {field}: ", source, re.MULTILINE)
            told = behind[1] if behind else re.sub(r"\s*#:? ", " ", above[1]).strip() if above else ""
            return _cell(told)
    return ""


def write() -> None:
    """Bring all pages up to date, and remove those of methods that are gone."""
    current = pages()
    for folder, *_ in KINDS:
        for path in (DOCS / folder).glob("*.md"):
            if path not in current:
                path.unlink()
    for path, text in current.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    write()
