"""What the documentation says, happens; where it links to, there is something; and the site builds."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
import typer
import yaml

from leakscope.cli import app, run

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: Pages written by hand; methods and results are generated and tested with their generators.
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if path.parent.name in {"docs", "concepts", "how-to", "tutorials"}]
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
    kinds = {"concepts", "how-to", "tutorials", "reference"}
    assert {_named(page) for page in DOCS.rglob("*.md") if page.parent.name in kinds} <= listed


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
    asked = known[name]
    if hasattr(asked, "commands"):  # leakscope store size
        name, *arguments = arguments
        asked = asked.commands[name]
    asked.make_context(name, arguments)


@pytest.mark.parametrize(("page", "command"), [pair for pair in _commands() if "--gate" in pair[1]])
def test_documented_gates_can_be_passed(page: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A level that the same command cannot reach is refused by its plan."""
    assert run(app, [*shlex.split(command)[1:], "--dry-run"]) == 0, page


def test_every_reader_has_a_page() -> None:
    """A tutorial for each user story, and a how-to for what they come for."""
    wanted = {
        "tutorials": ("engineer", "privacy-officer", "researcher"),
        "how-to": ("own-attack", "own-defence", "own-training-loop", "store", "deployment"),
        "reference": ("commands", "python", "settings"),
    }
    listed = (ROOT / "mkdocs.yml").read_text()
    for folder, names in wanted.items():
        for name in names:
            assert len((DOCS / folder / f"{name}.md").read_text().split()) > 150
            assert f"{folder}/{name}.md" in listed


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
    site = tmp_path / "site"
    assert "Leakscope" in (site / "index.html").read_text()
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]* src=\"?([^\" >]+)", page.read_text())
        loaded += re.findall(r"<link[^>]* rel=\"?(?:stylesheet|icon|preload)[^>]* href=\"?([^\" >]+)", page.read_text())
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], page
        assert "| --- |" not in page.read_text(), f"{page}: a table is shown as it was written"
    # Opened from disk a page may not fetch: the index of the search must come as a script.
    index = (site / "search" / "search_index.js").read_text()
    assert index.startswith("var __index = ")
    for word in ("behind an interface", "leakscope store prune", "utility"):
        assert word in index
    assert _found_from_disk(site, tmp_path, "unlabelled") in {None, True}


def _found_from_disk(site: Path, tmp_path: Path, word: str) -> bool | None:
    """Whether the search of a page opened from disk finds a word; None without a browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        return None
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-sync", "--disable-component-update", "--disable-dev-shm-usage", "--virtual-time-budget=20000",
        "--dump-dom",
    ]  # fmt: skip
    address = f"{(site / 'index.html').as_uri()}?q={word}"
    command = [browser, *flags, f"--user-data-dir={tmp_path / 'profile'}", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return re.search(r"[1-9]\d* matching document", done.stdout) is not None


def test_the_reference_is_current_and_describes_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))  # it reads what method_pages.py beside it reads
    found = runpy.run_path(str(DOCS / "reference_pages.py"))
    for path, text in found["pages"]().items():
        assert path.read_text() == text, "run: make methods"
    for cls in (found["AuditConfig"], *found["groups"]().values()):
        missing = [name for name, (_, told) in found["described"](cls).items() if not told]
        assert missing == [], f"{cls.__name__}: settings without a description"


NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_executed_small_and_without_errors(path: Path) -> None:
    """Run again by docs/notebooks/build.py; here only what it left is looked at."""
    import json

    book = json.loads(path.read_text())
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {kind for cell in code for out in cell["outputs"] for kind in out.get("data", {})}
    assert {"text/html", "image/png"} <= kinds, "the audit and its plot are shown"
    assert not [out for cell in code for out in cell["outputs"] if out["output_type"] == "error"]
    assert path.stat().st_size < 400_000
    build = (DOCS / "notebooks" / "build.py").read_text()
    assert all("".join(cell["source"]).splitlines()[0] in build for cell in code)


def test_there_are_two_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["audit-your-model", "design-a-defence"]
