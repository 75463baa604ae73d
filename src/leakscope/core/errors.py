"""Errors a user can cause: one line, with the remedy in it."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable


class OneLine(Exception):
    """An error that is told in one line, whatever names of files and fields it quotes.

    A line break or an escape sequence in one of them is printed as its escape code.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


class UsageError(OneLine):
    """Something the user asked for cannot be done; the message says what to do instead. Exit code 2."""


class RunFailed(OneLine):
    """Something broke while it ran, in code or on a machine that is not ours: one line, and exit code 3."""


def ended_by(error: SystemExit) -> RunFailed:
    """What is said when code of the user's would have ended the process."""
    return RunFailed(f"the code of a network or method raised SystemExit({error.code!r}); take that call out")


def said_by(error: BaseException) -> str:
    """What an error says, on one line; nothing where its own `__str__`, which may be a user's, fails."""
    try:
        return " ".join(str(error).split())
    except Exception:
        return ""


def one_line(text: str) -> str:
    """`text` with line breaks, terminal control characters and invisible characters written as escape codes."""
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
