"""Errors a user can cause: one line, with the remedy in it."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable


class UsageError(Exception):
    """Something the user asked for cannot be done; the message says what to do instead.

    One line, whatever names of files and fields it quotes: a line break or an escape sequence in one of them is
    shown, not obeyed.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


def one_line(text: str) -> str:
    """`text` with every sign that breaks a line, steers a terminal or is not seen written as its escape."""
    if text.isprintable():
        return text
    return "".join(sign.encode("unicode_escape").decode() if _hidden(sign) else sign for sign in text)


def _hidden(sign: str) -> bool:
    category = unicodedata.category(sign)
    return category[0] == "C" or category in ("Zl", "Zp")


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
