"""What tells that an entry is as it was written: hashes of its files, and a signature when there is a secret.

    seal.json   {"key": …, "kind": …, "record": SHA-256, "tensors": SHA-256 or null, "size": bytes of the tensors,
                 "signature": HMAC-SHA-256 of the above with LEAKSCOPE_STORE_KEY, or null, "seal": SHA-256 of all that}

Hashes find damage, and changes by somebody who does not know them. Somebody who may write to the store can
also write new hashes; only the signature finds that.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from leakscope.core.errors import UsageError

SEAL = "seal.json"
#: The environment variable with the secret.
VARIABLE = "LEAKSCOPE_STORE_KEY"
#: Fewer characters can be guessed.
SHORTEST = 16
#: Files below this are hashed at every read (1 ms for one megabyte); larger ones once for each process.
SMALL = 1 << 23
#: Two writes within this many seconds may carry one time stamp on some disks.
RACY = 3.0

_hashes: dict[tuple[str, int, int, int, int], str] = {}


class Damaged(UsageError):
    """An entry is not as it was written."""

    def __init__(self, folder: Path, why: str) -> None:
        self.reason = f"store entry {folder} is damaged ({why})"
        super().__init__(f"{self.reason}; delete {folder} to compute it again")


def secret() -> bytes | None:
    """What entries are signed with; None: they are not."""
    text = os.environ.get(VARIABLE, "")
    if text and len(text) < SHORTEST:
        raise UsageError(f"{VARIABLE} has {len(text)} characters; make one with: openssl rand -hex 32")
    return text.encode() if text else None


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def proof(content: bytes, key: bytes | None) -> str:
    """The HMAC of `content`, or without a key its hash."""
    return sha256(content) if key is None else hmac.new(key, content, hashlib.sha256).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file; a large one that has not changed since this process hashed it is not read again."""
    with path.open("rb") as file:
        state = os.fstat(file.fileno())
        stamp = (str(path), state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        if stamp in _hashes:
            return _hashes[stamp]
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if state.st_size >= SMALL and abs(time.time() - state.st_mtime) > RACY:
        _hashes[stamp] = found
    return found


@dataclass(frozen=True)
class Seal:
    """The content of `seal.json`."""

    kind: str
    key: str
    record: str
    tensors: str | None
    size: int
    signature: str | None = None

    def signed(self, key: bytes | None) -> Seal:
        if key is None:
            return self
        return Seal(self.kind, self.key, self.record, self.tensors, self.size, proof(self._body(), key))

    def _body(self) -> bytes:
        plain = dict(vars(self))
        del plain["signature"]
        return json.dumps(plain, sort_keys=True).encode()

    def text(self) -> bytes:
        plain = dict(vars(self))
        check = sha256(json.dumps(plain, sort_keys=True).encode())
        return json.dumps({**plain, "seal": check}, sort_keys=True).encode() + b"\n"

    @classmethod
    def parse(cls, text: bytes) -> Seal:
        """The seal with exactly this text; anything else raises `ValueError`."""
        try:
            plain = json.loads(text)
            del plain["seal"]
            seal = cls(**plain)
            same = seal.text() == text
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ValueError("its seal is damaged") from None
        if not same:
            raise ValueError("its seal is damaged")
        return seal

    def require_signature(self, key: bytes | None, folder: Path) -> None:
        """Refuse what was not signed with `key`, when there is one."""
        if key is None:
            return
        if self.signature is None:
            raise UsageError(
                f"{folder} is not signed and {VARIABLE} is set; delete it to compute it again, or unset the variable"
            )
        if not hmac.compare_digest(self.signature, proof(self._body(), key)):
            raise UsageError(
                f"{folder} was signed with another {VARIABLE}, or changed since; delete it to compute it again"
            )
