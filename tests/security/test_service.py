"""A service that answers with anything at all, or never finishes, is one line."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from leakscope.core.errors import UsageError
from leakscope.models import behind_http
from leakscope.models.resolve import resolve

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"


@contextmanager
def answering(*parts: bytes) -> Iterator[str]:
    """The address of a service that sends the first of these once, then the second every tenth of a second."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection, suppress(OSError):
                        connection.recv(65536)
                        connection.sendall(parts[0])
                        for _ in range(60 if len(parts) > 1 else 0):
                            time.sleep(0.1)
                            connection.sendall(parts[1])

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behind_http, "_WAIT", 0.01)
    monkeypatch.setattr(behind_http, "_TRIES", 2)
    monkeypatch.setattr(behind_http, "_SECONDS", 0.5)


@pytest.mark.parametrize(
    "parts",
    [(b"",), (b"nonsense",), (b"HTTP/1.1 2x0 OK\r\n\r\n",), (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n",),
     (b"HTTP/1.1 200 " + b"x" * 70_000,), (HEAD + b"{}",),
     (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",),
     (HEAD, b" "), (b"HTTP/1.1 500 \x1b[2J\r\n\r\n\x1b[2J",)],
)  # fmt: skip
def test_answers_that_are_none(parts: tuple[bytes, ...]) -> None:
    began = time.monotonic()
    with answering(*parts) as url, pytest.raises(UsageError) as caught:
        resolve(url)
    assert str(caught.value).isprintable()
    assert url in str(caught.value)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "host", ["x\ny", "x y", "x\x00y", "é" * 300, "127.0.0.1:99999", "127.0.0.1:x", "[::1", "a" * 300]
)
def test_addresses_that_are_none(host: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({"kind": "http", "url": f"http://{host}"})
    assert str(caught.value).isprintable()
