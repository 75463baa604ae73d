"""Errors a user can cause: one line, with the remedy in it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """Something the user asked for cannot be done; the message says what to do instead."""


class NotGranted(Exception):
    """An attack reached for something its threat model does not hand over: a bug in the attack."""


def unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that does not exist, with its near matches."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return UsageError(f"unknown {what} {name!r}; did you mean {' or '.join(near)}?")
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return UsageError(f"unknown {what} {name!r}; choose from: {shown}")
