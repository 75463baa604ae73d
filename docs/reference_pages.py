"""Writes the reference of commands, of settings and of the Python interface from the code: `make methods`."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any, get_args

import click
import typer
from method_pages import _cell, _comment, _default, _written
from pydantic import BaseModel

import leakscope
from leakscope.cli import app
from leakscope.experiments.config import AuditConfig

DOCS = Path(__file__).parent
REFERENCE = DOCS / "reference"
GENERATED = "Generated from the code by `make methods`."


def pages() -> dict[Path, str]:
    """Every page, by its path."""
    return {
        REFERENCE / "commands.md": commands(),
        REFERENCE / "settings.md": settings(),
        REFERENCE / "python.md": python(),
    }


def commands() -> str:
    """Every command with its arguments and options."""
    parts = ["# Commands", GENERATED, "Exit codes: 0 pass, 1 gate failed, 2 usage, 3 runtime error, 4 inconclusive."]
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    for name, command in sorted(group.commands.items()):
        inner = getattr(command, "commands", None)
        for path, own in [(name, command)] if inner is None else [(f"{name} {sub}", c) for sub, c in inner.items()]:
            parts += [f"## `leakscope {path}`", _prose(own.help or ""), _options(own)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _prose(text: str) -> str:
    """Help as Markdown: examples, which are indented, as code."""
    blocks: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("  "):
            line = "```sh\n" + "\n".join(part.strip() for part in paragraph.splitlines()) + "\n```"
            blocks.append(line)
        else:
            blocks.append(" ".join(paragraph.split()))
    return "\n\n".join(blocks)


def _options(command: Any) -> str:
    rows = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        shown = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        if parameter.param_type_name == "argument":
            shown = f"`{(parameter.metavar or parameter.name or '').upper()}`"
        told = re.sub(r"\\?\[", "[", getattr(parameter, "help", None) or "")
        rows.append(f"| {shown} | {_cell(' '.join(told.split()))} |")
    return "\n".join(["| option | |", "|---|---|", *rows]) if rows else ""


def settings() -> str:
    """Every setting of a configuration file, with its type, its default and what it means."""
    parts = [
        "# Settings", GENERATED,
        "A configuration file holds any of these, and `--set NAME=VALUE` sets one (dotted inside a group). The schema "
        "for editors is [audit-config.schema.json](../audit-config.schema.json).",
        "| setting | default | |\n|---|---|---|\n" + "\n".join(_rows(AuditConfig)),
    ]  # fmt: skip
    for name, group in groups().items():
        parts += [f"## `{name}`", inspect.cleandoc(group.__doc__ or "").split("\n\n")[0].replace("\n", " ")]
        parts.append("| setting | default | |\n|---|---|---|\n" + "\n".join(_rows(group)))
    return "\n\n".join(parts) + "\n"


def groups() -> dict[str, type]:
    """Settings that are groups of settings, by name."""
    found: dict[str, type] = {}
    for name, field in AuditConfig.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if inspect.isclass(kind) and (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)):
                found[name] = kind
    return found


def described(cls: type) -> dict[str, tuple[object, str]]:
    """Default and meaning of every setting of a group."""
    if issubclass(cls, BaseModel):
        return {
            field.alias or name: (
                field.get_default(call_default_factory=True),  # type: ignore[call-arg]
                field.description or "",
            )
            for name, field in cls.model_fields.items()
        }
    return {
        field.name: (_default(field), field.metadata.get("description") or _comment(cls, field.name))
        for field in dataclasses.fields(cls)
        if field.init
    }


def _rows(cls: type) -> list[str]:
    rows = []
    for name, (value, told) in described(cls).items():
        if isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not hasattr(value, "kind_name")):
            shown = "see below"
        else:
            shown = "required" if value is dataclasses.MISSING else f"`{_written(_plain(value))}`"
        rows.append(f"| `{name}` | {_cell(shown)} | {_cell(told)} |")
    return rows


def _plain(value: object) -> object:
    return [getattr(item, "value", item) for item in value] if isinstance(value, list) else value


def python() -> str:
    """What `import leakscope` offers."""
    parts = ["# Python", GENERATED]
    for name in leakscope.__all__:
        thing = getattr(leakscope, name)
        parts += [f"## `leakscope.{name}`", _signature(f"leakscope.{name}", thing), inspect.getdoc(thing) or ""]
        if inspect.isclass(thing):
            parts += _members(name, thing)
    from leakscope.experiments.deployed import Deployed
    from leakscope.experiments.finished import Audit

    for title, cls in {"What `audit` returns": Audit, "What `load` returns": Deployed}.items():
        parts += [f"## {title}", inspect.getdoc(cls) or "", *_members(cls.__name__, cls)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _members(name: str, cls: type) -> list[str]:
    parts = []
    for key, member in vars(cls).items():
        wanted = inspect.isfunction(member) or isinstance(member, property | classmethod)
        if key.startswith("_") or not wanted or not inspect.getdoc(member):
            continue
        inner = getattr(member, "__func__", member)
        shown = f"`{name}.{key}`" if isinstance(member, property) else ""
        parts += [
            f"### `{name}.{key}`",
            "" if shown else _signature(f"{name}.{key}", inner),
            inspect.getdoc(member) or "",
        ]
    return parts


def _signature(name: str, thing: Any) -> str:
    text = re.sub(r"'([^']*)'", r"\1", str(inspect.signature(thing)))
    return f"```python\n{name}{re.sub(r'<[^>]*>', '…', text)}\n```"


def write() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    write()
