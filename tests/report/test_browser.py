"""The page in a real browser: no console message, every picture decoded, no sideways scrolling, dark when asked."""

from __future__ import annotations

import html
import itertools
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakscope.report import write

from .sample import sample, save

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on the path")

QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--enable-logging=stderr",
)  # fmt: skip

# The page goes unchanged into a frame of the wanted width, narrower than a browser window can be; the frame inherits
# the harness's origin, so the harness may look inside although the page's own policy forbids all script.
HARNESS = """<!doctype html><title>waiting</title><body>
<iframe id="frame" width="{width}" height="900" frameborder="0" srcdoc="{page}"></iframe>
<script>
frame.onload = async () => {{
  const page = frame.contentDocument, root = page.documentElement, images = [...page.images];
  const folded = root.scrollWidth, length = root.scrollHeight;
  for (const detail of page.querySelectorAll("details")) detail.open = true;
  await Promise.all(images.map(image => image.decode().catch(() => null)));
  const inside = element => element.closest(".scroll, pre") !== null;
  const outside = [...page.querySelectorAll("body *")].filter(e => !inside(e) && e.getClientRects().length)
    .filter(e => e.getBoundingClientRect().right > root.clientWidth + 0.5 && !e.closest("svg, .skip"));
  document.title = JSON.stringify({{
    width: root.clientWidth, length, whole: root.scrollHeight, folded, unfolded: root.scrollWidth,
    outside: outside.map(element => element.tagName + "." + element.className),
    images: images.length, broken: images.filter(image => image.naturalWidth === 0).length,
    paper: getComputedStyle(page.body).backgroundColor,
    tall: page.querySelector("#verdict").getBoundingClientRect().height,
    labels: [...page.querySelectorAll("#trade-off .label, #trade-off [class$=-name]:not(.axis-name)")]
      .map(e => e.getBoundingClientRect()).map(b => [b.left, b.top, b.right, b.bottom]),
  }});
}};
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(save(tmp_path_factory.mktemp("audit"), *sample()))[0]


def browse(profile: Path, url: str, *flags: str, budget: int = 4000) -> tuple[str, list[str]]:
    """The document after it has loaded, and what the console said; `budget` is in the browser's own milliseconds."""
    assert BROWSER is not None
    clock = f"--virtual-time-budget={budget}"
    command = [BROWSER, *QUIET, f"--user-data-dir={profile}", clock, *flags, "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def measure(tmp_path: Path, page: Path, width: int, *flags: str) -> dict[str, Any]:
    harness = tmp_path / "harness.html"
    text = html.escape(page.read_text(encoding="utf-8"))
    harness.write_text(HARNESS.format(width=width, page=text), encoding="utf-8")
    window = f"--window-size={width + 100},1000"
    for budget in (4000, 16_000, 64_000):  # a busy machine may not have decoded every picture in the first
        profile = tmp_path / f"profile-{budget}"
        dom, console = browse(profile, harness.as_uri(), window, *flags, budget=budget)
        assert console == []
        (title,) = re.findall(r"<title>(.*?)</title>", dom)
        if title != "waiting":
            break
    measured: dict[str, Any] = json.loads(html.unescape(title))
    return measured


@pytest.mark.parametrize("width", [400, 1400])
def test_it_fits_and_its_pictures_load(tmp_path: Path, page: Path, width: int) -> None:
    seen = measure(tmp_path, page, width)
    assert width - 20 <= seen["width"] <= width  # less a scroll bar
    assert seen["folded"] == seen["unfolded"] == seen["width"]
    assert seen["outside"] == []
    assert (seen["images"], seen["broken"]) == (2 + 4 * 2 + 12 * 9 * 2, 0)


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("count", [2, 8, 20])
def test_labels_of_the_plot_do_not_overlap_as_drawn(tmp_path: Path, width: int, count: int) -> None:
    """In the browser's own font, which the estimate of their widths does not know."""
    report, pictures = sample()
    targets, results = [], []
    for place in range(count):
        model = report.targets[place % 4]
        key = f"{place:024x}"
        record = replace(model.record, key=key, accuracy=0.9 + 0.004 * (place * 7 % count))
        targets.append(replace(model, record=record, strongest=f"{key}-decoder"))
        leak = report.result(f"{model.record.key}-decoder")
        results.append(replace(leak, key=f"{key}-decoder", target=key))
    crowded = replace(report, targets=tuple(targets), results=tuple(results), pictures={})
    seen = measure(tmp_path, write(save(tmp_path / "audit", crowded, pictures))[0], width)
    assert len(seen["labels"]) == count + 2, "with the floor and the limit"
    for (left, top, right, bottom), (x0, y0, x1, y1) in itertools.combinations(seen["labels"], 2):
        assert left >= x1 or x0 >= right or top >= y1 or y0 >= bottom


def test_a_phone_shows_half_and_a_screen_all(tmp_path: Path, page: Path) -> None:
    """Sections that few read are folded on a narrow screen, and open on a wide one and on paper."""
    (tmp_path / "phone").mkdir()
    phone = measure(tmp_path / "phone", page, 400)
    assert phone["length"] < 0.5 * phone["whole"]


def pages(path: Path) -> int:
    return len(re.findall(rb"/Type\s*/Page[^s]", path.read_bytes()))


@pytest.mark.parametrize("count", [2, 20])
def test_the_summary_is_one_sheet_of_paper(tmp_path: Path, count: int) -> None:
    report, pictures = sample()
    targets, results = [], []
    for place in range(count):
        model, key = report.targets[place % 4], f"{place:024x}"
        targets.append(replace(model, record=replace(model.record, key=key), strongest=f"{key}-decoder"))
        results.append(replace(report.result(f"{model.record.key}-decoder"), key=f"{key}-decoder", target=key))
    long = replace(report, targets=tuple(targets), results=tuple(results), pictures={}, command="x " * 900)
    write(save(tmp_path / "audit", long, pictures))
    assert BROWSER is not None
    printed = tmp_path / "summary.pdf"
    flags = [f"--user-data-dir={tmp_path / 'profile'}", "--no-pdf-header-footer", f"--print-to-pdf={printed}"]
    page = (tmp_path / "audit" / "onepage.html").as_uri()
    subprocess.run([BROWSER, *QUIET, *flags, page], capture_output=True, timeout=120, check=True)
    assert pages(printed) == 1


def test_it_is_dark_when_the_reader_prefers_dark(tmp_path: Path, page: Path) -> None:
    papers = []
    for scheme in (0, 1):  # Blink's numbers for dark and light
        (tmp_path / str(scheme)).mkdir()
        papers.append(
            measure(tmp_path / str(scheme), page, 400, f"--blink-settings=preferredColorScheme={scheme}")["paper"]
        )
    assert papers == ["rgb(17, 21, 26)", "rgb(248, 247, 244)"]


def test_opened_as_a_file_it_says_nothing_in_the_console(tmp_path: Path, page: Path) -> None:
    dom, console = browse(tmp_path / "profile", page.as_uri())
    assert console == []
    assert "Key figures" in dom


def test_a_console_message_would_be_noticed(tmp_path: Path, page: Path) -> None:
    spoilt = tmp_path / "spoilt.html"
    text = page.read_text(encoding="utf-8").replace("</body>", "<script>alert(1)</script></body>")
    spoilt.write_text(text, encoding="utf-8")
    _, console = browse(tmp_path / "profile", spoilt.as_uri())
    assert any("Content Security Policy" in line for line in console)
