"""The page: complete, honest about the pictures, closed to the network, readable by machines that read aloud."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest

from leakscope.core.reports import BlockRow, Blocks, BlockTable, Bound, ControlReport
from leakscope.core.results import ControlResult, Flag, MetricInfo, Summary
from leakscope.core.words import EVIDENCE, VERDICTS, Control, FlagId, Verdict
from leakscope.report import render_html
from leakscope.report.controls import nearest
from leakscope.report.flags import told
from leakscope.report.page import Brief, render_onepage
from leakscope.report.pictures import galleries
from leakscope.report.summary import markdown
from leakscope.report.targets import short_names, targets_of
from leakscope.report.words import ACCESS, ANY, FLOORS, FRAMEWORKS, GLOSSARY, IDENTITIES, PICTURES

from .sample import attack_result, sample, with_verdict

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
    if audit.gate is not None:  # a page that judged for itself would differ
        audit = replace(audit, gate=replace(audit.gate, value=0.9 if verdict == "pass" else 0.1))
    text = Page(render_html(audit, pictures)).text
    assert audit.sentence in text
    assert VERDICTS[Verdict(verdict)][1] in text
    assert not [told for name, (_, told) in VERDICTS.items() if name != verdict and told in text]


def test_everything_the_audit_says_is_on_the_page() -> None:
    audit, text = sample()[0], page().text
    assert audit.gate is not None
    said = [audit.sentence, *audit.reasons, audit.command, audit.gate.text, audit.gate.where, audit.goal_what]
    said += [target.record.key for target in audit.targets] + [result.key for result in audit.results]
    said += [flag.explanation for flag in audit.flags] + [flag.where for flag in audit.flags]
    said += [control.what[1:] for control in audit.controls] + ["at most", "at least", "the pairs mixed up"]
    said += [*audit.evidence.met, *audit.evidence.missing, *audit.versions.values()]
    said += [metric.unavailable or metric.what for metric in audit.metrics] + [FRAMEWORKS]
    said += [ACCESS[name] for name in audit.threat.access] + [told for _, told in GLOSSARY]
    said += ["rate: 1.0e-05", "97.4\u00a0%", "0.982", "0.970 to 0.994", "worst 0.999", "−0.281"]
    assert [part for part in said if part not in text] == []


def test_what_was_measured_stands_beside_every_verdict() -> None:
    audit, pictures = sample()
    for verdict in VERDICTS:
        text = Page(render_html(with_verdict(audit, verdict), pictures)).text
        assert "At least 62\u00a0%" in text, "the strongest attack on the defended targets"
        assert "No statement" not in text
    spoilt = replace(audit, flags=(Flag(FlagId.NEGATIVE_CONTROL, "everywhere"),))
    assert "At least 62" not in Page(render_html(spoilt, pictures)).text, "the evaluation itself leaks"


def test_who_was_rebuilt_almost_whole_is_told() -> None:
    text = " ".join(page().text.split())
    assert "Rebuilt almost whole 9 of 64 at most 24.0 % of all" in text
    assert "Rebuilt almost whole 0 of 64" in text
    audit, pictures = sample()
    assert audit.gate is not None
    undecided = replace(audit, gate=replace(audit.gate, victims_needed=700))
    assert "About 700 victims would decide it." in Page(render_html(undecided, pictures)).text


def test_a_failure_is_valid_at_every_level() -> None:
    assert "valid at every level" in VERDICTS[Verdict.FAIL][1]
    told = " ".join(text for pair in (*EVIDENCE.values(), *VERDICTS.values()) for text in pair)
    assert "relied upon" not in told
    assert "could not tell" not in told


def test_the_oracle_is_no_floor() -> None:
    text = page().text
    assert "Oracle: the nearest public picture, chosen by looking at the victim" in text
    assert "highest floor, 0.000 (the mean public picture of the right class)" in text
    floors = text.partition("what an attacker gets without observing anything")[2].partition("no floor: it was chosen")[
        0
    ]
    assert FLOORS["class-mean"] in floors
    assert FLOORS["nearest-public"] not in floors


@pytest.mark.parametrize(
    ("goal", "subject"), [("pictures", PICTURES), ("identities", IDENTITIES), ("pictures without labels", ANY)]
)
def test_words_follow_the_goal(goal: str, subject: object) -> None:
    audit, pictures = sample()
    text = Page(render_html(replace(audit, goal=goal), pictures)).text
    for words in (PICTURES, IDENTITIES, ANY):
        assert (words.leak in text) == (words is subject)


def test_flags_are_told_once_for_each_cause() -> None:
    cards = [card for card in page().all("li") if card.get("id", "").startswith("flag-")]
    assert [card["id"] for card in cards] == ["flag-not-converged", "flag-weaker-attacks"]
    assert page().text.count("search on target 3, seed 0") == 1


def test_the_limit_and_the_course_of_an_attack_are_drawn() -> None:
    audit, pictures = sample()
    text = page_text()
    assert text.count('class="gate"') == 4 + 1 + 1, "a line on each bar, one in the legend, one in the plot"
    assert text.count('class="trace"') == 4, "the decoder says how its leak grew with time"
    assert "limit of the gate, 0.200" in page().text
    assert audit.gate is not None
    other = render_html(replace(audit, gate=replace(audit.gate, metric="ssim")), pictures)
    assert 'class="gate"' not in other, "a limit of another metric has no place on a scale of leak"


def test_long_labels_are_told_once_and_sentences_stay_as_they_are() -> None:
    audit, pictures = sample()
    long = 'kedmi:prior={"kind":"kedmi-gan","steps":200},steps=200,learning_rate=0.05'
    attack = replace(audit.results[1].attack, kinds=("kedmi",), label=long)
    results = tuple(replace(r, attack=attack) if r.attack.kind == "decoder" else r for r in audit.results)
    where = f"{long} on none at features, seed 0"
    text = Page(render_html(replace(audit, results=results, flags=(Flag(FlagId.DIVERGED, where),)), pictures)).text
    assert where in text
    assert text.replace(" ", "").count(long.replace(" ", "")) == 2, "once among the settings, once in the flag"
    assert " kedmi " in " ".join(text.split())


def test_a_name_is_short_where_it_is_long_and_nobody_else_has_it() -> None:
    long = "kedmi:" + "x" * 50
    twin = "gmi:" + "y" * 50
    labels = [long, "ridge", f"{twin}=1", f"{twin}=2", long]
    made = []
    for i, label in enumerate(labels):
        result = attack_result(str(i), "t", "ridge", 0.5)
        made.append(replace(result, attack=replace(result.attack, label=label, kinds=(label.partition(":")[0],))))
    assert short_names(made) == {long: "kedmi", "ridge": "ridge", f"{twin}=1": f"{twin}=1", f"{twin}=2": f"{twin}=2"}


def test_a_network_of_a_file_is_called_by_its_file() -> None:
    audit, pictures = sample()
    targets = []
    for target in audit.targets:
        settings = {"kind": "file", "path": "/home/me/nets/net.py", "factory": "build"}
        model = replace(target.record.model, kinds=("file",), label="file:path=/home/me/nets/net.py", settings=settings)
        targets.append(replace(target, record=replace(target.record, model=model)))
    text = Page(render_html(replace(audit, targets=tuple(targets)), pictures)).text
    assert "net.py at features.3" in text
    assert "file:path" not in text


def test_blocks_and_bounds_are_drawn() -> None:
    audit, pictures = sample()
    key = audit.results[1].key
    rows = tuple(BlockRow(f"layer1.{i}", (16, 14, 14), error, 0.01, None) for i, error in enumerate((0.05, 0.3, 0.7)))
    blocks = Blocks(8, (BlockTable("decoder", key, True, rows),))
    bound = Bound(0.5, 0.011, 0.012, 0.05, 78.4, 784, 1000, ("the noise is Gaussian",))
    targets = (replace(audit.targets[0], blocks=blocks, bound=bound), *audit.targets[1:])
    maps = np.zeros((3, 2, 14, 14), dtype=np.uint8)
    drawn = Page(render_html(replace(audit, targets=targets), {**pictures, f"maps/{key}": maps}))
    assert drawn.open == []
    for word in ("layer1.2", "recovered", "partly", "hidden", "16×14×14", "the noise is Gaussian", "0.100"):
        assert word in drawn.text, word  # 78.4 nats over 784 pixels


@pytest.mark.parametrize(("share", "told"), [(1.01, "beaten"), (0.9, "tight"), (0.5, "2.0 times the bound")])
def test_how_near_the_best_attack_comes_to_a_bound_is_said(share: float, told: str) -> None:
    audit, pictures = sample()
    target = audit.targets[0]
    results = audit.of_target(target.record.key)
    error = min(result.metrics["mse"].mean for result in results)
    bound = Bound(0.5, 0.0, 0.0, 0.05, 78.4, 784, 1000, ("the noise is Gaussian",), fisher=share * error)
    bounded = replace(audit, targets=(replace(target, bound=bound), *audit.targets[1:]))
    page, text = Page(render_html(bounded, pictures)).text, markdown(bounded)
    for form in (page, text):
        assert told in form
        assert ("believe the attack" in form) == (told == "beaten")


def test_one_target_is_not_plotted() -> None:
    audit, pictures = sample()
    results = audit.results[:3]
    shown = {result.key: audit.pictures[result.key] for result in results}
    one = replace(audit, targets=audit.targets[:1], results=results, pictures=shown)
    assert "trade-off" not in render_html(one, pictures)


def test_an_audit_with_nothing_but_a_verdict_can_be_drawn() -> None:
    audit = with_verdict(sample()[0], "inconclusive")
    audit = replace(
        audit, targets=(), groups=(), results=(), floors={}, flags=(), pictures={}, metrics=(), controls=(), gate=None,
        evidence=replace(audit.evidence, met=(), missing=()),
    )  # fmt: skip
    text = Page(render_html(audit, {})).text
    assert "This audit kept no pictures." in text
    assert "None were raised." in text
    assert "At least" not in text


def test_a_flag_that_the_audit_does_not_list_is_named_but_not_linked() -> None:
    audit, pictures = sample()
    drawn = Page(render_html(replace(audit, flags=()), pictures))
    assert "not-converged" in drawn.text
    assert not [link for link in drawn.all("a") if link["href"].startswith("#flag-")]


def test_scores_without_an_interval_or_a_value_are_drawn_as_missing() -> None:
    audit, pictures = sample()
    nan = float("nan")
    unknown = Summary(nan, nan, nan, nan, nan, 64)
    results = tuple(
        replace(r, metrics={**r.metrics, "fid": Summary(31.4, 0, 31.4, 31.4, 31.4, 1), "leak": unknown})
        for r in audit.results
    )
    metrics = (*audit.metrics, MetricInfo("fid", "low", "distance of distributions", of_set=True))
    text = render_html(replace(audit, results=results, metrics=metrics), pictures)
    assert "<b>31.4</b></td>" in text, "one value for a set has neither interval nor worst"
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


def test_reasons_are_told_in_words_once_each() -> None:
    report, pictures = sample()
    where = [target.record.name for target in report.targets]
    raised = [Flag(FlagId.LINEAR_BEATS_ALL, name) for name in where]
    report = replace(report, flags=tuple(raised), reasons=(*(flag.reason for flag in raised), "a word of its own"))
    assert told(report)[1:] == ("a word of its own",)
    assert told(report)[0] == f"{raised[0].explanation} ({'; '.join(where[:3])}; and 1 more)"
    for page in (render_html(report, pictures), render_onepage(report, pictures)):
        assert "linear-beats-all (" not in page


def test_the_summary_shows_the_worst_picture_of_what_is_judged() -> None:
    """Of the defended targets: that of the undefended twin says nothing about them."""
    report, pictures = sample()
    targets = targets_of(report)
    brief = Brief.of(report, targets, galleries(report, pictures))
    assert brief.whose == next(target.name for target in targets if not target.record.undefended)


def test_the_worst_picture_and_the_summary_come_first() -> None:
    """On paper the page begins with its one-page summary; on a screen every target shows its worst picture."""
    text = page_text()
    assert text.index('class="onepage"') < text.index('id="verdict"') < text.index('id="pictures"')
    assert text.count('alt="Original of the worst victim') == 1 + len(sample()[0].targets)
    assert "@media print" in text
    folded = re.findall(r'<section id="([\w-]+)"[^>]*>\s*<details class="fold">', text)
    assert {"threat", "controls", "reading", "reproduce"} <= set(folded), "few read them on a phone"


def test_a_control_has_one_line_for_each_attack() -> None:
    results = [ControlResult(Control.NEGATIVE, "ridge", value, 0.05, value <= 0.05) for value in (-0.8, 0.2, -0.4)]
    report = ControlReport(Control.NEGATIVE, "what", False, 0.05, (*results, replace(results[0], attack="auto")))
    assert [(found.attack, found.value) for found in nearest(report)] == [("ridge", 0.2), ("auto", -0.8)]
    positive = replace(report, kind=Control.POSITIVE, results=tuple(replace(r, passed=True) for r in results))
    assert [found.value for found in nearest(positive)] == [-0.8]
