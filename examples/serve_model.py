"""A model behind HTTP, as `leakscope audit --model http://127.0.0.1:8000` asks it: the protocol in forty lines.

    python examples/serve_model.py examples/own_model.py:build --weights own.safetensors --shape 1 16 16 --classes 10

`GET /` describes the model, `POST /` answers pictures with scores, or with `--labels` with labels alone.
"""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Pictures answered at once; a client sends larger batches in parts.
BATCH = 64


def answer(network: Callable[[Tensor], Tensor], request: dict[str, Any], *, labels: bool) -> dict[str, Any]:
    """Pixels in [0, 1] as base64 of little-endian float32, N×C×H×W; one row of scores, or one label, for each."""
    pixels = np.frombuffer(base64.b64decode(request["pixels"]), "<f4").reshape(request["shape"])
    with torch.no_grad():
        scores = network(torch.from_numpy(pixels.copy()))
    return {"labels": scores.argmax(1).tolist()} if labels else {"scores": scores.tolist()}


def server(
    network: Callable[[Tensor], Tensor], *, shape: list[int], version: str, labels: bool = False, port: int = 8000
) -> ThreadingHTTPServer:
    """A service on this machine alone; `port` 0 takes any that is free."""
    about = {
        "protocol": "leakscope-1", "version": version, "answers": "labels" if labels else "scores",
        "shape": shape, "batch": BATCH,
    }  # fmt: skip

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(200, about)

        def do_POST(self) -> None:
            try:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.reply(200, answer(network, request, labels=labels))
            except (KeyError, TypeError, ValueError) as error:
                self.reply(400, {"error": str(error)})

        def reply(self, code: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    from leakscope.models.resolve import instantiate, resolve
    from leakscope.models.weights import load_weights, state_digest

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="what leakscope takes as --model")
    parser.add_argument("--weights")
    parser.add_argument("--shape", nargs=3, type=int, default=[1, 28, 28])
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--labels", action="store_true", help="answer with labels alone")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    channels, height, width = given.shape
    network = instantiate(resolve(given.model), (channels, height, width), given.classes).eval()
    if given.weights:
        load_weights(network, given.weights)
    service = server(network, shape=given.shape, version=state_digest(network), labels=given.labels, port=given.port)
    print(f"serving http://127.0.0.1:{service.server_port}", flush=True)
    service.serve_forever()


if __name__ == "__main__":
    main()
