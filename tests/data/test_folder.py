from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leakscope.core.data import DATASETS
from leakscope.core.errors import UsageError
from leakscope.data.folder import Folder


def save(path: Path, value: int = 100, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(path)
    return path


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for number in range(3):
        save(tmp_path / "pets" / "dog" / f"{number}.png", 10 + number)
        save(tmp_path / "pets" / "cat" / "deep" / f"{number}.PNG", 20 + number)
    return tmp_path / "pets"


def test_classes_and_files_come_in_the_order_of_their_names(pets: Path) -> None:
    (pets / "cat" / ".hidden.png").write_bytes(b"not an image")
    (pets / "cat" / "notes.txt").write_text("not an image")
    (pets / ".cache").mkdir()
    data = DATASETS.build(f"folder:{pets}").load(None)
    assert data.classes == ("cat", "dog")
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert (data.images[:, 0, 0, 0] * 255).round().tolist() == [20, 21, 22, 10, 11, 12]
    assert data.shape == (3, 8, 8)


def test_a_relative_path_is_also_looked_for_below_the_data_root(pets: Path) -> None:
    assert len(Folder("pets").load(pets.parent)) == 6


def test_grey_and_resize(pets: Path) -> None:
    save(pets / "dog" / "wide.png", 50, (20, 10))
    data = Folder(str(pets), resize=5, grey=True).load(None)
    assert data.images.shape == (7, 1, 5, 5)


def test_sixteen_bits_are_scaled_and_not_clipped(pets: Path) -> None:
    Image.fromarray(np.full((8, 8), 32896, np.uint16)).save(pets / "dog" / "deep.png")
    data = Folder(str(pets), grey=True).load(None)
    assert torch.allclose(data.images[-1], torch.tensor(128 / 255))


def test_mixed_sizes_are_refused_by_file(pets: Path) -> None:
    save(pets / "dog" / "wide.png", 50, (9, 8))
    with pytest.raises(UsageError, match=r"wide\.png is 9×8, most are 8×8; .*--resize"):
        Folder(str(pets)).load(None)


def test_an_unreadable_image_is_named(pets: Path) -> None:
    whole = (pets / "dog" / "1.png").read_bytes()
    (pets / "dog" / "1.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"1\.png is not a readable image"):
        Folder(str(pets)).load(None)


def test_missing_empty_and_one_class_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        Folder(str(tmp_path / "nowhere")).load(None)
    with pytest.raises(UsageError, match="no class folders"):
        Folder(str(tmp_path)).load(None)
    (tmp_path / "cat").mkdir()
    with pytest.raises(UsageError, match="is empty"):
        Folder(str(tmp_path)).load(None)
    save(tmp_path / "cat" / "a.png")
    with pytest.raises(UsageError, match="one class only, 'cat'"):
        Folder(str(tmp_path)).load(None)


def test_every_refusal_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(b"nonsense\n" * 9)
    save(tmp_path / "b" / "y.png")
    with pytest.raises(UsageError) as caught:
        Folder(str(tmp_path)).load(None)
    assert "\n" not in str(caught.value)
