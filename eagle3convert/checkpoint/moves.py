"""Moving and comparing bytes: by the kernel where it can, through one small buffer where it cannot."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final

from eagle3convert.checkpoint.compare import Comparer as Comparer
from eagle3convert.checkpoint.compare import first_difference as first_difference
from eagle3convert.checkpoint.stored import DataFile

BUFFER_BYTES: Final = 256 * 1024
"""The size at which a buffer stays in the processor's cache between being filled and being used."""

STEP_BYTES: Final = 64 * 1024 * 1024
"""Bytes asked of one kernel call, so that a signal or a progress bar never waits for a whole file."""

PAGE: Final = 4096

BLOCK: Final = 64 * 1024
"""What the kernel moves at a time; a copy that starts at such a boundary of the output is a third faster."""

_NOT_POSSIBLE: Final = frozenset(
    {
        errno.EXDEV,
        errno.EINVAL,
        errno.ENOSYS,
        errno.EOPNOTSUPP,
        errno.ENOTSUP,
        errno.EBADF,
        errno.ETXTBSY,
        errno.EPERM,
        errno.EIO,
    }
)
"""What a kernel or file system answers to a copy that it does not do; the next method then tries."""

Mover = Callable[[int, int, int, int, int], int]
"""Moves up to length bytes (source, offset, destination, offset, length); returns how many it moved."""


class SourceTooShortError(Exception):
    """The source ended before the bytes that were asked of it; ``args[0]`` is the offset of its end."""


def _by_copy_file_range(src: int, src_start: int, dst: int, dst_start: int, length: int) -> int:
    return os.copy_file_range(src, dst, length, src_start, dst_start)


def _by_sendfile(src: int, src_start: int, dst: int, dst_start: int, length: int) -> int:
    os.lseek(dst, dst_start, os.SEEK_SET)
    return os.sendfile(dst, src, src_start, length)


class _ByBuffer:
    """Moves through one buffer that is filled again and again."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(BUFFER_BYTES))

    def __call__(self, src: int, src_start: int, dst: int, dst_start: int, length: int) -> int:
        part = self._view[: min(length, BUFFER_BYTES)]
        got = os.preadv(src, [part], src_start)
        write_all(dst, part[:got], dst_start)
        return got


def write_all(fd: int, data: bytes | memoryview, start: int) -> None:
    """Writes the whole of ``data`` at the offset ``start``."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, start)
        view = view[done:]
        start += done


class Copier:
    """Copies ranges between files, remembering which method the file systems at hand allow."""

    def __init__(self, progress: Callable[[int], None] | None = None) -> None:
        self._progress = progress
        self._movers: list[Mover] = []
        if hasattr(os, "copy_file_range"):
            self._movers.append(_by_copy_file_range)
        if hasattr(os, "sendfile"):
            self._movers.append(_by_sendfile)
        self._movers.append(_ByBuffer())

    def copy_range(self, src_fd: int, src_start: int, dst_fd: int, dst_start: int, length: int) -> None:
        """Copies ``length`` bytes; raises SourceTooShortError where the source has fewer, or OSError."""
        done = 0
        # The part before a boundary goes alone: what follows is then moved in whole pages, and in as few as
        # there are, and a file system that can share extents shares it.
        head = -dst_start % BLOCK if (src_start - dst_start) % PAGE == 0 else 0
        while done < length:
            step = min(length - done, STEP_BYTES)
            if done < head:
                step = min(step, head - done)
            moved = self._move(src_fd, src_start + done, dst_fd, dst_start + done, step)
            done += moved
            if self._progress is not None:
                self._progress(moved)

    def _move(self, src_fd: int, src_start: int, dst_fd: int, dst_start: int, length: int) -> int:
        while True:
            last = len(self._movers) == 1
            try:
                moved = self._movers[0](src_fd, src_start, dst_fd, dst_start, length)
            except OSError as error:
                if last or error.errno not in _NOT_POSSIBLE:
                    raise
                moved = 0
            if moved:
                return moved
            if last:
                raise SourceTooShortError(src_start)
            # Some file systems answer 0 where they mean that they cannot: only a plain read knows the end.
            del self._movers[0]

    def copy_from(self, file: DataFile, start: int, dst_fd: int, dst_start: int, length: int) -> None:
        """Copies ``length`` bytes of ``file``, with or without a descriptor; errors as ``copy_range``."""
        fd = file.fileno()
        if fd is not None:
            self.copy_range(fd, start, dst_fd, dst_start, length)
            return
        buffer = memoryview(bytearray(min(length, BUFFER_BYTES)))
        done = 0
        while done < length:
            part = buffer[: min(length - done, BUFFER_BYTES)]
            file.readinto(start + done, part)
            write_all(dst_fd, part, dst_start + done)
            done += len(part)
            if self._progress is not None:
                self._progress(len(part))


def copy_range(src_fd: int, src_start: int, dst_fd: int, dst_start: int, length: int) -> None:
    """Copies ``length`` bytes from one file into another by the fastest method that works between the two.

    Raises SourceTooShortError where the source ends early and OSError for what no method gets around.
    """
    Copier().copy_range(src_fd, src_start, dst_fd, dst_start, length)
