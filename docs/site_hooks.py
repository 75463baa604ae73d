"""What the site needs and the repository's Markdown cannot say: read by mkdocs.yml."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

DOCS = Path(__file__).parent
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leave names in place of links to files outside the site."""
    return within_the_site(markdown, PurePosixPath(page.file.src_uri))


def within_the_site(markdown: str, page: PurePosixPath) -> str:
    """A source file has no page: its name is shown instead of a link that would lead nowhere."""

    def shown(match: re.Match[str]) -> str:
        target = match["target"]
        if target.startswith(("http:", "https:", "mailto:")):
            return match[0]
        inside = (DOCS / page.parent / target).resolve().is_relative_to(DOCS)
        return match[0] if inside and not target.endswith(".py") else match["text"]

    return _LINK.sub(shown, markdown)


#: What the theme's plugin for pages on disk would load from another host, and what stands in its place.
ELSEWHERE, HERE = "https://unpkg.com/iframe-worker/shim", "assets/search_from_disk.js"


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Nothing is loaded from other hosts: the search finds its helper beside the pages."""
    return output.replace(ELSEWHERE, "../" * page.url.count("/") + HERE)


def on_post_template(output_content: str, *, template_name: str, config: Any) -> str:
    """The page for what is not found is no page of ours, and loads the same."""
    return output_content.replace(ELSEWHERE, HERE)
