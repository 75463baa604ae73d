"""A pack comes from somebody else: whatever is in it, a file that is none ends in one line, and nothing is added."""

from __future__ import annotations

import lzma
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file
from torch import Tensor

from leakscope.cli import app, run
from leakscope.core.errors import UsageError
from leakscope.core.results import to_json
from leakscope.store import pack as format_
from leakscope.store.pack import read_pack, write_pack
from leakscope.studies.packed import FORMS, unpack

from ..auditing.results import target
from .pack_samples import KEY, OTHER, entries, forged, line, said, tensors_of


def refused(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `unpack` says of a file that it does not take; no store is made for it."""
    store = path.with_name("never")
    capsys.readouterr()
    assert run(app, ["store", "unpack", str(path), "--store", str(store)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1, told
    assert all(word in told for word in words), told
    assert not store.exists()
    return told


def test_nothing_unpacked_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pack(tmp_path / "pack", entries())
    monkeypatch.setenv("LEAKSCOPE_STORE_KEY", "k" * 32)
    with pytest.raises(UsageError, match="unset it, and unpack into a store of its own"):
        unpack(tmp_path / "pack", tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_any_content_under_a_right_checksum_is_refused_or_sound(tmp_path: Path) -> None:
    """Bits flipped below the compression, whose checksums then fit: what a person changes, and not a disk."""
    path, store = tmp_path / "pack", tmp_path / "store"
    write_pack(path, entries())
    whole, draw, refusals = lzma.decompress(path.read_bytes()), random.Random(0), []
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(draw.choice((1, 1, 8))):
            bit = draw.randrange(8 * len(whole))
            content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(lzma.compress(content, preset=0))
        try:
            unpack(path, store)
        except UsageError as error:
            refusals.append(str(error))
    assert 100 < len(refusals) < 400
    assert not any("\n" in told for told in refusals)


def test_every_flipped_bit_and_every_shorter_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pack"
    write_pack(path, entries())
    whole, spoilt = path.read_bytes(), tmp_path / "spoilt"
    draw = random.Random(0)
    for _ in range(300):
        bit = draw.randrange(8 * len(whole))
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        spoilt.write_bytes(content)
        with pytest.raises(UsageError):
            read_pack(spoilt, FORMS)
    for length in draw.sample(range(len(whole)), 100):
        spoilt.write_bytes(whole[:length])
        with pytest.raises(UsageError):
            read_pack(spoilt, FORMS)


class Code:
    """Runs when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.exit, ("a pickle was opened",))


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("../../result/record.json", "{}")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("{}"),
        lambda path: path.write_bytes(pickle.dumps(Code())),
        lambda path: path.write_bytes(lzma.compress(pickle.dumps(Code()))),
        lambda path: torch.save({"records": torch.zeros(3)}, path),
        lambda path: save_file({"records": torch.zeros(3, dtype=torch.uint8)}, path),
        lambda path: path.write_bytes(lzma.compress(save({"guess": torch.zeros(3)}))),
        lambda path: path.write_bytes(lzma.compress(save({"records": torch.zeros(3)}))),
        lambda path: path.write_bytes(lzma.compress((1 << 40).to_bytes(8, "little") + b"{}")),
        lambda path: path.write_bytes(lzma.compress((1 << 20).to_bytes(8, "little") + b"[" * (1 << 20))),
        lambda path: path.write_bytes(lzma.compress(b"", format=lzma.FORMAT_ALONE)),
        _zip,
        lambda path: path.mkdir(),
        lambda path: None,
    ],
    ids=[
        "empty", "text", "pickle", "packed pickle", "torch.save", "safetensors", "no records", "records of floats",
        "a list of tensors without end", "a deep list of tensors", "lzma", "zip", "folder", "nothing",
    ],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any) -> None:
    make(tmp_path / "file")
    refused(tmp_path / "file", capsys, str(tmp_path / "file"))


def test_something_behind_a_pack_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pack(tmp_path / "pack", entries())
    whole = (tmp_path / "pack").read_bytes()
    for more in (b"\0", whole):
        (tmp_path / "longer").write_bytes(whole + more)
        refused(tmp_path / "longer", capsys, "something follows its end")


def test_bombs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_, "LARGEST", 1 << 21)
    bomb = tmp_path / "bomb"
    bomb.write_bytes(lzma.compress(bytes(1 << 24)))
    assert bomb.stat().st_size < 5000
    refused(bomb, capsys, "unpacks to more than 2 MB")
    write_pack(tmp_path / "pack", entries())
    monkeypatch.setattr(format_, "_MEMORY", 1 << 20)  # the dictionary that a stream asks for is memory too
    refused(tmp_path / "pack", capsys, "emory usage limit")


def test_too_many_entries_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pack(tmp_path / "pack", entries())
    monkeypatch.setattr(format_, "MOST_ENTRIES", 1)
    refused(tmp_path / "pack", capsys, "more than 1 entries")


RESULT, TARGET = entries()
DEEP = "[" * 50_000 + "]" * 50_000


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ([line(TARGET, kind="../../x")], "not a kind"),
        ([line(TARGET, kind="target/..")], "not a kind"),
        ([line(TARGET, key="../../../../etc/passwd")], "not a key"),
        ([line(TARGET, key="A" * 24)], "not a key"),
        ([line(TARGET, key="a" * 23 + "\n")], "not a key"),
        ([line(TARGET, kind="grid")], "nothing but"),
        ([line(TARGET, kind="trained")], "nothing but"),
        ([line(TARGET, kind="attack")], "nothing but"),
        ([line(TARGET, kind="failure")], "nothing but"),
        ([line(TARGET, kind="evaluator")], "nothing but"),
        ([line(TARGET, kind=["target"])], "a line of its records is none"),
        ([line(TARGET, record=[])], "a line of its records is none"),
        ([line(TARGET, more=1)], "a line of its records is none"),
        ([line(TARGET), line(TARGET)], "two entries of one key"),
        (["5"], "a line of its records is none"),
        (["{"], "Expecting"),
        ([""], "Expecting"),
        ([said("target", f'{{"summary": {DEEP}}}')], "recursion"),
        ([said("silhouette", '{"silhouette": NaN}')], "no number of JSON"),
        ([said("silhouette", '{"silhouette": 1e999}')], "Out of range"),
        ([line(TARGET, key=KEY)], "another target's"),
    ],
)  # fmt: skip
def test_names_and_kinds_of_others_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[Any], word: str
) -> None:
    refused(forged(tmp_path / "pack", lines), capsys, word)


def test_another_format_says_what_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(forged(tmp_path / "pack", [], format="leakscope/pack/2"), capsys, "upgrade")


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({f"result/{KEY}/leak": None}, "do not belong together"),
        ({f"result/{KEY}/guess": torch.zeros(4)}, "do not belong together"),
        ({f"result/{KEY}/leak": torch.zeros(5)}, "for 4 victims"),
        ({f"result/{KEY}/leak": torch.zeros(4, 1)}, "for 4 victims"),
        ({f"result/{KEY}/leak": torch.zeros(1)}, "for 4 victims"),
        ({f"result/{KEY}/leak": torch.zeros(4, dtype=torch.bfloat16)}, "bfloat16"),
        ({f"result/{KEY}/leak": torch.zeros(1_000_001)}, "1,000,001 numbers"),
        ({f"result/{OTHER}/leak": torch.zeros(4)}, "tensors of no entry"),
        ({f"target/{OTHER}/weights": torch.zeros(4)}, "it has tensors"),
        ({"../../x": torch.zeros(4)}, "tensors of no entry"),
        ({"x": torch.zeros(4)}, "tensors of no entry"),
    ],
)
def test_tensors_that_are_no_scores_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Tensor | None], word: str
) -> None:
    tensors = {name: own for name, own in {**tensors_of(RESULT), **changed}.items() if own is not None}
    refused(forged(tmp_path / "pack", [line(RESULT), line(TARGET)], tensors), capsys, word)


NONSENSE: list[Any] = [
    {}, {"summary": {}}, {"summary": None}, {"summary": {"controls": 5}}, {"summary": {"controls": [{}]}},
    {"floors": {"mean": 5}}, {"floors": {"mean": {"leak": {}}}}, {"floors": None}, {"bound": {}}, {"blocks": {}},
    {"blocks": {"victims": 1, "attacks": [{"attack": "a", "result": KEY, "peeled": True, "rows": []},
     {"attack": "b", "result": KEY, "peeled": True, "rows": [{"block": "1", "shape": [1], "error": 0.1,
      "mse": 0.1, "lost": None}]}]}},
    {"fisher": {"layers": ["a"], "profiles": {}}}, {"fisher": {"layers": [], "profiles": {"inversion": [1.0]}}},
    {"epoch_seconds": "fast", "training": {}}, {"epoch_seconds": True, "training": {}}, {"silhouette": "0.5"},
    {"accuracy": None}, {"accuracy": [1]}, {"seconds": 1.0}, {"seconds": "long", "accuracy": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("kind", sorted(FORMS))
def test_no_nonsense_is_an_entry_of_any_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    for record in NONSENSE:
        path = forged(tmp_path / "pack", [{"kind": kind, "key": KEY, "record": record}, line(TARGET)])
        refused(path, capsys, f"its {kind} {KEY}")


def test_a_target_that_is_nonsense_in_one_field_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in to_json(target(OTHER)):
        changed = {"summary": {**TARGET.record["summary"], name: {"not": ["this"]}}}
        if name in {"notes", "identity"}:  # anything: they are the methods' own
            continue
        refused(forged(tmp_path / "pack", [line(TARGET, record=changed)]), capsys, name)


def test_names_in_a_pack_do_not_steer_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(forged(tmp_path / "pack", [line(TARGET, kind="\x1b[2Jx\n")]), capsys, "not a kind")
    assert told.rstrip("\n").isprintable()
