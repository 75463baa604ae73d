"""The one place where HTML is made: what templates are given is escaped, and what is not seen is shown."""

from __future__ import annotations

import base64
import hashlib
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from leakscope.core.escaping import terminal


@cache
def environment() -> Environment:
    return Environment(
        loader=PackageLoader("leakscope", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )


def _shown(value: object) -> object:
    if isinstance(value, Markup):  # escaped already, by a filter or by joining it to another text
        return Markup(terminal(value))  # noqa: S704 (nothing but what is not seen is changed)
    return terminal(value) if isinstance(value, str) else value


def source(name: str) -> str:
    """A file of ours that stands in the page as it is, with a hash in the page's policy."""
    loader = environment().loader
    assert loader is not None
    return "\n" + loader.get_source(environment(), name)[0]


def policy_hash(text: str) -> str:
    """As a content security policy names an inline style or script."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
