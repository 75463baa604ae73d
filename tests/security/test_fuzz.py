"""Hostile bytes by the thousand: whatever is handed over ends in a value or in one line, never in anything else.

How many: see `fuzzing.py`.
"""

from __future__ import annotations

import io
import json
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save

from leakscope.core.errors import UsageError, one_line
from leakscope.core.spec import digest, parse
from leakscope.core.yaml_text import parse_yaml
from leakscope.data.decoding import decoded
from leakscope.data.npz import read_npz
from leakscope.models.weights import read_state
from leakscope.store import Store

from .fuzzing import READERS, examples

#: Seconds that one example may take.
PATIENCE = 10
fuzzed = examples(READERS)
KEY = digest("fuzz")


def survives(work: Callable[[], object]) -> object | None:
    """What `work` gives, or None when it refused in one printable line; anything else is a finding."""
    start = time.monotonic()
    found, said = None, ""
    try:
        found = work()
    except UsageError as error:
        said = str(error)
    assert said == one_line(said)
    assert len(said) < 2000
    assert time.monotonic() - start < PATIENCE
    return found


@st.composite
def mutated(draw: st.DrawFn, whole: bytes) -> bytes:
    """`whole` with a few bytes changed, cut out, doubled or put in."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        how = draw(st.sampled_from(["set", "flip", "cut", "insert", "double", "number"]))
        if how == "set" and content:
            content[place] = draw(st.integers(0, 255))
        elif how == "flip" and content:
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del content[place : place + draw(st.integers(1, 200))]
        elif how == "insert":
            content[place:place] = draw(st.binary(max_size=20))
        elif how == "double":
            content[place:place] = content[place : place + draw(st.integers(1, 50))]
        else:
            number = draw(st.sampled_from([0, 1, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1]))
            content[place : place + 8] = number.to_bytes(8, draw(st.sampled_from(["little", "big"])))
    return bytes(content)


def archive(compress: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compress) as file:
        for name, array in (
            ("train_images", np.arange(6 * 64, dtype=np.uint8).reshape(6, 8, 8)),
            ("train_labels", np.arange(6) % 2),
            ("class_names", np.array(["cat", "dog"])),
        ):
            inner = io.BytesIO()
            np.save(inner, array)
            file.writestr(f"{name}.npy", inner.getvalue())
    return buffer.getvalue()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder for all examples; whether writing waits for the disk is tested elsewhere."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        yield Path(folder)


@fuzzed
@given(content=mutated(archive()) | mutated(archive(zipfile.ZIP_STORED)) | st.binary(max_size=200))
def test_npz(place: Path, content: bytes) -> None:
    path = place / "x.npz"
    path.write_bytes(content)
    survives(lambda: read_npz(path))


@fuzzed
@given(
    shape=st.lists(st.integers(-(2**70), 2**70), max_size=5),
    dtype=st.sampled_from(["|u1", "<f4", "<f8", "|O", "<U9", "|V8", "<M8[s]", "<c16", "|b1", "<f2", "nonsense", "<U0"]),
    data=st.binary(max_size=300),
    order=st.booleans(),
)
def test_npz_headers(place: Path, shape: list[int], dtype: str, data: bytes, order: bool) -> None:
    header = repr({"descr": dtype, "fortran_order": order, "shape": tuple(shape)}).encode() + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data
    path = place / "h.npz"
    with zipfile.ZipFile(path, "w") as file:
        for name in ("train_images", "train_labels", "class_names"):
            file.writestr(f"{name}.npy", array)
    survives(lambda: read_npz(path))


@fuzzed
@given(content=mutated(save({"a.weight": torch.rand(3, 4), "a.bias": torch.rand(3)})) | st.binary(max_size=100))
def test_safetensors(place: Path, content: bytes) -> None:
    path = place / "x.safetensors"
    path.write_bytes(content)
    state = survives(lambda: read_state(path))
    if state is not None:
        assert all(isinstance(value, torch.Tensor) for value in state.values())  # type: ignore[attr-defined]


def _saved(**options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save({"a.weight": torch.rand(3, 4), "a.bias": torch.rand(3)}, buffer, **options)
    return buffer.getvalue()


@fuzzed
@given(content=mutated(_saved()) | mutated(_saved(_use_new_zipfile_serialization=False)))
@example(content=b"PK\x06\x07\x01" + bytes(15) + b"PK\x05\x06" + bytes(18))
def test_pickled_weights(place: Path, content: bytes) -> None:
    path = place / "x.pt"
    path.write_bytes(content)
    survives(lambda: read_state(path))


def _picture(format_: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(buffer, format_)
    return buffer.getvalue()


@fuzzed
@given(content=st.sampled_from(["PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP"]).map(_picture).flatmap(mutated))
def test_pictures(content: bytes) -> None:
    found = survives(lambda: decoded(io.BytesIO(content), "x.png"))
    assert found is None or found.shape[2] == 3  # type: ignore[attr-defined]


@fuzzed
@given(
    size=st.tuples(*[st.integers(0, 2**32 - 1) | st.integers(0, 70)] * 2),
    fields=st.tuples(*[st.integers(0, 20)] * 5),
    data=st.binary(max_size=100),
    chunk=st.sampled_from([b"tEXt", b"zTXt", b"iCCP", b"PLTE", b"eXIf", b"acTL", b"fdAT", b"tRNS"]),
    extra=st.binary(max_size=60),
)
def test_png_headers(size: tuple[int, int], fields: tuple[int, ...], data: bytes, chunk: bytes, extra: bytes) -> None:
    def packed(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", *size, *fields)
    parts = [packed(b"IHDR", header), packed(chunk, extra), packed(b"IDAT", zlib.compress(data)), packed(b"IEND", b"")]
    survives(lambda: decoded(io.BytesIO(b"\x89PNG\r\n\x1a\n" + b"".join(parts)), "x.png"))


@fuzzed
@given(data=st.data(), file=st.sampled_from(["record.json", "seal.json", "tensors.safetensors"]))
def test_store_records(place: Path, data: st.DataObject, file: str) -> None:
    """Any change of any file: the entry is put aside, and what reads it gets the old content or nothing."""
    store = Store(place / "store")
    record = {"summary": {"leak": 0.5, "rate": 1e-05, "name": "é"}, "plan": {"kind": "mlp"}}
    entry = store.put("result", KEY, record, {"leak": torch.arange(4.0)})
    path = entry.folder / file
    whole = path.read_bytes()
    content = data.draw(mutated(whole) | st.binary(max_size=50))
    path.write_bytes(content)
    found = survives(lambda: store.get("result", KEY))
    if content != whole and file != "tensors.safetensors":
        assert found is None
    if found is not None:
        assert found.record == record  # type: ignore[attr-defined]
        read = survives(found.tensors)  # type: ignore[attr-defined]
        assert (read is not None) == (content == whole)
    assert survives(lambda: store.summaries("result")) in ({}, {KEY: record["summary"]}) or content == whole
    store.discard("result", KEY)


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.dates(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=5),
    max_leaves=30,
)
SAMPLE = (
    b"data: mnist5k\nmodel: {kind: convnet, widths: [8, 16]}\ndefenses:\n- &n none\n- *n\n- 'gaussian:0.1'\nx: 1e-3\n"
)


@fuzzed
@given(
    text=mutated(SAMPLE).map(lambda raw: raw.decode("latin-1")) | st.text(max_size=80) | st.text("[]{}&*:-?|>!% a\n")
)
def test_yaml_text(text: str) -> None:
    found = survives(lambda: parse_yaml(text, "x.yaml"))
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@fuzzed
@given(tree=trees)
def test_yaml_trees(tree: Any) -> None:
    try:
        text = yaml.safe_dump(tree, allow_unicode=True)
    except yaml.YAMLError:
        return
    found = survives(lambda: parse_yaml(text, "x.yaml"))
    # PyYAML's own reader is the truth, not the tree: its writer loses some line breaks (U+0085).
    assert found is None or found == yaml.safe_load(text)


@fuzzed
@given(text=st.text(max_size=60) | st.text("abc=:,[]{}.0123456789-_ ", max_size=40).map(lambda rest: f"mlp:{rest}"))
def test_settings(text: str) -> None:
    survives(lambda: parse(text))
