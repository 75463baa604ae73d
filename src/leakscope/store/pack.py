"""A pack: entries without weights and pictures in one small file, which a store elsewhere takes in again.

It is an xz stream of one safetensors file, so that `xz -dc` and any reader of safetensors open it:

    records          bytes: lines of JSON; first the format, then {"key": …, "kind": …, "record": …}, sorted
    KIND/KEY/NAME    the tensors of an entry

All entries are one stream because those of a study repeat each other; the same entries give the same bytes.
Whoever reads a pack trusts nothing in it: no name becomes a path, nothing is unpickled, and nothing larger than
`LARGEST` is unpacked.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from leakscope.core.durable import replace_durably
from leakscope.core.errors import UsageError, said_by
from leakscope.core.files import require_file
from leakscope.store.entry import require_names

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "leakscope/pack/1"
#: Bytes of a pack once it is unpacked: some ten thousand results.
LARGEST = 1 << 28
#: Bytes of the list of its tensors; entries; numbers of a tensor, which has one for each victim.
_LONGEST_LIST, MOST_ENTRIES, MOST_NUMBERS = 1 << 25, 200_000, 1_000_000
#: For numbers of four bytes beside text; readers need as much memory as the dictionary has.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 24, "lc": 0, "lp": 2, "pb": 2}]
_MEMORY, _AT_ONCE = 1 << 26, 1 << 20
_RECORDS = "records"


@dataclass(frozen=True)
class Packed:
    """One entry as a pack holds it."""

    kind: str
    key: str
    record: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @property
    def line(self) -> bytes:
        """Kind, key and record, always in the same order; `ValueError` for what is no JSON."""
        plain = {"key": self.key, "kind": self.kind, "record": self.record}
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    def same(self, other: Packed) -> bool:
        """Whether both say the same, to the last bit."""
        return (
            self.line == other.line
            and self.tensors.keys() == other.tensors.keys()
            and all(_alike(own, other.tensors[name]) for name, own in self.tensors.items())
        )


def _alike(one: Tensor, other: Tensor) -> bool:
    import torch

    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: Tensor) -> Tensor:
    """Bits and not numbers: no NaN is equal to itself."""
    import torch

    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8)


def require_small(entry: Packed) -> None:
    """Refuse tensors that have more numbers than there are victims: they are no scores."""
    for name, tensor in entry.tensors.items():
        if tensor.numel() > MOST_NUMBERS:
            raise UsageError(
                f"{name!r} of {entry.kind} {entry.key} has {tensor.numel():,} numbers, more than scores of victims "
                f"have ({MOST_NUMBERS:,}); audit fewer victims, or delete that entry"
            )


def write_pack(path: Path, entries: Iterable[Packed]) -> int:
    """Write a pack, whole or not at all; gives its bytes."""
    import torch
    from safetensors.torch import save

    ordered = sorted(entries, key=lambda entry: (entry.kind, entry.key))
    tensors = {}
    for entry in ordered:
        require_small(entry)
        for name, tensor in entry.tensors.items():
            tensors[f"{entry.kind}/{entry.key}/{name}"] = tensor.detach().cpu().contiguous()
    lines = [json.dumps({"format": FORMAT}).encode(), *(entry.line for entry in ordered)]
    tensors[_RECORDS] = torch.frombuffer(bytearray(b"\n".join(lines)), dtype=torch.uint8)
    content = save(tensors)
    if len(content) > LARGEST or len(ordered) > MOST_ENTRIES:
        raise UsageError(
            f"{len(ordered):,} entries with {len(content) >> 20} MB are more than a pack holds ({MOST_ENTRIES:,}, "
            f"{LARGEST >> 20} MB); keep trials in stores of their own, or throw old results away"
        )
    compressed = lzma.compress(content, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, filters=_FILTERS)
    try:
        replace_durably(path, compressed)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; name another file") from None
    return len(compressed)


def read_pack(path: Path, kinds: Collection[str]) -> list[Packed]:
    """Everything in a pack of entries of these kinds; any other file is refused in one line."""
    try:
        content = _unpacked(require_file(path))
        entries = _entries(*_parts(content), kinds)
    except FileNotFoundError:
        raise UsageError(f"there is no {path}; check the path") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; check the path") from None
    except (ValueError, lzma.LZMAError, RecursionError, MemoryError) as error:
        refuse(path, said_by(error) or type(error).__name__)
    return entries


def refuse(path: Path, why: str) -> NoReturn:
    raise UsageError(f"{path} is no pack, or a damaged one ({why[:300]}); nothing was taken from it: get it again")


def _unpacked(path: Path) -> bytes:
    """The content of one xz stream that is neither too large nor too short."""
    if path.stat().st_size > LARGEST:
        raise ValueError(f"it has more than {LARGEST >> 20} MB")
    reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MEMORY)
    content = bytearray()
    with path.open("rb") as file:
        while not reader.eof:
            piece = file.read(_AT_ONCE) if reader.needs_input else b""
            if reader.needs_input and not piece:
                raise ValueError("it ends too early")
            content += reader.decompress(piece, max_length=_AT_ONCE)
            if len(content) > LARGEST:
                raise ValueError(f"it unpacks to more than {LARGEST >> 20} MB")
        if reader.unused_data or file.read(1):
            raise ValueError("something follows its end")
    return bytes(content)


def _parts(content: bytes) -> tuple[list[bytes], dict[str, Tensor]]:
    """The lines of its records, and its tensors."""
    import torch
    from safetensors.torch import load

    if int.from_bytes(content[:8], "little") > _LONGEST_LIST:
        raise ValueError("the list of its tensors is too long")
    try:
        tensors: dict[str, Tensor] = load(content)
    except Exception as error:  # whatever a made-up file does to a reader
        raise ValueError(said_by(error)) from None
    records = tensors.pop(_RECORDS, None)
    if records is None or records.dtype != torch.uint8:
        raise ValueError("it has no records")
    first, *lines = records.flatten().numpy().tobytes().split(b"\n", MOST_ENTRIES + 1)
    if _read(first) != {"format": FORMAT}:
        raise ValueError(f"its format is not {FORMAT}; if a newer Leakscope wrote it, upgrade")
    return lines, tensors


def _entries(lines: list[bytes], tensors: dict[str, Tensor], kinds: Collection[str]) -> list[Packed]:
    """The entries, when every name, kind and size is one that a pack may have."""
    if len(lines) > MOST_ENTRIES:
        raise ValueError(f"it has more than {MOST_ENTRIES:,} entries")
    own: dict[tuple[str, str], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        key, _, last = rest.partition("/")
        if tensor.numel() > MOST_NUMBERS:
            raise ValueError(f"its tensor {name[:80]!r} has {tensor.numel():,} numbers")
        own.setdefault((kind, key), {})[last] = tensor
    found = []
    for line in lines:
        match _read(line):
            case {"key": str(key), "kind": str(kind), "record": dict(record), **more} if not more:
                _require_kind(kind, key, kinds)
                found.append(Packed(kind, key, record, own.pop((kind, key), {})))
                _ = found[-1].line  # numbers beyond all bounds are no JSON
            case _:
                raise ValueError("a line of its records is none")
    if len({(entry.kind, entry.key) for entry in found}) < len(found):
        raise ValueError("it has two entries of one key")
    if own:
        raise ValueError(f"it has tensors of no entry ({'/'.join(next(iter(own)))[:80]!r})")
    return found


def _require_kind(kind: str, key: str, kinds: Collection[str]) -> None:
    try:
        require_names(kind, key)
    except UsageError as error:
        raise ValueError(said_by(error)) from None
    if kind not in kinds:
        raise ValueError(f"it has an entry {kind!r}, and a pack holds nothing but {', '.join(sorted(kinds))}")


def _read(line: bytes) -> object:
    def refuse_number(text: str) -> NoReturn:
        raise ValueError(f"{text} is no number of JSON")

    return json.loads(line, parse_constant=refuse_number)
