"""A leaderboard in four formats: all say the same, and none can be made to run what it contains."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from leakscope.core.errors import UsageError
from leakscope.core.words import FLAGS, FlagId
from leakscope.report.strips import write_strip

from .board import entry, keep, text
from .test_leaderboard import rivals

EXPLANATION = FLAGS[FlagId.NOT_CONVERGED].explanation


def facts(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="facts">(.*?)</script>', page, re.DOTALL)
    assert found
    tree: dict[str, Any] = json.loads(found[1])
    return tree


def test_every_cell_of_the_page_leads_to_result_pictures_and_command(tmp_path: Path) -> None:
    entries = rivals()
    store = keep(tmp_path / "store", entries, pictures="none")
    out = tmp_path / "pages" / "board.html"
    page = text(entries, "html", store, out)
    told = facts(page)
    linked = set(re.findall(r'href="#cell-(\d+)"', page))
    assert len(linked) == 4 * 3
    assert linked == set(told["cells"])
    out.parent.mkdir()
    for title, prefix, tail, results in told["cells"].values():
        command = shlex.split(f"{told['commands'][prefix]}{tail} --seed {results[0][1]}")
        assert command[:2] == ["leakscope", "attack"]
        assert title == f"{command[command.index('--attack') + 1]} on {command[command.index('--defense') + 1]}"
        for key, *_ in results:
            assert (out.parent / told["records"] / key[:2] / key / "record.json").is_file()
    assert sum(uri.startswith("data:image/png") for uri in told["pictures"].values()) == 2


def test_every_mark_tells_its_figures_and_leads_to_its_row(tmp_path: Path) -> None:
    entries = rivals()
    page = text(entries, "html", keep(tmp_path / "store", entries), tmp_path / "board.html")
    assert page.index("<svg") < page.index("<tbody>"), "a setting opens with its plot"
    led = re.findall(r'<a href="#(row-[\d-]+)" aria-label="Row (\d+), ([^"]+)">', page)
    assert len(led) == 4
    for row, number, name in led:
        found = re.search(rf'<tr id="{row}"[^>]*><th scope="row"><span class="mark">(\d+)</span> ([^<]+?)\s*<', page)
        assert found is not None
        assert (found[1], found[2].strip()) == (number, name)
        assert re.search(rf"<title>{number} {re.escape(name)}: [\d.]+\s%, leak -?[\d.]+</title>", page)


@pytest.mark.parametrize("form", ["html", "md", "tex", "csv"])
def test_doubt_is_told_in_every_format(tmp_path: Path, form: str) -> None:
    entries = rivals("gaussian:sigma=1.0", FlagId.NOT_CONVERGED)
    store = keep(tmp_path / "store", entries)
    doubted = text(entries, form, store, tmp_path / "board")
    sound = text(rivals(), form, store, tmp_path / "board")
    assert "not-converged" in doubted
    assert EXPLANATION[:40] in html.unescape(doubted)
    assert "not-converged" not in sound
    sign = {"tex": r"gaussian:sigma=1.0 $\dagger$", "md": "gaussian:sigma=1.0 †", "html": ">doubtful †</span>"}.get(
        form
    )
    if sign is not None:
        assert doubted.count(sign) > sound.count(sign)


def test_csv_has_one_line_for_each_cell_and_marks_doubt(tmp_path: Path) -> None:
    entries = rivals("gaussian:sigma=1.0", FlagId.NOT_CONVERGED)
    store = keep(tmp_path / "store", entries)
    rows = list(csv.DictReader(io.StringIO(text(entries, "csv", store, tmp_path / "board.csv"))))
    plain = [row for row in rows if row["keys"]]
    assert len(plain) == 4 * 3
    assert all(len(row["keys"].split()) == 3 and row["command"] for row in plain)
    assert sum(row["attack"].endswith("below the twin") for row in rows) == 5
    headline = {row["defense"]: row for row in plain if row["attack"] == "strongest"}
    assert (headline["gaussian:sigma=1.0"]["doubtful"], headline["gaussian:sigma=1.0"]["rank"]) == ("1", "")
    assert (headline["gaussian:sigma=0.5"]["doubtful"], headline["gaussian:sigma=0.5"]["rank"]) == ("0", "1")


@pytest.mark.parametrize("form", ["html", "md", "tex", "csv"])
def test_unlike_attacks_are_told_in_every_format(tmp_path: Path, form: str) -> None:
    entries = [entry(d, "ridge", s, leak, 0.9) for s in range(2) for d, leak in (("none", 0.8), ("topk", 0.5))]
    entries += [entry("topk", "decoder", seed, 0.9, 0.9) for seed in range(2)]
    told = text(entries, form, keep(tmp_path / "store", entries), tmp_path / "board")
    assert "also attacked by decoder (0.900), which other rows were not: not compared" in told
    if form != "csv":
        assert "compared on ridge only" in told
        assert "oo few seeds" in told
        assert "±" not in told.partition("strongest")[2].replace("± 95", "")


@pytest.mark.parametrize("form", ["html", "md", "tex"])
def test_no_table_is_empty(tmp_path: Path, form: str) -> None:
    """Neither where no family reaches a level of accuracy, nor where nothing matches."""
    store, begun = keep(tmp_path, rivals()), {"html": "<tbody>", "md": "\n| --- |", "tex": r"\begin{tabular}"}[form]
    for pattern, tables in (("*", 2), ("none", 1), ("nobody", 0)):
        told = text(rivals(), form, store, tmp_path / "board", filters=[f"defense={pattern}"])
        assert told.count(begun) == tables


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>|`&\\_%$ =cmd()"
    entries = [entry(evil, evil, 0, 0.5, 0.9, FlagId.DIVERGED, data=evil, command=f"leakscope {shlex.quote(evil)}")]
    store = keep(tmp_path / "store", entries)
    page = text(entries, "html", store, tmp_path / "board.html")
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert "default-src 'none'" in page
    assert not re.search(r"https?://", page)
    markdown = text(entries, "md", store, tmp_path / "board.md")
    row = next(line for line in markdown.splitlines() if line.startswith("| \\<"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 7
    latex = text(entries, "tex", store, tmp_path / "board.tex")
    assert "onerror=alert(1)" in latex
    assert r"\textbackslash{}\_\%\$" in latex


def test_latex_is_balanced_and_marks_the_best(tmp_path: Path) -> None:
    latex = text(rivals(), "tex", keep(tmp_path / "store", []), tmp_path / "board.tex")
    assert latex.count("\\begin{tabular}") == latex.count("\\end{tabular}") == 2
    best = next(line for line in latex.splitlines() if line.startswith("gaussian:sigma=1.0"))
    assert best.count("\\textbf{\\href{") == 3
    assert "leakscope attack --set data=digits" in best.partition(r"\\ %")[2]


def test_a_strip_shows_what_was_rebuilt(tmp_path: Path) -> None:
    entries = rivals()
    store = keep(tmp_path / "store", entries, pictures="none")
    write_strip(store, entries[0].result, tmp_path / "out" / "strip.png")
    drawn = np.asarray(Image.open(tmp_path / "out" / "strip.png"))
    assert drawn.shape == (9, 8 * 9)  # eight pictures of eight pixels, a white line behind each
    assert np.array_equal(drawn[:8, :8], np.round(np.linspace(0, 1, 512)[:64].reshape(8, 8) * 255))
    with pytest.raises(UsageError, match="no pictures"):
        write_strip(store, next(e for e in entries if not e.target.undefended).result, tmp_path / "none.png")


def test_a_leaderboard_is_made_without_torch() -> None:
    modules = "leakscope.report.leaderboard_page, leakscope.report.leaderboard_text"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WATCH = """<!doctype html><title>waiting</title><body>
<iframe id="frame" width="WIDTH" height="700" frameborder="0" src="board.html"></iframe>
<script>frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement, seen = {};
  const visible = () => [...page.querySelectorAll("section.table > .scroll tbody tr")]
    .filter(r => r.getClientRects().length).map(r => r.cells[0].textContent.replace(/^\\s*\\d+\\s*/, "").trim());
  seen.width = root.clientWidth; seen.scroll = root.scrollWidth;
  seen.labels = [...page.querySelectorAll(".plot .label")].map(e => e.getBoundingClientRect())
    .map(b => [b.left, b.top, b.right, b.bottom]);
  seen.all = visible();
  const buttons = page.querySelectorAll("thead button");
  buttons[1].click(); seen.accuracy = visible();
  buttons[2].click(); seen.leak = visible();
  const words = page.getElementById("words"); words.value = "dropout";
  words.dispatchEvent(new frame.contentWindow.Event("input", {bubbles: true})); seen.filtered = visible();
  frame.contentWindow.location.hash = page.querySelector("td a").getAttribute("href");
  setTimeout(() => { seen.open = page.getElementById("panel").open;
    seen.body = page.getElementById("panel-body").textContent;
    document.title = "done"; document.body.dataset.seen = JSON.stringify(seen); }, 200);
};</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on the path")
@pytest.mark.parametrize("width", [400, 1400])
def test_sorting_filtering_and_the_panel_in_a_browser(tmp_path: Path, width: int) -> None:
    entries = rivals("gaussian:sigma=1.0", FlagId.NOT_CONVERGED)
    store = keep(tmp_path / "store", entries)
    (tmp_path / "board.html").write_text(text(entries, "html", store, tmp_path / "board.html"))
    (tmp_path / "watch.html").write_text(WATCH.replace("WIDTH", str(width)))
    done = subprocess.run(
        [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", "--allow-file-access-from-files", "--enable-logging=stderr",
         "--virtual-time-budget=32000", f"--window-size={width + 100},800", f"--user-data-dir={tmp_path / 'profile'}",
         "--dump-dom", (tmp_path / "watch.html").as_uri()],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    found = re.search(r'data-seen="(.*?)"', done.stdout)
    assert found, done.stderr[-2000:]
    seen = json.loads(html.unescape(found[1]))
    assert "CONSOLE" not in done.stderr, done.stderr
    assert seen["scroll"] == seen["width"], "no sideways scrolling"
    assert len(seen["all"]) == len(seen["labels"]) == 4
    assert seen["accuracy"][0].startswith("gaussian:sigma=1.0"), "accuracy, lowest first"
    assert seen["accuracy"][-1].startswith("none")
    assert seen["leak"][-1].startswith("gaussian:sigma=1.0"), "it leaks least, but is in doubt"
    assert [name.split()[0] for name in seen["filtered"]] == ["dropout:p=0.5"]
    assert seen["open"]
    assert "--defense" in seen["body"]
    assert "result " in seen["body"]
