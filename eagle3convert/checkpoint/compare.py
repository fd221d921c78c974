"""Comparing the bytes of stored tensors where they lie, in constant memory."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any, Final

from eagle3convert.checkpoint.stored import StoredTensor, ended_early
from eagle3convert.errors import CheckpointError

WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes of each file that are mapped at a time; more is no faster and counts as memory in use."""

SMALL_BYTES: Final = 64 * 1024
"""Up to here reading costs less than mapping."""

_PAGE: Final = mmap.ALLOCATIONGRANULARITY


class _Libc:
    """The calls of the C library that map and compare memory without copying it into Python objects."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.mmap: Any = libc.mmap
        self.mmap.restype = ctypes.c_void_p
        self.mmap.argtypes = (
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int64,
        )
        self.munmap: Any = libc.munmap
        self.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self.memcmp: Any = libc.memcmp
        self.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Window:
    """A stretch of a file, mapped; ``address`` is where its first byte is, None if mapping failed."""

    __slots__ = ("_base", "_length", "_libc", "address")

    def __init__(self, libc: _Libc, tensor: StoredTensor, fd: int, start: int, length: int) -> None:
        # A byte past the end of a file that shrank would end the program with SIGBUS, not with a sentence.
        size = os.fstat(fd).st_size
        if start + length > size:
            raise CheckpointError(ended_early(tensor.file.name, size, start + length - size))
        lead = start % _PAGE
        self._libc, self._length = libc, length + lead
        base = libc.mmap(None, self._length, mmap.PROT_READ, mmap.MAP_PRIVATE, fd, start - lead)
        self._base: int | None = None if base == ctypes.c_void_p(-1).value else base
        self.address: int | None = None if self._base is None else self._base + lead

    def close(self) -> None:
        if self._base is not None:
            self._libc.munmap(self._base, self._length)
            self._base = self.address = None


class Comparer:
    """Compares stored tensors: mapped where both lie in files, read in pieces where one does not."""

    def __init__(self) -> None:
        self._libc = _Libc()

    def first_difference(self, a: StoredTensor, b: StoredTensor) -> int | None:
        """The first byte, counted within the tensors, at which they differ, or None where they are equal.

        Of two tensors of unequal length the end of the shorter one counts as a difference. Raises
        CheckpointError where a file cannot be read.
        """
        length = min(a.nbytes, b.nbytes)
        for start in range(0, length, WINDOW_BYTES):
            size = min(WINDOW_BYTES, length - start)
            if not self._equal(a, b, start, size):
                return start + _first_unequal(a.read(start, size), b.read(start, size))
        return None if a.nbytes == b.nbytes else length

    def _equal(self, a: StoredTensor, b: StoredTensor, start: int, size: int) -> bool:
        fd_a, fd_b = a.file.fileno(), b.file.fileno()
        if size <= SMALL_BYTES or fd_a is None or fd_b is None:
            return a.read(start, size) == b.read(start, size)
        left = _Window(self._libc, a, fd_a, a.start + start, size)
        try:
            right = _Window(self._libc, b, fd_b, b.start + start, size)
            try:
                if left.address is None or right.address is None:
                    return a.read(start, size) == b.read(start, size)
                return bool(self._libc.memcmp(left.address, right.address, size) == 0)
            finally:
                right.close()
        finally:
            left.close()


def first_difference(a: StoredTensor, b: StoredTensor) -> int | None:
    """The first byte, counted within the tensors, at which two stored tensors differ, or None.

    To compare many tensors make one ``Comparer``.
    """
    return Comparer().first_difference(a, b)


def _first_unequal(left: bytes, right: bytes) -> int:
    """Where two runs of equal length, known to differ, first do so: by halving."""
    low, high = 0, len(left)
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
