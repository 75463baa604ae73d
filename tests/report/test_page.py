"""The page: complete, honest about the pictures, closed to the network, readable by machines that read aloud."""

from __future__ import annotations

import base64
import copy
import hashlib
import io
import itertools
import re
from functools import cache
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from PIL import Image

from leakscope.core.errors import UsageError
from leakscope.report import render_html
from leakscope.report.pictures import data_uri, galleries
from leakscope.report.words import ACCESS, FRAMEWORKS, GLOSSARY, VERDICTS

from .sample import many, sample, with_verdict

VOID = {"meta", "link", "img", "br", "wbr", "hr"}
SHAPES = {"path", "circle", "rect", "line"}


class Page(HTMLParser):
    """Elements with their attributes, the text, and whether tags nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SHAPES, f"<{tag}/> is not self-closing in HTML"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> does not close what is open: {self.open[-3:]}"

    def handle_data(self, data: str) -> None:
        self.text += " " + data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@cache
def page_text() -> str:
    return render_html(*sample())


@cache
def page() -> Page:
    return Page(page_text())


def test_tags_nest_and_identifiers_are_unique() -> None:
    assert page().open == []
    ids = [attributes["id"] for _, attributes in page().elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_every_reference_stays_on_the_page() -> None:
    ids = {attributes["id"] for _, attributes in page().elements if "id" in attributes}
    for _, attributes in page().elements:
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "src"):
            value = attributes.get(name, "#verdict")
            assert value.startswith("data:") or value[1:] in ids, value
        for name in ("aria-labelledby", "aria-describedby"):
            assert set(attributes.get(name, "").split()) <= ids
    assert not page().all("script")
    assert "url(" not in page_text()
    assert "@import" not in page_text()


def test_the_policy_admits_this_style_and_nothing_else() -> None:
    style = re.search(r"<style>(.*?)</style>", page_text(), re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = next(meta["content"] for meta in page().all("meta") if "http-equiv" in meta)
    assert policy.startswith(f"default-src 'none'; img-src data:; style-src 'sha256-{digest}';")


def test_sections_are_in_order_and_listed() -> None:
    order = ["verdict", "figures", "pictures", "threat", "scores", "trade-off", "controls", "flags", "evidence",
             "reading", "reproduce", "frameworks"]  # fmt: skip
    assert [attributes["id"] for attributes in page().all("section") if "id" in attributes] == order
    links = [attributes["href"] for attributes in page().all("a") if "class" not in attributes]
    assert links == [f"#{name}" for name in order]


def test_it_can_be_read_aloud() -> None:
    assert page().all("html")[0]["lang"] == "en"
    assert len(page().all("h1")) == 1
    for landmark in ("header", "nav", "main", "footer"):
        assert len(page().all(landmark)) == 1
    assert len(page().all("table")) == len(page().all("caption"))
    assert all("scope" in attributes for attributes in page().all("th"))
    assert all(attributes["alt"] for attributes in page().all("img"))
    for attributes in page().all("svg"):
        assert attributes.get("role") == "img" or "aria-hidden" in attributes or "overflow" in attributes
    scrolled = [attributes for _, attributes in page().elements if attributes.get("class") == "scroll"]
    assert scrolled
    assert all((box["tabindex"], box["role"]) == ("0", "region") for box in scrolled)
    levels = [int(tag[1]) for tag, _ in page().elements if re.fullmatch(r"h[1-6]", tag)]
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_verdict_is_the_audits(verdict: str) -> None:
    audit, pictures = sample()
    audit = with_verdict(audit, verdict)
    if audit["gate"] is not None:
        audit["gate"]["value"] = 0.9 if verdict == "pass" else 0.1  # a page that judged for itself would differ
    text = Page(render_html(audit, pictures)).text
    assert audit["sentence"] in text
    assert VERDICTS[verdict][1] in text
    assert not [told for name, (_, told) in VERDICTS.items() if name != verdict and told in text]


def test_everything_the_audit_says_is_on_the_page() -> None:
    audit, text = sample()[0], page().text
    said = [audit["sentence"], *audit["reasons"], audit["command"], audit["gate"]["text"], audit["gate"]["where"]]
    said += [target["key"] for target in audit["targets"]] + [result["key"] for result in audit["results"]]
    said += [flag["explanation"] for flag in audit["flags"]] + [flag["where"] for flag in audit["flags"]]
    said += [control["what"][1:] for control in audit["controls"].values()] + ["at most", "at least", "pairs: 64"]
    said += audit["evidence_detail"]["met"] + audit["evidence_detail"]["missing"]
    said += [*audit["versions"].values(), audit["metrics"]["lpips"]["unavailable"], FRAMEWORKS]
    said += [ACCESS[name] for name in audit["threat"]["access"]] + [told for _, told in GLOSSARY]
    said += ["rate: 1.0e-05", "97.4\u00a0%", "0.982", "0.970 to 0.994", "worst 0.999", "−0.281"]
    assert [part for part in said if part not in text] == []


def hostile(value: Any, mark: str) -> Any:
    """The same data with the mark appended to every text that is not an identifier of ours."""
    kept = {"schema", "verdict", "evidence", "severity", "created", "more_leak", "access", "level", "target", "key",
            "strongest", "attack", "pictures"}  # fmt: skip
    if isinstance(value, dict):
        return {name: item if name in kept else hostile(item, mark) for name, item in value.items()}
    if isinstance(value, list):
        return [hostile(item, mark) for item in value]
    return value + mark if isinstance(value, str) else value


def test_no_text_of_the_audit_becomes_markup() -> None:
    audit, pictures = sample()
    mark = "\"'></style></script><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7*7 }}"
    spoilt = Page(render_html(hostile(audit, mark), pictures))
    assert spoilt.open == []
    assert [tag for tag, _ in spoilt.elements] == [tag for tag, _ in page().elements]
    assert mark in spoilt.text


def decoded(uri: str) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,")))))


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_the_audits_pixel_by_pixel(channels: int) -> None:
    audit, pictures = sample(channels=channels)
    drawn = [decoded(image["src"]) for image in Page(render_html(audit, pictures)).all("img")]
    expected = []
    for target in audit["targets"]:
        own = [result for result in audit["results"] if result["target"] == target["key"]]
        own.sort(key=lambda result: -result["metrics"]["leak"]["mean"])  # the strongest first
        for result in own:
            rows = zip(pictures[f"truth/{result['key']}"], pictures[f"guess/{result['key']}"], strict=True)
            expected += [np.squeeze(image.transpose(1, 2, 0)) for row in rows for image in row]
    assert len(drawn) == len(expected) == 12 * 9 * 2
    assert all(np.array_equal(a, b) for a, b in zip(drawn, expected, strict=True))


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 80)])
def test_forty_results_stay_under_three_megabytes(channels: int, side: int) -> None:
    audit, pictures = many(40, channels, side)
    text = render_html(audit, pictures)
    assert len(text.encode()) < 3_000_000
    assert ("pixels a side; the full size is in" in text) == (side > 28)


def test_reduced_pictures_average_what_they_replace() -> None:
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8) * 4
    expected = image.reshape(4, 2, 4, 2).mean((1, 3))
    assert np.abs(decoded(data_uri(image, 4)) - expected).max() <= 0.5


def test_pictures_too_many_for_the_budget_are_still_all_there() -> None:
    audit, pictures = sample()
    drawn = galleries(audit, pictures, budget=1)
    assert drawn.reduced_to == 16
    assert [len(group.pairs) for groups in drawn.groups.values() for group in groups] == [3] * 36


def test_pictures_that_do_not_match_are_refused() -> None:
    audit, pictures = sample()
    key = audit["results"][0]["key"]
    with pytest.raises(UsageError, match="lacks the pictures"):
        galleries(audit, {name: rows for name, rows in pictures.items() if name != f"guess/{key}"})
    with pytest.raises(UsageError, match="not uint8"):
        galleries(audit, {**pictures, f"guess/{key}": pictures[f"guess/{key}"][:4]})


def test_one_target_is_not_plotted() -> None:
    audit, pictures = sample()
    audit = copy.deepcopy(audit)
    audit["targets"] = audit["targets"][:1]
    audit["results"] = audit["results"][:3]
    audit["pictures"] = {result["key"]: audit["pictures"][result["key"]] for result in audit["results"]}
    assert "trade-off" not in render_html(audit, pictures)


def test_an_audit_with_nothing_but_a_verdict_can_be_drawn() -> None:
    audit = with_verdict(sample()[0], "inconclusive")
    audit.update(targets=[], results=[], floors={}, flags=[], pictures={}, metrics={}, controls={}, gate=None)
    audit["evidence_detail"] = {"met": [], "missing": []}
    text = Page(render_html(audit, {})).text
    assert "This audit kept no pictures." in text
    assert "None were raised." in text


def test_a_flag_without_an_explanation_is_named_but_not_linked() -> None:
    audit, pictures = sample()
    drawn = Page(render_html({**audit, "flags": []}, pictures))
    assert "not-converged" in drawn.text
    assert not [link for link in drawn.all("a") if link["href"].startswith("#flag-")]


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_scores_without_an_interval_or_a_value_are_drawn_as_missing(missing: float | None) -> None:
    audit, pictures = sample()
    audit = copy.deepcopy(audit)
    for result in audit["results"]:
        result["metrics"]["fid"] = {"mean": 31.4, "low": None, "high": None, "worst": None}
        result["metrics"]["leak"] = dict.fromkeys(("mean", "low", "high", "worst"), missing)
    audit["metrics"]["fid"] = {"more_leak": "low", "what": "distance of distributions"}
    text = render_html(audit, pictures)
    assert "31.4" in text
    assert not {"None", "nan"} & set(Page(text).text.replace("None set", "").split())
    assert "trade-off" not in text


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_contrast_meets_wcag_aa(scheme: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", page_text(), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", blocks[scheme]))
    pairs = [(ink, ground) for ink in ("ink", "quiet", "accent") for ground in ("page", "surface", "faint")]
    pairs += [(tone, f"{tone}-soft") for tone in ("accent", "good", "bad", "doubt")]
    pairs += [(tone, "surface") for tone in ("good", "bad", "doubt")] + [("on-accent", "accent")]
    for ink, ground in pairs:
        dark, light = sorted((luminance(colours[ink]), luminance(colours[ground])))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)
