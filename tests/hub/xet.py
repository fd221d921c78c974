"""The Hub's store for large files as hf_xet itself keeps it in a folder: which file is there under which hash.

hf_xet takes a folder (``local://DIR``) in the place of a server. What it writes there is an internal of its own, of
which only the list of files in a shard is read here; where that changes, the tests that need it are skipped.
"""

from __future__ import annotations

import struct
from pathlib import Path

RECORD = 48
HAS_VERIFICATION, HAS_METADATA = 0x80000000, 0x40000000


def files_in(folder: Path) -> dict[str, str]:
    """sha256 -> Xet hash of every file that was stored in ``folder``."""
    found: dict[str, str] = {}
    for shard in folder.rglob("*"):
        if shard.is_file() and "shard" in str(shard.relative_to(folder)):
            found |= _records(shard.read_bytes())
    return found


def _records(data: bytes) -> dict[str, str]:
    found, at = dict[str, str](), RECORD
    while at + RECORD <= len(data) and data[at : at + 32] != b"\xff" * 32:
        name = _hex(data[at : at + 32])
        flags, count = struct.unpack_from("<II", data, at + 32)
        at += RECORD * (1 + count + (count if flags & HAS_VERIFICATION else 0))
        if flags & HAS_METADATA:
            found[_hex(data[at : at + 32])] = name
            at += RECORD
    return found


def _hex(data: bytes) -> str:
    """A hash as Xet writes it: each 8 bytes are a number."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", data))
