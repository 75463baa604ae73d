"""What the documentation says, happens; where it links to, there is something; and the site builds."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
import typer
import yaml

from leakscope.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: Pages written by hand; methods and results are generated and tested with their generators.
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if path.parent.name in {"docs", "concepts", "how-to"}]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def _named(path: Path) -> str:
    return str(path.relative_to(DOCS))


def _anchors(text: str) -> set[str]:
    """Fragments of a page, as Markdown makes them from headings."""
    headings = re.findall(r"^#{1,6} (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()) for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading).strip("-") for heading in plain}


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=_named)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in LINK.findall(text):
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{_named(page)} links to {link}"
        if anchor and path.suffix == ".md":
            assert anchor in _anchors(path.read_text()), f"{_named(page)} links to {link}: no such heading"


def test_the_navigation_is_whole() -> None:
    tree = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = set(re.findall(r"[\w/-]+\.md", str(tree["nav"])))
    assert all((DOCS / page).exists() for page in listed)
    assert {_named(page) for page in PAGES if page.parent.name in {"concepts", "how-to"}} <= listed


def _commands() -> list[tuple[str, str]]:
    return [
        (_named(page), line)
        for page in PAGES
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
        for line in block.splitlines()
        if line.startswith("leakscope")
    ]


@pytest.mark.parametrize(("page", "command"), _commands())
def test_commands_are_understood(page: str, command: str) -> None:
    """Every command and option exists and takes such values; what they do is tested where they live."""
    group = typer.main.get_command(app)
    name, *arguments = shlex.split(command)[1:]
    known = group.commands  # type: ignore[attr-defined]  # typer may carry a click of its own
    assert name in known, f"{page}: no command {name}"
    known[name].make_context(name, arguments)


def _examples() -> list[Path]:
    return [page for page in PAGES if "```python" in page.read_text()]


@pytest.mark.parametrize("page", _examples(), ids=_named)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leakscope.core.defense import DEFENSES

    list(DEFENSES)
    monkeypatch.setattr(DEFENSES, "_classes", dict(DEFENSES._classes))  # an example registers its own
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, _named(page), "exec", dont_inherit=True), {"__name__": "__main__"})


def test_links_out_of_the_site_become_names() -> None:
    within = runpy.run_path(str(DOCS / "site_hooks.py"))["within_the_site"]
    page = PurePosixPath("attacks/ridge.md")
    assert within("[`a.py`](../../src/a.py)", page) == "`a.py`"
    for kept in ("[m](../methods.md)", "[x](https://example.org)", "[h](../concepts/evidence.md#floors)"):
        assert within(kept, page) == kept


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install -e '.[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    home = (tmp_path / "site" / "index.html").read_text()
    assert "Leakscope" in home
    assert "fonts.googleapis" not in home
