"""The file of a pack: the same bytes for the same entries, and nothing that was saved is lost by saving again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakscope.cli import app, run
from leakscope.core.errors import UsageError
from leakscope.store import Store
from leakscope.store.pack import Packed, read_pack, write_pack
from leakscope.studies.packed import FORMS, pack, unpack

from ..security.pack_samples import KEY, VALUES, entries


def test_the_same_entries_are_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    both = entries()
    size = write_pack(tmp_path / "one", both)
    write_pack(tmp_path / "two", both[::-1])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert size == (tmp_path / "one").stat().st_size
    read = read_pack(tmp_path / "one", FORMS)
    assert all(own.same(back) for own, back in zip(both, read, strict=True))


def test_what_is_unpacked_is_what_was_put_and_packs_to_the_same_bytes(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for own in entries():
        store.put(own.kind, own.key, own.record, own.tensors or None)
    written = pack(store, tmp_path / "first")
    assert (written.kinds, written.left_out) == ({"result": 1, "target": 1}, ())
    taken = unpack(tmp_path / "first", tmp_path / "new")
    assert (taken.added, taken.there, taken.differing) == (2, 0, ())
    found = Store(tmp_path / "new")
    for own in entries():
        before, after = store.get(own.kind, own.key), found.get(own.kind, own.key)
        assert before is not None
        assert after is not None
        assert before.record == after.record
    pack(found, tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    again = unpack(tmp_path / "first", tmp_path / "new")
    assert (again.added, again.there) == (0, 2)


def test_a_store_keeps_its_own_where_a_pack_says_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, on = entries()
    other = Packed(own.kind, own.key, own.record, {**own.tensors, "leak": VALUES / 2})
    write_pack(tmp_path / "theirs", [other, on])
    store = Store(tmp_path / "store")
    store.put(own.kind, own.key, own.record, own.tensors)
    assert run(app, ["store", "unpack", str(tmp_path / "theirs"), "--store", str(store.root)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [
        f"1 entries added to {store.root}, 0 were there",
        f"1 are other than those of {store.root}, which keeps its own: result {KEY}",
    ]
    kept = store.get("result", KEY)
    assert kept is not None
    assert torch.equal(kept.tensors()["leak"], VALUES)


def test_a_new_store_does_not_take_the_place_of_what_was_saved(tmp_path: Path) -> None:
    write_pack(tmp_path / "saved", entries())
    before = (tmp_path / "saved").read_bytes()
    own, _ = entries()
    store = Store(tmp_path / "store")
    with pytest.raises(UsageError, match="has no results to pack"):
        pack(store, tmp_path / "saved")
    store.put(own.kind, own.key, own.record, own.tensors)
    with pytest.raises(UsageError, match=r"has 1 entries that .* has not; unpack it into that store first"):
        pack(store, tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == before
    unpack(tmp_path / "saved", store.root)
    pack(store, tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == before
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="is no pack"):
        pack(store, tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_what_is_larger_than_scores_is_not_packed(tmp_path: Path) -> None:
    own, _ = entries()
    large = Packed("result", KEY, own.record, {"leak": torch.zeros(1_000_001)})
    store = Store(tmp_path / "store")
    store.put(large.kind, large.key, large.record, large.tensors)
    for write in (lambda: write_pack(tmp_path / "pack", [large]), lambda: pack(store, tmp_path / "pack")):
        with pytest.raises(UsageError, match=r"'leak' of result a+ has 1,000,001 numbers") as caught:
            write()
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "pack").exists()


def test_what_no_report_reads_is_left_out_with_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, on = entries()
    store = Store(tmp_path / "store")
    store.put(own.kind, own.key, own.record, own.tensors)
    store.put(on.kind, on.key, on.record)
    store.put("result", "c" * 24, {})  # without scores
    store.put("target", "d" * 24, {"accuracy": 0.9})  # as another version wrote it
    store.put("prepared", "e" * 24, {}, {"matrix": VALUES})
    assert run(app, ["store", "pack", str(tmp_path / "pack"), "--store", str(store.root)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{tmp_path / 'pack'}: 1 results on 1 targets, 2 entries (")
    assert second.startswith("2 entries are none that reports read, and were left out: result cccc")
    assert {(one.kind, one.key) for one in read_pack(tmp_path / "pack", FORMS)} == {(own.kind, KEY), (on.kind, on.key)}


def test_a_damaged_entry_is_not_packed(tmp_path: Path) -> None:
    own, on = entries()
    store = Store(tmp_path / "store")
    store.put(on.kind, on.key, on.record)
    store.put(own.kind, "c" * 24, {"summary": {**own.record["summary"], "key": "c" * 24}}, own.tensors)
    path = store.put(own.kind, own.key, own.record, own.tensors).folder / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert pack(store, tmp_path / "pack").kinds == {"result": 1, "target": 1}
