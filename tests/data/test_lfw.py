from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from leakscope.core.data import DATASETS
from leakscope.core.errors import UsageError
from leakscope.data.lfw import Lfw


def picture(value: int, size: int = 16) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (size, size), (value, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def archive(path: Path, people: dict[str, int], **extra: bytes) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, count in people.items():
            for number in range(count):
                file.writestr(f"lfw64/{name}/{name}_{number:04d}.png", picture(number * 10 + len(name)))
        for name, content in extra.items():
            file.writestr(name, content)


def test_people_with_enough_pictures_are_read_without_unpacking(tmp_path: Path) -> None:
    archive(tmp_path / "lfw64.zip", {"Bo": 3, "Ann": 4, "Rare": 1}, **{"lfw_protocol/pairs.txt": b"x"})
    data = Lfw(min_images=3).load(tmp_path)
    assert data.classes == ("Ann", "Bo")
    assert data.labels.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert (data.images[:, 0, 0, 0] * 255).round().tolist() == [3, 13, 23, 33, 2, 12, 22]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["lfw64.zip"]
    assert len(Lfw(min_images=3, max_images=3).load(tmp_path)) == 6


def test_an_unpacked_folder_gives_the_same_set(tmp_path: Path) -> None:
    archive(tmp_path / "lfw64.zip", {"Bo": 3, "Ann": 4, "Rare": 1})
    packed = Lfw(min_images=3).load(tmp_path)
    with zipfile.ZipFile(tmp_path / "lfw64.zip") as file:
        file.extractall(tmp_path)
    (tmp_path / "lfw64.zip").unlink()
    assert Lfw(min_images=3).load(tmp_path).digest() == packed.digest()


@pytest.mark.parametrize("name", ["../evil.png", "lfw64/../../x/y.png", "/etc/x/y.png", "lfw64\\..\\x.png"])
def test_an_entry_that_points_outside_is_refused(tmp_path: Path, name: str) -> None:
    archive(tmp_path / "lfw64.zip", {"Bo": 3, "Ann": 4}, **{name: picture(1)})
    with pytest.raises(UsageError, match="outside itself"):
        Lfw(min_images=3).load(tmp_path)


def test_damaged_bulky_and_missing_archives_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"from vis-www\.cs\.umass\.edu/lfw.*LEAKSCOPE_DATA"):
        Lfw().load(None)
    with pytest.raises(UsageError, match=r"neither.*from vis-www\.cs\.umass\.edu/lfw"):
        Lfw().load(tmp_path)
    (tmp_path / "lfw64.zip").write_bytes(b"PK nonsense")
    with pytest.raises(UsageError, match="damaged"):
        Lfw().load(tmp_path)
    with zipfile.ZipFile(tmp_path / "lfw64.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("lfw64/A/a.png", bytes(1 << 25))
    with pytest.raises(UsageError, match="unpacks to"):
        Lfw().load(tmp_path)


def test_too_few_people_and_broken_pictures_are_refused(tmp_path: Path) -> None:
    archive(tmp_path / "lfw64.zip", {"Bo": 3, "Ann": 4}, **{"lfw64/Ann/zz.png": picture(1)[:30]})
    with pytest.raises(UsageError, match="lower min_images"):
        Lfw(min_images=4).load(tmp_path)
    with pytest.raises(UsageError, match=r"zz\.png is not a readable image"):
        Lfw(min_images=3).load(tmp_path)
    with pytest.raises(UsageError, match="min_images"):
        DATASETS.build("lfw:min_images=0")


def test_the_shared_archive_has_the_people_its_readme_counts(shared_data: Path) -> None:
    data = Lfw(min_images=60).load(shared_data)
    assert data.shape == (3, 64, 64)
    assert bool((data.labels.bincount() >= 60).all())
    assert "George_W_Bush" in data.classes
    bush = data.classes.index("George_W_Bush")
    assert int((data.labels == bush).sum()) == 530  # as in Huang et al. (2007)
    assert torch.isfinite(data.images).all()
