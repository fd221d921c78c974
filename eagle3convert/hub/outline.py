"""A repo's folder laid out on this machine by its outline: names and sizes all there, of large files only headers.

The large files are sparse: they have their full length and hold the bytes that a checkpoint is opened by, nothing
else. So every check of a local folder (strays, shards, damaged headers) is made of a remote one by the same code.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import tempfile
import weakref
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from eagle3convert.checkpoint.layout import TORCH_ENDINGS, is_trainer_file
from eagle3convert.checkpoint.safetensors import MAX_HEADER_BYTES
from eagle3convert.checkpoint.stored import DataFile
from eagle3convert.hub.errors import HubError
from eagle3convert.hub.remote_file import RemoteFile

WHOLE_BYTES: Final = 4 << 20
"""The largest JSON file that is fetched whole; an index of many thousand tensors stays far below."""

_LOCAL_ENTRY: Final = 30  # bytes of a zip entry's own header, before its name


class OutlineFolder:
    """A temporary folder for an outline; it goes when it is removed, when nothing refers to it, or when Python ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="eagle3convert-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def lay_out(folder: Path, files: Mapping[str, RemoteFile], subfolders: frozenset[str]) -> None:
    """Writes the outline of ``files`` (by their names in the folder) into ``folder``.

    Raises HubError where a file cannot be opened by parts of it.
    """
    for name in subfolders:
        (folder / name).mkdir(parents=True, exist_ok=True)
    safetensors = any(name.endswith(".safetensors") for name in files)
    for name, file in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".safetensors"):
            _sparse(place, file.size, _header_ranges(file))
        elif name.endswith(".json") and file.size <= WHOLE_BYTES:
            place.write_bytes(file.read(0, file.size))
        elif name.endswith(TORCH_ENDINGS) and not safetensors and not is_trainer_file(name):
            _sparse(place, file.size, _zip_ranges(file))
        elif name == "config.json":
            raise HubError(f"{file.name}: {file.size} bytes are no config.json. Give the repo of a drafter.")
        else:
            _sparse(place, file.size, {})


def _sparse(place: Path, size: int, ranges: Mapping[int, bytes]) -> None:
    """A file of ``size`` bytes that holds ``ranges`` (offset: bytes) and takes room for nothing else."""
    with place.open("wb") as file:
        for start, data in ranges.items():
            file.seek(start)
            file.write(data)
        os.truncate(file.fileno(), size)


def _header_ranges(file: RemoteFile) -> dict[int, bytes]:
    """The length and the header of a safetensors file; of anything else its first bytes, which tell what it is."""
    start = file.read(0, min(64, file.size))
    if len(start) >= 8:
        (length,) = struct.unpack("<Q", start[:8])
        if length <= min(MAX_HEADER_BYTES, file.size - 8):
            return {0: file.read(0, 8 + length)}
    return {0: start}


def _zip_ranges(file: RemoteFile) -> dict[int, bytes]:
    """The directory, the entries' own headers and the pickle of a torch.save zip."""
    start = file.read(0, min(64, file.size))
    if not start.startswith(b"PK\x03\x04"):
        if start.startswith((b"\x80\x02", b"\x80\x04")):
            raise in_parts(file)
        return {0: start}
    window = Window(file)
    try:
        with zipfile.ZipFile(window) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, struct.error):
        return {0: start}  # the reader of the outline says what is wrong with it
    ranges = dict(window.seen)
    for info in infos:
        length = min(_LOCAL_ENTRY + 2 * len(info.orig_filename) + 128, file.size - info.header_offset)
        if info.filename.endswith(("/data.pkl", "/byteorder", "/version")):
            length = min(length + info.file_size, file.size - info.header_offset)
        if length > 0:
            ranges[info.header_offset] = file.read(info.header_offset, length)
    return ranges


def in_parts(file: RemoteFile | DataFile) -> HubError:
    """The error for a file that can only be read whole."""
    return HubError(
        f"{file.name}: is in a form of torch.save that can only be read whole. Download the drafter first "
        "(`hf download`) and give its folder."
    )


class Window(io.RawIOBase):
    """A remote file as a seekable stream; ``seen`` keeps what was read through it, by offset."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._at = 0
        self.seen: dict[int, bytes] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        if base + offset < 0:
            raise OSError(f"seek to {base + offset}")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._file.size - self._at, 0)
        length = left if size is None or size < 0 else min(size, left)
        data = self._file.read(self._at, length)
        if data:
            self.seen[self._at] = data
        self._at += length
        return data
