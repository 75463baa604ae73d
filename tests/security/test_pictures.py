"""Pictures and archives that were made to hurt: one line, soon, and no program started."""

from __future__ import annotations

import gzip
import io
import os
import struct
import subprocess
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.data.decoding import decoded
from leakscope.data.folder import Folder
from leakscope.data.images import resized
from leakscope.data.npz import read_npz
from leakscope.data.torchvision_sets import parse_idx

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n{} loop\n%%EOF\n"


def refused(work: Callable[[], object], *words: str) -> None:
    start = time.monotonic()
    with pytest.raises(UsageError) as caught:
        work()
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), caught.value
    assert time.monotonic() - start < 5


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG whose header claims a size, with pixels that are `data`."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def pictures(folder: Path) -> Path:
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / name / f"{number}.png")
    return folder


def test_an_eps_named_png_starts_no_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, program = tmp_path / "started", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    data = pictures(tmp_path / "data")
    (data / "cat" / "evil.png").write_bytes(EPS)
    refused(lambda: Folder(str(data)).load(None), "evil.png", "not a readable image")
    assert not mark.exists()
    with pytest.raises(OSError, match="image file"), Image.open(data / "cat" / "evil.png") as opened:
        opened.load()
    assert mark.exists()  # the trap works; it was not sprung


@pytest.mark.parametrize("format_", ["PCX", "SGI", "TGA", "ICO", "DDS", "MSP", "PDF"])
def test_formats_that_are_not_on_the_list_are_not_decoded(tmp_path: Path, format_: str) -> None:
    path = tmp_path / "x.png"
    try:
        Image.new("1" if format_ == "MSP" else "RGB", (16, 16)).save(path, format_)
    except (KeyError, OSError) as error:
        pytest.skip(f"Pillow here cannot write {format_}: {error}")
    refused(lambda: decoded(path, str(path)), "not a readable image")


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP"])
def test_formats_on_the_list_are(tmp_path: Path, format_: str) -> None:
    Image.new("RGB", (16, 16), (255, 255, 255)).save(tmp_path / "x.png", format_)
    assert (decoded(tmp_path / "x.png", "x") > 250).all()


@pytest.mark.parametrize(("width", "height"), [(9000, 9000), (100_000, 100_000), (2**31 - 1, 2**31 - 1), (1, 2**30)])
def test_a_picture_that_claims_billions_of_pixels_is_not_unpacked(tmp_path: Path, width: int, height: int) -> None:
    (tmp_path / "bomb.png").write_bytes(png(width, height, bytes(1000)))
    refused(lambda: decoded(tmp_path / "bomb.png", "bomb.png"), "bomb.png")


def test_a_real_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """200 kB that unpack to 207 MB: Pillow alone would only warn."""
    side = 8300
    (tmp_path / "bomb.png").write_bytes(png(side, side, bytes(side * (3 * side + 1))))
    assert (tmp_path / "bomb.png").stat().st_size < 300_000
    refused(lambda: decoded(tmp_path / "bomb.png", "bomb.png"), "8300×8300 pixels", "scale it down")


def test_a_picture_within_reason_that_lacks_its_pixels_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "short.png").write_bytes(png(64, 64, bytes(10)))
    refused(lambda: decoded(tmp_path / "short.png", "short.png"), "not a readable image")


@pytest.mark.parametrize("what", ["file", "class", "circle"])
def test_links_that_lead_out_of_the_folder_are_refused(tmp_path: Path, what: str) -> None:
    data, outside = pictures(tmp_path / "data"), pictures(tmp_path / "outside")
    if what == "file":
        (data / "cat" / "link.png").symlink_to(outside / "dog" / "0.png")
    elif what == "class":
        (data / "bird").symlink_to(outside / "cat")
    else:
        (data / "cat" / "link.png").symlink_to(data / "cat" / "link.png")
    refused(lambda: Folder(str(data)).load(None), "leads out of", "follow_links=true")
    if what != "circle":
        assert len(Folder(str(data), follow_links=True).load(None)) == (5 if what == "file" else 6)


def test_links_inside_the_folder_and_to_the_folder_are_fine(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data")
    (data / "cat" / "link.png").symlink_to(data / "dog" / "0.png")
    (tmp_path / "elsewhere").symlink_to(data)
    assert len(Folder(str(tmp_path / "elsewhere")).load(None)) == 5


def test_a_folder_deeper_than_the_stack_is_one_line(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data")
    here = os.open(data / "cat", os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        refused(lambda: Folder(str(data)).load(None), "deep")
    finally:
        subprocess.run(["rm", "-rf", data / "cat"], check=True)


def npz(path: Path, shape: str, dtype: str, data: bytes, *, name: str = "train_images", names: int = 0) -> Path:
    """An archive with one array whose header is made up."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    padded = header + " " * (64 - (10 + len(header) + 1) % 64) + "\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode() + data
    labels = io.BytesIO()
    np.save(labels, np.zeros(4, np.int64))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", array)
        archive.writestr("train_labels.npy", labels.getvalue())
        if names:
            archive.writestr("class_names.npy", array)
    return path


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(f"({2**60}, 8, 8)", "|u1"), (f"({2**62}, {2**62}, 8)", "<f4"), ("(4, 8, 8)", "<f8"), ("(-4, 8, 8)", "|u1"),
     ("(4, 8, 8)", "|O"), (f"({2**40},)", "|u1"), ("(4, 8)", "<U1000000000"), ("(4, 8, 8, 3)", "|u1")],
)  # fmt: skip
def test_an_array_that_claims_more_than_it_has_is_refused_unread(tmp_path: Path, shape: str, dtype: str) -> None:
    refused(lambda: read_npz(npz(tmp_path / "x.npz", shape, dtype, bytes(256))), "x.npz")


def test_an_archive_that_unpacks_to_more_than_there_is_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = npz(tmp_path / "x.npz", "(4, 4096, 4096)", "|u1", bytes(4 << 24))  # 64 MB in 64 kB
    assert path.stat().st_size < 100_000
    monkeypatch.setattr("leakscope.core.memory.available", lambda: 100 << 20)
    refused(lambda: read_npz(path), "x.npz", "memory", "fewer pictures")


def test_an_encrypted_archive_is_called_so(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", "(4, 8, 8)", "|u1", bytes(256))
    raw = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = raw.find(mark)
        while start >= 0:
            raw[start + offset] |= 1
            start = raw.find(mark, start + 1)
    path.write_bytes(raw)
    refused(lambda: read_npz(path), "it is encrypted")


@pytest.mark.parametrize("shape", [(2**31 - 1, 2**31 - 1, 255), (100, 28, 28), (2**32 - 1,)])
def test_an_idx_bomb_is_not_unpacked(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """12 gigabytes of zeros in 12 megabytes; here 2 GB in 2 MB, made of members that are all alike."""
    header = b"\0\0\x08" + bytes([len(shape)]) + b"".join(length.to_bytes(4, "big") for length in shape)
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(header) + gzip.compress(bytes(1 << 24)) * 128)
    refused(lambda: parse_idx(path), "x.gz", "clean copy")


def test_a_resize_beyond_memory_is_refused_before_it_begins(tmp_path: Path) -> None:
    data = ImageSet(torch.rand(4000, 1, 8, 8), torch.arange(4000) % 2, ("a", "b"))
    refused(lambda: resized(data, 200_000), "200000×200000", "smaller --resize")
    folder = pictures(tmp_path / "data")
    refused(lambda: Folder(str(folder), resize=10_000_000).load(None), "smaller --resize")


def test_many_large_pictures_are_refused_after_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pictures(tmp_path / "data")
    seen: list[Any] = []
    usual = decoded

    def counting(*a: Any, **k: Any) -> Any:
        seen.append(a)
        return usual(*a, **k)

    monkeypatch.setattr("leakscope.data.folder.decoded", counting)
    monkeypatch.setattr("leakscope.core.memory.available", lambda: 4000)
    refused(lambda: Folder(str(folder)).load(None), "4 pictures", "memory")
    assert len(seen) == 1


def test_values_that_overflow_are_named(tmp_path: Path) -> None:
    images = np.full((4, 8, 8), 1e300)
    np.savez(tmp_path / "x.npz", train_images=images, train_labels=np.arange(4) % 2)
    refused(lambda: read_npz(tmp_path / "x.npz"), "image 0 has NaN or infinite pixels")
