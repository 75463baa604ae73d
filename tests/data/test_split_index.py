from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.data.split_index import read_index, write_index
from leakscope.data.splits import SplitPlan
from leakscope.data.toyfaces import ToyFaces


@pytest.fixture(scope="module")
def faces() -> ImageSet:
    return ToyFaces(identities=6, images=10, size=16).load(None)


def written(faces: ImageSet, path: Path, **changes: Any) -> Path:
    write_index(SplitPlan(**changes).index(faces, 0), faces, path)
    return path


@pytest.mark.parametrize("by_identity", [False, True])
def test_what_is_written_is_read_again(faces: ImageSet, tmp_path: Path, by_identity: bool) -> None:
    path = written(faces, tmp_path / "new" / "splits.json", by_identity=by_identity)
    expected = SplitPlan(by_identity=by_identity).draw(faces, 0)
    found = read_index(faces, path)
    assert found.digest() == expected.digest()
    assert found.public.classes == expected.public.classes
    assert [item.name for item in path.parent.iterdir()] == ["splits.json"]  # no temporary file is left


def edited(path: Path, name: str, indices: list[Any], digest: str | None = None) -> None:
    plain = json.loads(path.read_text())
    plain["splits"][name]["indices"] = indices
    plain["splits"][name]["sha256"] = digest or plain["splits"][name]["sha256"]
    path.write_text(json.dumps(plain))


def test_other_positions_than_were_hashed_are_refused(faces: ImageSet, tmp_path: Path) -> None:
    path = written(faces, tmp_path / "s.json")
    edited(path, "public", [0, 1, 2])
    with pytest.raises(UsageError, match="public images are not those"):
        read_index(faces, path)


@pytest.mark.parametrize("outside", [60, -1])
def test_positions_outside_the_set_are_refused(faces: ImageSet, tmp_path: Path, outside: int) -> None:
    path = written(faces, tmp_path / "s.json")
    edited(path, "heldout", [outside])
    with pytest.raises(UsageError, match="points outside the 60 images"):
        read_index(faces, path)


def test_changed_pixels_or_labels_are_refused(faces: ImageSet, tmp_path: Path) -> None:
    path = written(faces, tmp_path / "s.json")
    darker = ImageSet(faces.images * 0.5, faces.labels, faces.classes)
    swapped = ImageSet(faces.images, faces.labels.flip(0), faces.classes)
    for other in (darker, swapped):
        with pytest.raises(UsageError, match="not those it was written for"):
            read_index(other, path)


def test_another_set_is_refused_even_where_the_parts_agree(faces: ImageSet, tmp_path: Path) -> None:
    path = written(faces, tmp_path / "s.json")
    longer = ImageSet(
        torch.cat([faces.images, faces.images[:1]]), torch.cat([faces.labels, faces.labels[:1]]), faces.classes
    )
    with pytest.raises(UsageError, match="another data set"):
        read_index(longer, path)


def test_overlapping_parts_are_refused(faces: ImageSet, tmp_path: Path) -> None:
    path = written(faces, tmp_path / "s.json")
    private = json.loads(path.read_text())["splits"]["private"]
    edited(path, "public", private["indices"], private["sha256"])
    with pytest.raises(UsageError, match="share an image"):
        read_index(faces, path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"splits": {"private": 3}}', "\udcff"])
def test_nonsense_is_refused(faces: ImageSet, tmp_path: Path, text: str) -> None:
    (tmp_path / "s.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match="split file"):
        read_index(faces, tmp_path / "s.json")
    with pytest.raises(UsageError, match="is missing"):
        read_index(faces, tmp_path / "absent.json")


def test_indices_that_are_no_whole_numbers_are_refused(faces: ImageSet, tmp_path: Path) -> None:
    path = written(faces, tmp_path / "s.json")
    edited(path, "private", [1.5, True])
    with pytest.raises(UsageError, match="whole numbers"):
        read_index(faces, path)
