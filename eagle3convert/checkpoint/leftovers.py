"""Temporary folders that an earlier run could not remove because it was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path


def temporary_name(name: str) -> str:
    """A fresh name beside an output folder ``name``, which tells the process that it belongs to."""
    return f".{name}.tmp-{os.getpid()}-{os.urandom(4).hex()}"


def lock(folder: Path) -> int | None:
    """A descriptor that marks ``folder`` as in use while it is open, or None where locks do not work.

    The process id alone does not tell whether a folder is in use: containers number their processes apart.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def remove_tree(folder: Path) -> bool:
    """Removes a folder with everything in it, as far as that is possible; whether it is gone."""
    import shutil  # only when there is something to remove: it imports every compression there is

    shutil.rmtree(folder, ignore_errors=True)
    return not os.path.lexists(folder)


def sweep(out: Path) -> list[str]:
    """Clears away the temporary folders of ``out`` whose process is dead; returns a sentence for each.

    Where the process died between moving the old ``out`` aside and putting the new one in its place, the old
    one is put back.
    """
    pattern = re.compile(rf"\.{re.escape(out.name)}\.tmp-(\d+)-[0-9a-f]{{8}}(\.old)?")
    done = []
    for name in sorted(os.listdir(out.parent)):
        match = pattern.fullmatch(name)
        if match is None or _alive(int(match[1])):
            continue
        folder = out.parent / name
        held = lock(folder)
        if held is None:
            continue
        try:
            if match[2] and not os.path.lexists(out):
                folder.rename(out)
                done.append(f"{out}: put back in its place, where a run that was killed had moved it aside.")
            elif remove_tree(folder):
                done.append(f"{folder}: left by a run that was killed; removed.")
            else:
                done.append(f"{folder}: left by a run that was killed; could not be removed, remove it yourself.")
        except OSError as error:
            done.append(f"{folder}: left by a run that was killed, and could not be removed ({error.strerror}).")
        finally:
            with contextlib.suppress(OSError):
                os.close(held)
    return done


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
