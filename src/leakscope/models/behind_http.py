"""A model behind HTTP: one JSON protocol, told on the page docs/how-to/behind-an-interface.md.

`GET URL` describes the service, `POST URL` answers pictures. Nothing that comes back is executed.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

import torch
from pydantic import Field, PositiveInt, TypeAdapter, ValidationError
from torch import Tensor, nn

from leakscope.core.errors import UsageError
from leakscope.models._interface import Answers, Behind, Interface, rows, top
from leakscope.models.architecture import MODELS

PROTOCOL = "leakscope-1"
#: A bearer token for the service; sent in a header, and kept nowhere.
TOKEN = "LEAKSCOPE_HTTP_TOKEN"  # noqa: S105 (the name of a variable)
_TRIES, _WAIT = 4, 0.5
_SECONDS = 60.0
_LARGEST = 64 * 2**20  # bytes of one answer
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@MODELS.register("http")
@dataclass(frozen=True)
class BehindHttp(Behind):
    """A service at `url` that answers pictures with scores or labels; written `--model http://HOST:PORT/PATH`.

    `answers` may keep the label alone of a service that gives scores. `version` is what the service calls its model
    and fills itself in: another version is another model.
    """

    url: str
    answers: Literal["", "scores", "labels"] = ""
    version: str = field(default="", metadata={"shown": False})

    def __post_init__(self) -> None:
        found = urlsplit(self.url)
        if found.scheme not in {"http", "https"} or not found.hostname:
            raise UsageError(f"{self.url!r} is no address of a service; write http://HOST:PORT/PATH")
        if found.username is not None or found.password is not None:
            raise UsageError(f"leave the password out of the address; put a token in the variable {TOKEN}")
        told = described(self.url)
        if self.version and self.version != told.version:
            raise UsageError(
                f"{self.url} now serves version {told.version!r}, not {self.version!r} as when this was configured; "
                "configure it anew"
            )
        if self.answers == "scores" and told.answers == "labels":
            raise UsageError(f"{self.url} answers with labels; leave `answers` out")
        object.__setattr__(self, "version", told.version)
        object.__setattr__(self, "answers", self.answers or told.answers)

    @property
    def gives(self) -> Answers:
        return "labels" if self.answers == "labels" else "scores"

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        told = described(self.url)
        if told.shape is not None and told.shape != image_shape:
            reads, given = ("×".join(map(str, shape)) for shape in (told.shape, image_shape))
            raise UsageError(f"{self.url} reads {reads} pictures, the data are {given}; resize them with --resize")

        def ask(x: Tensor) -> Tensor:
            parts = [self._answer(part, classes) for part in x.detach().cpu().split(told.batch)]
            whole = torch.cat(parts) if parts else torch.zeros(0, classes)
            return whole.to(x.device)

        return Interface(ask)

    def _answer(self, x: Tensor, classes: int) -> Tensor:
        pixels = x.float().contiguous().numpy().astype("<f4").tobytes()
        body = {"shape": list(x.shape), "pixels": base64.b64encode(pixels).decode("ascii")}
        told = _read(Answered, _exchange(self.url, body), self.url)
        given = told.labels if told.scores is None else told.scores
        try:
            answer = torch.tensor(given)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise UsageError(
                f"{self.url} answered without a table of numbers under 'scores' or 'labels'; see the protocol"
            ) from None
        found = rows(answer, len(x), classes, self.url)
        return top(found) if self.gives == "labels" else found


@dataclass(frozen=True)
class Described:
    """What a service says about itself."""

    protocol: Literal["leakscope-1"]
    version: Annotated[str, Field(min_length=1)]
    answers: Answers
    shape: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None
    batch: Annotated[int, Field(ge=1, le=2**20)] = 64


@dataclass(frozen=True)
class Answered:
    """What it says about pictures."""

    scores: list[list[float]] | None = None
    labels: list[int] | None = None


T = TypeVar("T")


def described(url: str) -> Described:
    """What a service says about itself, checked."""
    return _read(Described, _exchange(url, None), url)


def _read(cls: type[T], told: dict[str, Any], url: str) -> T:
    """A message as its type; what it says beside is left alone."""
    try:
        return TypeAdapter(cls).validate_python(told)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'answer'}: {item['msg']}" for item in error.errors()[:3]
        )
        raise UsageError(f"{url} does not speak {PROTOCOL!r} ({problems}); see the protocol") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token must not follow a redirect to somebody else."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _exchange(url: str, body: dict[str, Any] | None) -> dict[str, Any]:
    """One request and its JSON object; a service that is busy is asked again, a few times."""
    headers = {"Accept": "application/json"}
    if token := os.environ.get(TOKEN):
        headers["Authorization"] = f"Bearer {token}"
    data = None
    if body is not None:
        data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if urlsplit(url).hostname in _LOOPBACK:
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(url, data, headers)  # noqa: S310 (the scheme was checked)
    for attempt in range(_TRIES):
        try:
            with opener.open(request, timeout=_SECONDS) as response:
                return _object(url, _whole(response))
        except urllib.error.HTTPError as error:
            if error.code not in {429, 502, 503, 504} or attempt == _TRIES - 1:
                reason = " ".join(error.read(300).decode("utf-8", "replace").split())
                raise UsageError(f"{url} answered {error.code} {error.reason}: {reason or 'no reason given'}") from None
            time.sleep(_pause(error.headers.get("Retry-After"), attempt))
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a name that no host can have
            if attempt == _TRIES - 1:
                reason = str(error.reason if isinstance(error, urllib.error.URLError) else error)
                raise UsageError(f"no answer from {url} ({reason}); start the service, or check the address") from None
            time.sleep(_pause(None, attempt))
    raise AssertionError("unreachable: the last attempt returns or raises")


def _whole(response: Any) -> bytes:
    """What was answered; a service that gives a byte now and then is not waited for without end."""
    told, until = b"", time.monotonic() + _SECONDS
    while len(told) <= _LARGEST and (part := response.read1(1 << 20)):
        told += part
        if time.monotonic() > until:
            raise TimeoutError(f"its answer was not complete after {_SECONDS:.0f} s")
    return told


def _pause(asked: str | None, attempt: int) -> float:
    try:
        wanted = float(asked) if asked is not None else math.nan
    except ValueError:
        wanted = math.nan
    return min(wanted, 30.0) if wanted >= 0 else _WAIT * 2**attempt


def _object(url: str, text: bytes) -> dict[str, Any]:
    if len(text) > _LARGEST:
        raise UsageError(f"{url} answered with more than {_LARGEST >> 20} MB; let it answer smaller batches")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{url} did not answer with JSON; is this the address of the service?") from None
    if not isinstance(told, dict):
        raise UsageError(f"{url} must answer with a JSON object; see the protocol")
    return told
