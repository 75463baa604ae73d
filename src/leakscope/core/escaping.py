"""Text of others, made safe for the medium that shows it: one function for each medium, used everywhere.

HTML has none of its own here: templates escape all they are given (Jinja's `autoescape`).
"""

from __future__ import annotations

import json
import re

from leakscope.core.errors import one_line

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~&$])")


def terminal(text: object) -> str:
    """For a terminal or a log: escape sequences and what is not seen are shown; line breaks stay."""
    return "\n".join(one_line(line) for line in str(text).split("\n"))


def markdown(text: object) -> str:
    """For Markdown, as itself: one line, with the marks of Markdown, HTML and formulas escaped."""
    return _MARKDOWN.sub(r"\\\1", one_line(" ".join(str(text).split())))


def markdown_code(text: object) -> str:
    """For a code span of Markdown, without its backticks: a span ends at a backtick, and a cell of a table at a bar."""
    return one_line(" ".join(str(text).split())).replace("`", "'").replace("|", "\\|")


def markdown_block(text: object, language: str = "sh") -> str:
    """A block of code in Markdown; its fence is longer than any in the text."""
    safe = terminal(text)
    longest = max((len(run) for run in re.findall("`+", safe)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{safe}\n{fence}"


def json_text(value: object) -> str:
    """For programs that read JSON, on a terminal too: what is not seen is escaped, half characters too."""
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    if text.replace("\n", "").isprintable():
        return text
    return json.dumps(value, indent=1, allow_nan=False)


def markup_free(text: object) -> str:
    """For a table cell of Markdown that has marks of ours in it: no HTML, no end of the cell."""
    return one_line(" ".join(str(text).split())).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
