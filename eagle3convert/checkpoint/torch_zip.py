"""The zip that torch.save writes, as a table of byte ranges: nothing is unpacked."""

from __future__ import annotations

import struct
import zipfile
from dataclasses import dataclass
from typing import Final

from eagle3convert.checkpoint.stored import LocalFile
from eagle3convert.errors import CheckpointError

_LOCAL_HEADER: Final = struct.Struct("<4s5H3I2H")
_ENCRYPTED: Final = 0x1
_AGAIN: Final = "The file is damaged or was not made by torch.save; fetch or save it again."


@dataclass(frozen=True, slots=True)
class Entry:
    """The content of one file in the zip: ``size`` bytes from the absolute offset ``start``."""

    start: int
    size: int


def read_entries(file: LocalFile) -> dict[str, Entry]:
    """The files in a torch.save zip by their names below its one folder: ``data.pkl``, ``data/0`` and others.

    Raises CheckpointError where the zip is cut off, compressed or encrypted, where entries overlap or
    repeat, and where its directory and its entries contradict each other.
    """
    try:
        with zipfile.ZipFile(file.path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, struct.error) as error:
        raise CheckpointError(
            f"{file.name}: starts like a zip but has no valid directory at its end ({error}): the file is cut off. "
            "Fetch it again."
        ) from error
    entries: dict[str, Entry] = {}
    roots: set[str] = set()
    end, previous = 0, ""
    for info in sorted(infos, key=lambda info: info.header_offset):
        entry = _entry(file, info)
        if info.header_offset < end:
            raise CheckpointError(f"{file.name}: the entries {previous} and {info.filename} overlap. {_AGAIN}")
        end, previous = entry.start + entry.size, info.filename
        root, _, inner = info.filename.partition("/")
        roots.add(root)
        if not inner or inner in entries or len(roots) > 1:
            raise CheckpointError(
                f"{file.name}: the entry {info.filename!r} is not where torch.save puts one, or is there twice. "
                f"{_AGAIN}"
            )
        entries[inner] = entry
    if "data.pkl" not in entries:
        raise CheckpointError(f"{file.name}: is a zip without data.pkl, so torch.save did not write it. {_AGAIN}")
    if "constants.pkl" in entries:
        raise CheckpointError(
            f"{file.name}: is a TorchScript program, not a state dict. Save model.state_dict() with torch.save."
        )
    return entries


def _entry(file: LocalFile, info: zipfile.ZipInfo) -> Entry:
    """Where an entry's content lies; its own header tells, and must agree with the directory."""
    name = info.filename
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise CheckpointError(
            f"{file.name}: the entry {name} is compressed, and torch.save never compresses. Unpack the outer archive, "
            "or save the drafter again."
        )
    if info.flag_bits & _ENCRYPTED:
        raise CheckpointError(f"{file.name}: the entry {name} is encrypted. Save the drafter again without.")
    size = file.size
    if info.header_offset < 0 or info.header_offset + _LOCAL_HEADER.size > size:
        raise CheckpointError(f"{file.name}: the entry {name} lies outside the file. {_AGAIN}")
    header = _LOCAL_HEADER.unpack(file.read(info.header_offset, _LOCAL_HEADER.size))
    name_length, extra_length = header[9], header[10]
    name_start = info.header_offset + _LOCAL_HEADER.size
    start = name_start + name_length + extra_length
    if start + info.file_size > size:
        raise CheckpointError(f"{file.name}: the entry {name} reaches past the end of the file. {_AGAIN}")
    stored = file.read(name_start, name_length)
    if header[0] != b"PK\x03\x04" or stored != info.orig_filename.encode("utf-8") or name != info.orig_filename:
        raise CheckpointError(
            f"{file.name}: the directory says {name!r} where the entry itself says {stored!r}. {_AGAIN}"
        )
    return Entry(start, info.file_size)
