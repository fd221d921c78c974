"""An output folder that is either there whole or not there at all, whatever ends the program."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Final

from eagle3convert.checkpoint.exchange import exchange
from eagle3convert.checkpoint.leftovers import lock, remove_tree, sweep, temporary_name
from eagle3convert.checkpoint.signals import Signals
from eagle3convert.errors import OutputError

_NO_ROOM: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than the system or a limit (ulimit -f) allows",
}

_OF_A_CHECKPOINT: Final = ("config.json", "eagle3convert.json")


def cannot_write(path: Path, error: OSError, needed: int | None = None) -> OutputError:
    """The error for a file or folder that cannot be written; ``needed`` is its size in bytes."""
    reason = _NO_ROOM.get(error.errno or 0)
    if reason is not None:
        sizes = []
        if needed is not None:
            sizes.append(f"{needed} bytes are needed")
        with contextlib.suppress(OSError):
            status = os.statvfs(path.parent)
            sizes.append(f"{status.f_bavail * status.f_frsize} bytes are free")
        return OutputError(
            f"{path}: cannot be written: {reason} ({', '.join(sizes) or 'sizes unknown'}). Make room or choose another "
            "place; nothing was left behind."
        )
    if isinstance(error, FileExistsError):
        return OutputError(f"{path}: exists already and is not overwritten. Move it away or choose another name.")
    if isinstance(error, PermissionError):
        return OutputError(
            f"{path}: cannot be written: no permission to write into {path.parent}. Choose another place."
        )
    if error.errno == errno.EROFS:
        return OutputError(f"{path}: cannot be written: the file system is read-only. Choose another place.")
    if error.errno == errno.ENAMETOOLONG:
        return OutputError(f"{path}: cannot be written: the name is too long. Choose a shorter one.")
    return OutputError(f"{path}: cannot be written ({error.strerror or error}). Choose another place.")


class OutputFolder:
    """A folder in the making: ``with OutputFolder(out) as tmp`` yields a temporary folder beside ``out``.

    When the block ends well, everything in it is brought to the disk (``durable``) and the folder takes
    the place of ``out`` in one rename. When it ends in any other way (an exception, Ctrl-C, SIGTERM, SIGHUP)
    the temporary folder is removed and ``out`` is as it was. What only a kill -9 leaves behind, the next
    OutputFolder for the same ``out`` clears away.

    ``force`` allows an ``out`` that holds a checkpoint already; it is replaced in one step. ``source`` is
    the folder the conversion reads from, which ``out`` may not be, hold or lie in. ``notes`` are sentences
    about what was cleared away and what could not be. Raises OutputError where ``out`` cannot be made,
    before anything is written.
    """

    def __init__(
        self, out: Path | str, force: bool = False, durable: bool = True, source: Path | str | None = None
    ) -> None:
        # Links are followed, so that a link to the output folder goes on pointing to it.
        self.out = Path(os.path.realpath(out))
        self.notes: list[str] = []
        self._shown = Path(out)
        self._force = force
        self._durable = durable
        self._source = None if source is None else Path(os.path.realpath(source))
        self._made: list[Path] = []
        self._tmp: Path | None = None
        self._lock: int | None = None
        self._signals = Signals()

    def __enter__(self) -> Path:
        self._signals.install()
        try:
            self._check()
            self._make_parents()
            for sentence in sweep(self.out):
                self.notes.append(sentence)
            tmp = self.out.parent / temporary_name(self.out.name)
            self._tmp = tmp
            try:
                tmp.mkdir()
            except OSError as error:
                self._tmp = None
                raise cannot_write(self._shown, error) from error
            self._lock = lock(tmp)
            return tmp
        except BaseException:
            self._signals.hold()
            self._discard()
            self._signals.restore()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # From here on a signal waits: both clearing away and taking the place of OUT are carried through.
        self._signals.hold()
        try:
            if error is None:
                try:
                    self._commit()
                except OSError as failure:
                    raise cannot_write(self._shown, failure) from failure
        finally:
            self._discard()
            self._signals.restore()
        if error is None:
            self._signals.deliver(f"{self._shown} was written, and is whole.")
        if isinstance(error, KeyboardInterrupt) and not error.args:
            raise KeyboardInterrupt("nothing was left behind.") from error

    def _check(self) -> None:
        """Everything about OUT that can be known to be wrong before anything is written."""
        out, shown = self.out, self._shown
        source = self._source
        if source is not None:
            if out == source:
                raise OutputError(f"{shown}: is the folder that is read from. Give another folder for the output.")
            if source in out.parents:
                raise OutputError(
                    f"{shown}: lies inside {source}, the folder that is read from. Give a folder beside it."
                )
            if out in source.parents:
                raise OutputError(
                    f"{shown}: holds {source}, the folder that is read from, and would replace it. Give a folder "
                    "beside it."
                )
        if not os.path.lexists(out):
            return
        if not out.is_dir():
            raise OutputError(f"{shown}: is a file; a folder is written. Give another name.")
        if os.path.ismount(out):
            raise OutputError(
                f"{shown}: is a mount point, which no finished folder can take the place of. Give a folder inside it, "
                f"such as {self._shown / 'drafter'}."
            )
        here = Path(os.path.realpath(Path.cwd()))
        if out == here or out in here.parents:
            raise OutputError(
                f"{shown}: is the current working folder or holds it, and would be replaced. Give a folder inside it."
            )
        self._check_held(out, shown)

    def _check_held(self, out: Path, shown: Path) -> None:
        try:
            held = sorted(os.listdir(out))
        except OSError as error:
            raise cannot_write(shown, error) from error
        if not held:
            return
        if not self._force:
            raise OutputError(
                f"{shown}: exists already and is not empty (it holds {held[0]}). Use --force to replace it, or give "
                "another folder."
            )
        if not any(name in held for name in _OF_A_CHECKPOINT):
            raise OutputError(
                f"{shown}: holds no checkpoint (there is no config.json in it, but {held[0]}), so it is not replaced "
                "even with --force. Delete it yourself, or give another folder."
            )

    def _make_parents(self) -> None:
        missing = []
        parent = self.out.parent
        while not parent.exists():
            missing.append(parent)
            parent = parent.parent
        if not parent.is_dir():
            raise OutputError(f"{self._shown}: {parent} is a file, so no folder can be made in it. Give another place.")
        for folder in reversed(missing):
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                raise cannot_write(self._shown, error) from error
            self._made.append(folder)

    def _commit(self) -> None:
        tmp = self._tmp
        if tmp is None:
            return
        if self._durable:
            _sync_tree(tmp)
        try:
            tmp.rename(self.out)
            self._tmp = None
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            # Either it was there and may be replaced, or another program filled it while we worked.
            self._check_held(self.out, self._shown)
            exchange(tmp, self.out)
        self._made.clear()
        if self._durable:
            _sync_folder(self.out.parent)

    def _discard(self) -> None:
        """Removes what is in the temporary place (after a replacement: the old folder) and made parents."""
        if self._tmp is not None:
            if not remove_tree(self._tmp):
                self.notes.append(f"{self._tmp}: could not be removed; remove it yourself.")
            self._tmp = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._made.clear()


def _sync_tree(folder: Path) -> None:
    """Brings every file in a folder, and the folder itself, to the disk."""
    for place, _, names in os.walk(folder, topdown=False):
        for name in names:
            fd = os.open(Path(place) / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        _sync_folder(Path(place))


def _sync_folder(folder: Path) -> None:
    # Some network file systems have no fsync for folders; the files themselves are safe by then.
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
