"""Writing safetensors files: untouched bytes moved by the kernel in runs as long as the source allows."""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eagle3convert.checkpoint.layout import SAFETENSORS_FILE, SAFETENSORS_INDEX
from eagle3convert.checkpoint.moves import PAGE, Copier, SourceTooShortError, write_all
from eagle3convert.checkpoint.output import OutputFolder as OutputFolder
from eagle3convert.checkpoint.output import cannot_write
from eagle3convert.checkpoint.safetensors import encode_header
from eagle3convert.checkpoint.stored import DTYPE_BYTES, StoredTensor, ended_early
from eagle3convert.errors import CheckpointError

Progress = Callable[[int], None]
"""Called with the number of data bytes that were written since the last call."""

_NO_FALLOCATE: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV, errno.EPERM})


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor to be written: the bytes of ``source`` as they are, or those that ``chunks`` produces.

    ``chunks`` is called once, when the tensor's turn comes; what it yields must be exactly the bytes of
    ``dtype`` (a safetensors name) and ``shape``. Raises ValueError where there is neither, or where the
    bytes of the source are too many or too few.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: StoredTensor | None = None
    chunks: Callable[[], Iterator[bytes]] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"tensor '{self.name}' cannot be written as {self.dtype!r}")
        if self.chunks is None:
            if self.source is None:
                raise ValueError(f"tensor '{self.name}' has neither a source nor chunks")
            if self.source.nbytes != self.nbytes:
                raise ValueError(
                    f"tensor '{self.name}' has {self.nbytes} bytes, its source '{self.source.name}' "
                    f"{self.source.nbytes}"
                )

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(slots=True)
class _Run:
    """Bytes that lie together in a source and go together into the output: one call to the kernel."""

    source: StoredTensor
    start: int
    length: int
    position: int


def aligned_order(tensors: Sequence[OutputTensor]) -> Sequence[OutputTensor]:
    """The given order where every tensor in it starts at a multiple of its element size; else widest first.

    Readers that map the file make a view of the elements in place, which an odd offset does not allow. A
    source that was written well keeps its order, and so its long runs.
    """
    position = 0
    for tensor in tensors:
        if position % DTYPE_BYTES[tensor.dtype] != 0:
            return sorted(tensors, key=lambda tensor: -DTYPE_BYTES[tensor.dtype])
        position += tensor.nbytes
    return tensors


def write_safetensors(
    path: Path,
    tensors: Sequence[OutputTensor],
    metadata: Mapping[str, str],
    *,
    progress: Progress | None = None,
    durable: bool = True,
) -> None:
    """Writes one new safetensors file; where it cannot, no file is left.

    The tensors are laid out in the given order (see ``aligned_order``), and written in constant memory.
    ``durable`` waits until the bytes are on the disk. Raises OutputError where the file cannot be written (it
    must not exist yet), CheckpointError where a source cannot be read, ValueError where chunks have the wrong
    length.
    """
    tensors = aligned_order(tensors)
    runs = _runs(tensors)
    align_to = _alignment(runs)
    header = encode_header(((t.name, t.dtype, t.shape, t.nbytes) for t in tensors), metadata, align_to)
    total = len(header) + sum(tensor.nbytes for tensor in tensors)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise cannot_write(path, error, total) from error
    try:
        try:
            _reserve(fd, total)
            write_all(fd, header, 0)
            _write_data(fd, len(header), tensors, runs, progress)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise cannot_write(path, error, total) from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _runs(tensors: Sequence[OutputTensor]) -> list[_Run]:
    """The runs of untouched bytes in the order of the output; positions count from the data's start."""
    runs: list[_Run] = []
    position = 0
    for tensor in tensors:
        source, nbytes = tensor.source, tensor.nbytes
        if tensor.chunks is None and source is not None and nbytes:
            last = runs[-1] if runs else None
            if (
                last is not None
                and last.source.file is source.file
                and last.start + last.length == source.start
                and last.position + last.length == position
            ):
                last.length += nbytes
            else:
                runs.append(_Run(source, source.start, nbytes, position))
        position += nbytes
    return runs


def _alignment(runs: list[_Run]) -> int | None:
    """Where the data should start, modulo a page, for the longest run to keep its place within pages.

    A file system that can share extents then copies that run without moving a byte.
    """
    longest = max((run for run in runs if run.source.file.fileno() is not None), key=_length, default=None)
    return None if longest is None else (longest.start - longest.position) % PAGE


def _length(run: _Run) -> int:
    return run.length


def _reserve(fd: int, total: int) -> None:
    """Takes the room for the whole file, so that a full disk is known before a byte is moved.

    The C library's posix_fallocate writes into every block where a file system cannot reserve room; the
    system call itself does not, and is therefore what is called.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "fallocate"):
        return
    call = libc.fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    while call(fd, 0, 0, total) != 0:
        code = ctypes.get_errno()
        if code in _NO_FALLOCATE:
            return
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def _write_data(
    fd: int, data_start: int, tensors: Sequence[OutputTensor], runs: list[_Run], progress: Progress | None
) -> None:
    copier = Copier(progress)
    for run in runs:
        try:
            copier.copy_from(run.source.file, run.start, fd, data_start + run.position, run.length)
        except SourceTooShortError as error:
            end = int(error.args[0])
            raise CheckpointError(ended_early(run.source.file.name, end, run.start + run.length - end)) from error
    position = data_start
    for tensor in tensors:
        if tensor.chunks is not None:
            _write_chunks(fd, position, tensor, tensor.chunks, progress)
        position += tensor.nbytes


def _write_chunks(
    fd: int,
    position: int,
    tensor: OutputTensor,
    chunks: Callable[[], Iterator[bytes]],
    progress: Progress | None,
) -> None:
    """Writes what a tensor's chunks yield, never a byte past the tensor's end."""
    done = 0
    for chunk in chunks():
        if done + len(chunk) > tensor.nbytes:
            raise ValueError(f"tensor '{tensor.name}' was produced longer than its {tensor.nbytes} bytes")
        write_all(fd, chunk, position + done)
        done += len(chunk)
        if progress is not None:
            progress(len(chunk))
    if done != tensor.nbytes:
        raise ValueError(f"tensor '{tensor.name}' was produced with {done} of its {tensor.nbytes} bytes")


def plan_shards(tensors: Sequence[OutputTensor], max_shard_size: int | None) -> list[tuple[str, list[OutputTensor]]]:
    """The files that the tensors are divided into, in order, each with its tensors.

    ``max_shard_size`` counts data bytes; a tensor larger than that has a shard of its own.
    """
    groups: list[list[OutputTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if max_shard_size is not None and groups[-1] and size + tensor.nbytes > max_shard_size:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += tensor.nbytes
    if len(groups) == 1:
        return [(SAFETENSORS_FILE, groups[0])]
    return [
        (f"model-{number:05}-of-{len(groups):05}.safetensors", group) for number, group in enumerate(groups, start=1)
    ]


def write_weights(
    folder: Path,
    tensors: Sequence[OutputTensor],
    metadata: Mapping[str, str],
    max_shard_size: int | None = None,
    progress: Progress | None = None,
    durable: bool = True,
) -> tuple[Path, ...]:
    """Writes all weights into ``folder`` and returns the paths, an index last where there are several shards.

    The metadata goes into every shard. Errors as ``write_safetensors``.
    """
    shards = plan_shards(tensors, max_shard_size)
    paths: list[Path] = []
    for name, group in shards:
        paths.append(folder / name)
        write_safetensors(paths[-1], group, metadata, progress=progress, durable=durable)
    if len(shards) > 1:
        paths.append(folder / SAFETENSORS_INDEX)
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors)},
            "weight_map": {tensor.name: name for name, group in shards for tensor in group},
        }
        _write_text(paths[-1], json.dumps(index, indent=2, ensure_ascii=False) + "\n", durable)
    return tuple(paths)


def _write_text(path: Path, text: str, durable: bool) -> None:
    data = text.encode("utf-8")
    try:
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(path, error, len(data)) from error
