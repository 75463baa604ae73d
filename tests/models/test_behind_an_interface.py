"""Models that can only be asked: a Python function, and a real server on this machine."""

from __future__ import annotations

import base64
import json
import re
import runpy
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakscope
from leakscope.cli import app, run
from leakscope.core.errors import UsageError
from leakscope.core.threat import Access
from leakscope.models import behind_http
from leakscope.models.resolve import resolve

ROOT = Path(__file__).parents[2]
SERVER = runpy.run_path(str(ROOT / "examples" / "serve_model.py"))["server"]
SMALL: dict[str, Any] = {
    "attacks": ["ridge"], "victims": 8, "metrics": ["leak"], "splits": {"private": 60, "heldout": 60, "public": 400},
}  # fmt: skip


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()


@contextmanager
def _running(service: ThreadingHTTPServer) -> Iterator[str]:
    threading.Thread(target=service.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{service.server_port}"
    finally:
        service.shutdown()
        service.server_close()


@contextmanager
def _saying(about: object, answer: object = None, codes: tuple[int, ...] = ()) -> Iterator[str]:
    """A server that says this about itself and answers every picture so, after answering with `codes`."""
    pending = list(codes)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(about)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(answer)

        def reply(self, content: object) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(pending.pop(0) if pending else 200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with _running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url


ABOUT = {"protocol": "leakscope-1", "version": "1", "answers": "scores"}


def test_a_function_leaks_as_much_as_the_scores_of_its_network() -> None:
    network = _network()
    whole = nn.Sequential(network, nn.Identity())
    asked = leakscope.attack(network.forward, "digits", **SMALL)[0]
    cut = leakscope.attack(whole, "digits", cut="0", **SMALL)[0]
    assert asked.result.leak == pytest.approx(cut.result.leak, abs=1e-5)
    assert asked.target.accuracy == cut.target.accuracy
    assert set(asked.result.threat.access) == {"features", "query", "scores", "labels"}


def test_labels_tell_less_than_scores_and_grant_less() -> None:
    network = _network()
    scores = leakscope.attack(network.forward, "digits", **SMALL)[0].result
    labels = leakscope.attack(lambda x: network(x).argmax(1), "digits", **SMALL)[0].result
    assert labels.leak < scores.leak - 0.2
    assert "scores" not in labels.threat.access


def test_a_function_audits_whole(tmp_path: Path) -> None:
    found = leakscope.audit(_network().forward, "digits", out=tmp_path, **SMALL)
    assert found.report.targets[0].record.cut == "answer"
    assert (tmp_path / "report.html").exists()
    assert all(control.passed for control in found.report.controls if control.passed is not None)


def test_a_version_makes_results_reusable(tmp_path: Path) -> None:
    network, sent = _network(), 0

    class Service:
        version: str | None = None

        def __call__(self, x: Tensor) -> Tensor:
            nonlocal sent
            sent += len(x)
            scores: Tensor = network(x)
            return scores

    service = Service()
    for version, fresh in ((None, True), (None, True), ("1", True), ("1", False), ("2", True)):
        before = sent
        service.version = version
        leakscope.attack(service, "digits", store=tmp_path, **SMALL)
        assert (sent - before > 500) is fresh, version


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda x: x.mean((1, 2, 3)), "rows of scores"),
        (lambda x: torch.full((len(x), 10), float("nan")), "NaN"),
        (lambda x: torch.full((len(x),), 10), "label 10"),
        (lambda x: x / "nothing", "failed on 2×1×8×8 pictures"),
        (lambda x: torch.rand(len(x), 3), "scores 3 classes, the data have 10"),
        (42, "int is no network"),
    ],
)
def test_a_bad_function_is_one_line(ask: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        leakscope.attack(ask, "digits", **SMALL)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"attacks": ["search"]}, "search needs encoder"),
        ({"threat": {"access": ["encoder", "features"]}}, "no encoder to hand over"),
        ({"training": {"epochs": 1}}, "cannot be trained"),
    ],
)
def test_what_only_weights_allow_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        leakscope.attack(_network().forward, "digits", **{**SMALL, **settings})


def test_a_network_without_a_layer_to_cut_at_is_one_line() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(64, 10))

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) @ self.weight

    with pytest.raises(UsageError, match=r"no layer where it can be cut.*a function"):
        leakscope.audit(Bare(), "digits", **SMALL)


@pytest.mark.parametrize("labels", [False, True])
def test_a_server_gives_away_what_its_network_does(labels: bool, tmp_path: Path) -> None:
    network = _network()

    def ask(x: Tensor) -> Tensor:
        scores: Tensor = network(x)
        return scores.argmax(1) if labels else scores

    near = leakscope.attack(ask, "digits", **SMALL)[0].result
    with _running(SERVER(network, shape=[1, 8, 8], version="a", labels=labels, port=0)) as url:
        far = leakscope.attack(url, "digits", store=tmp_path, **SMALL)[0].result
    assert far.leak == pytest.approx(near.leak, abs=1e-5)
    assert far.threat.access == near.threat.access
    assert (Access.SCORES in far.threat.access) is not labels


def _json(url: str, body: object) -> dict[str, Any]:
    """One request as any other program would send it."""
    data = None if body is None else json.dumps(body).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, data), timeout=30) as response:
        told: dict[str, Any] = json.load(response)
    return told


def test_the_documented_protocol_is_the_one_that_is_spoken() -> None:
    """What the page shows is what the example server says and answers, and what a client of ours accepts."""
    page = (ROOT / "docs" / "how-to" / "behind-an-interface.md").read_text()
    lines = [line for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    about, request, answer = map(json.loads, lines)
    x = torch.rand(2, 1, 8, 8)
    network = _network()
    pixels = base64.b64encode(x.numpy().astype("<f4").tobytes()).decode()
    with _running(SERVER(network, shape=[1, 8, 8], version="a", port=0)) as url:
        told = _json(url, None)
        scores = _json(url, {**request, "pixels": pixels})
    assert told.keys() == about.keys() == set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert scores.keys() == answer.keys()
    assert torch.allclose(torch.tensor(scores["scores"]), network(x), atol=1e-6)
    for given in (answer, {"labels": [1, 0]}):
        with _saying(about, given) as url:
            assert resolve(url).build((1, 8, 8), 2)(x).argmax(1).tolist() == [1, 0]


def test_the_command_line_audits_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "digits", "--attack", "ridge", "--victims", "8", "--store", str(tmp_path / "s"), "--json"]
    with _running(SERVER(_network(), shape=[1, 8, 8], version="a", port=0)) as url:
        assert run(app, ["audit", "--model", url, *words, "--out", str(tmp_path / "o")]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["targets"][0]["record"]["cut"] == "answer"
        only = f"model={{kind: http, url: '{url}', answers: labels}}"
        assert run(app, ["attack", "--set", only, *words]) == 0
        assert "scores" not in json.loads(capsys.readouterr().out)[0]["result"]["threat"]["access"]
        assert run(app, ["audit", "--model", url, "--data", "digits", "--resize", "16", "--dry-run"]) == 2
        assert "reads 1×8×8 pictures" in capsys.readouterr().err


def test_labels_alone_rebuild_classes_behind_a_server(tmp_path: Path) -> None:
    """The path of `brepmi`: a class attack that asks the service, judged against networks that know nothing."""
    settings: dict[str, Any] = {
        "goal": "identities", "victims": 4, "metrics": ["leak"], "evaluator": {"training": {"epochs": 4}},
        "attacks": [{"kind": "brepmi", "prior": "linear", "steps": 1, "draws": 64}],
        "splits": {"private": 400, "heldout": 60, "public": 100}, "threat": {"shared_classes": True},
    }  # fmt: skip
    with _running(SERVER(_network(), shape=[1, 8, 8], version="a", labels=True, port=0)) as url:
        report = leakscope.audit(url, "digits", store=tmp_path, **settings).report
    assert [result.attack.label.partition(":")[0] for result in report.results] == ["brepmi"]
    ignorant = {own.where for control in report.controls for own in control.results}
    assert {"random weights", "permuted labels"} <= ignorant


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"protocol": "other"}, "does not speak 'leakscope-1'"),
        ({**ABOUT, "version": ""}, "version: String should have at least 1"),
        ({**ABOUT, "answers": "pictures"}, "answers: Input should be"),
        ({**ABOUT, "shape": "1,8,8"}, "shape"),
        ([1, 2], "JSON object"),
        (b"<html>", "did not answer with JSON"),
        (b"[" * 100_000, "did not answer with JSON"),
    ],
)
def test_a_server_of_another_kind_is_one_line(about: object, why: str) -> None:
    with _saying(about) as url, pytest.raises(UsageError, match=why):
        resolve(url)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"answer": 1}, "'scores' or 'labels'"),
        ({"scores": [[1, "two"]]}, "scores.0.1: Input should be a valid number"),
        ({"scores": [[0.5] * 10]}, "2 rows of scores"),
        (b'{"scores": [[NaN, 1, 1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]]}', "NaN"),
    ],
)
def test_a_bad_answer_is_one_line(answer: object, why: str) -> None:
    with _saying(ABOUT, answer) as url, pytest.raises(UsageError, match=why):
        leakscope.attack(url, "digits", **SMALL)


def test_a_busy_server_is_asked_again_and_no_redirect_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behind_http, "_WAIT", 0.01)
    with _saying(ABOUT, codes=(503, 429, 200)) as url:
        assert resolve(url).kind_name == "http"
    with _saying(ABOUT, codes=(503,) * 9) as url, pytest.raises(UsageError, match="503"):
        resolve(url)
    with _saying(ABOUT, codes=(302,)) as url, pytest.raises(UsageError, match="302"):
        resolve(url)
    with pytest.raises(UsageError, match=r"no answer from http://127\.0\.0\.1:9"):
        resolve("http://127.0.0.1:9")


def test_a_new_version_is_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with _saying(ABOUT) as url:
        with pytest.raises(UsageError, match="now serves version '1', not '0'"):
            resolve({"kind": "http", "url": url, "version": "0"})
        with pytest.raises(UsageError, match="answers"):
            resolve({"kind": "http", "url": url, "answers": "pictures"})
    with pytest.raises(UsageError, match="password"):
        resolve("http://me:secret@127.0.0.1:9")


def test_the_token_is_sent_and_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str | None] = []
    served: Callable[..., ThreadingHTTPServer] = SERVER
    service = served(_network(), shape=[1, 8, 8], version="a", port=0)
    handler: Any = service.RequestHandlerClass
    reply = handler.reply

    def noting(self: Any, code: int, content: Any) -> None:
        seen.append(self.headers.get("Authorization"))
        reply(self, code, content)

    handler.reply = noting
    monkeypatch.setenv(behind_http.TOKEN, "very-secret")
    with _running(service) as url:
        leakscope.attack(url, "digits", store=tmp_path, **SMALL)
    assert set(seen) == {"Bearer very-secret"}
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"very-secret" in path.read_bytes()]
