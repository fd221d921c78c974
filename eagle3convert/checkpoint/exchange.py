"""Putting a finished folder in the place of another one in a single step."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path
from typing import Final

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def exchange(new: Path, old: Path) -> None:
    """Swaps two folders of one file system: afterwards ``old`` is the new one, ``new`` the old one.

    The kernel does it in one step where it can. Where it cannot, the old folder is moved aside first, and
    moved back if the new one does not get its place; only a kill between these two moves leaves neither, and
    ``leftovers.sweep`` then brings the old one back. Raises OSError with both folders where they were.
    """
    if _exchange_at_once(new, old):
        return
    aside = new.with_name(f"{new.name}.old")
    old.rename(aside)
    try:
        new.rename(old)
    except BaseException:
        aside.rename(old)
        raise
    aside.rename(new)


def _exchange_at_once(new: Path, old: Path) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):
        call = libc.renameat2
        if call(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE) == 0:
            return True
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM):
            raise OSError(code, os.strerror(code), str(old))
    return False
