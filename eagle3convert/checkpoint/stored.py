"""Tensors that lie in files: where their bytes are, never the bytes themselves."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from eagle3convert.errors import CheckpointError

DTYPE_BYTES: Final[dict[str, int]] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}
"""Bytes of one element, by the dtype names that safetensors headers use."""

SUB_BYTE_DTYPES: Final = frozenset({"F4", "F6_E2M3", "F6_E3M2"})
"""Dtypes whose elements share bytes; they are refused by name because no element of theirs has an address."""

LFS_START: Final = b"version https://git-lfs"


class DataFile(Protocol):
    """A read-only run of bytes with a name for messages; positions are absolute byte offsets."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read(self, start: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``start``; a file that ends earlier is a CheckpointError."""
        ...

    def readinto(self, start: int, target: memoryview) -> int:
        """Fills the whole of ``target`` from ``start`` and returns its length, or CheckpointError."""
        ...

    def fileno(self) -> int | None:
        """The descriptor that a kernel copy can read from, or None where there is none."""
        ...

    def close(self) -> None: ...


class LocalFile:
    """A file on a local disk, opened when it is first read and kept open until ``close``.

    It closes itself when nothing refers to it: plans outlive what opened their files, and a training run makes many.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def __repr__(self) -> str:
        return f"LocalFile({self.name!r})"

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        return os.fstat(self.fileno()).st_size

    def fileno(self) -> int:
        if self._fd is None:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise CheckpointError(cannot_read(self.path, error)) from error
        return self._fd

    def read(self, start: int, length: int) -> bytes:
        try:
            data = os.pread(self.fileno(), length, start)
        except OSError as error:
            raise CheckpointError(cannot_read(self.path, error)) from error
        if len(data) == length:
            return data
        # One pread stops at about 2 GiB and at signals; the rest is read in place.
        whole = bytearray(length)
        whole[: len(data)] = data
        self.readinto(start + len(data), memoryview(whole)[len(data) :])
        return bytes(whole)

    def readinto(self, start: int, target: memoryview) -> int:
        fd = self.fileno()
        done = 0
        while done < len(target):
            try:
                step = os.preadv(fd, [target[done:]], start + done)
            except OSError as error:
                raise CheckpointError(cannot_read(self.path, error)) from error
            if step == 0:
                raise CheckpointError(ended_early(self.name, start + done, len(target) - done))
            done += step
        return done

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class MemoryFile:
    """Bytes already in memory, under a name for messages; the buffer is neither copied nor changed."""

    __slots__ = ("_view", "name")

    def __init__(self, name: str, buffer: bytes | bytearray | memoryview) -> None:
        self.name = name
        self._view = memoryview(buffer).cast("B").toreadonly()

    def __repr__(self) -> str:
        return f"MemoryFile({self.name!r}, {len(self._view)} bytes)"

    @property
    def size(self) -> int:
        return len(self._view)

    def fileno(self) -> int | None:
        return None

    def _part(self, start: int, length: int) -> memoryview:
        part = self._view[start : start + length]
        if len(part) != length:
            raise CheckpointError(ended_early(self.name, start + len(part), length - len(part)))
        return part

    def read(self, start: int, length: int) -> bytes:
        return bytes(self._part(start, length))

    def readinto(self, start: int, target: memoryview) -> int:
        target[:] = self._part(start, len(target))
        return len(target)

    def close(self) -> None:
        """Nothing to close: whoever made the buffer owns it."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor by its place: ``nbytes`` bytes of ``file`` from the absolute offset ``start``, row-major.

    Raises CheckpointError where the dtype is not one of ``DTYPE_BYTES`` or where shape and bytes disagree.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: DataFile
    start: int
    nbytes: int

    def __post_init__(self) -> None:
        itemsize = DTYPE_BYTES.get(self.dtype)
        if itemsize is None:
            raise CheckpointError(unknown_dtype(self.file.name, self.name, self.dtype))
        wanted = math.prod(self.shape) * itemsize
        if wanted != self.nbytes:
            raise CheckpointError(
                f"{self.file.name}: tensor '{self.name}' is said to be {self.dtype} of shape {list(self.shape)}, which "
                f"is {wanted} bytes, but {self.nbytes} bytes are set aside for it. The file was damaged or written by "
                "a faulty program; fetch or save it again."
            )

    @property
    def itemsize(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        """``length`` bytes (all the rest by default) from byte ``start``, counted within this tensor."""
        if length is None:
            length = self.nbytes - start
        if start < 0 or length < 0 or start + length > self.nbytes:
            raise ValueError(f"bytes {start} to {start + length} of a tensor of {self.nbytes} bytes")
        return self.file.read(self.start + start, length)


def cannot_read(path: Path | str, error: OSError) -> str:
    """The sentence for a file that the system does not let us read."""
    if isinstance(error, FileNotFoundError):
        if os.path.islink(path):
            return (
                f"{path}: the link points to '{os.readlink(path)}', which does not exist. The download is incomplete; "
                "fetch the checkpoint again."
            )
        return f"{path}: the file does not exist."
    if isinstance(error, PermissionError):
        return f"{path}: no permission to read the file. Change its mode or run as its owner."
    return f"{path}: the file cannot be read ({error.strerror or error})."


def ended_early(name: str, at: int, missing: int) -> str:
    """The sentence for a file that is shorter than it was when its header was read."""
    return (
        f"{name}: the file ends at byte {at}, {missing} bytes too early; it changed while it was being read. Run again."
    )


def unknown_dtype(name: str, tensor: str, dtype: str) -> str:
    """The sentence for a dtype that no element size is known for."""
    if dtype in SUB_BYTE_DTYPES:
        return (
            f"{name}: tensor '{tensor}' has dtype {dtype}, whose elements are smaller than a byte; such packed tensors "
            "are not converted. Use the drafter before it was quantised."
        )
    return (
        f"{name}: tensor '{tensor}' has dtype {dtype!r}, which is none of {', '.join(DTYPE_BYTES)}. The file was "
        "damaged, or written by a newer program than this one knows."
    )


def foreign_start(name: str, start: bytes) -> str | None:
    """The sentence for a file whose first bytes show that it is a placeholder and no data, or None."""
    if start.startswith(LFS_START):
        return (
            f"{name}: this is a Git LFS pointer, not the file itself: the repository was cloned without its large "
            "files. Run 'git lfs pull' in it, or download the checkpoint again."
        )
    head = start.lstrip()[:15].lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return f"{name}: this is a web page, saved in place of the file. Download the file again."
    return None
