"""The safetensors header: read with every defect named, and written with a chosen alignment."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from eagle3convert.checkpoint.stored import DataFile, StoredTensor, foreign_start
from eagle3convert.checkpoint.strict_json import parse_object
from eagle3convert.errors import CheckpointError

MAX_HEADER_BYTES: Final = 100_000_000
"""The longest header that the reference implementation reads."""

PAGE: Final = 4096
"""Bytes of a block of the file systems that can share extents between files."""

_AGAIN: Final = "The file is damaged or was not written whole; fetch or save it again."


def read_header(file: DataFile) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors of a safetensors file in the order of their data, and its ``__metadata__``.

    Only the header is read. Raises CheckpointError, naming file and tensor, for every way in which header and
    file do not fit each other.
    """
    size = file.size
    start = file.read(0, min(size, 64))
    foreign = foreign_start(file.name, start)
    if foreign is not None:
        raise CheckpointError(foreign)
    if start.startswith(b"PK\x03\x04"):
        raise CheckpointError(
            f"{file.name}: this is a zip file such as torch.save writes, not safetensors. Name it pytorch_model.bin."
        )
    if size < 10:
        raise CheckpointError(f"{file.name}: {size} bytes long, too short for a safetensors file. {_AGAIN}")
    (length,) = struct.unpack("<Q", start[:8])
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{file.name}: claims a header of {length} bytes, more than the {MAX_HEADER_BYTES} that safetensors "
            f"allows, so it is no safetensors file. {_AGAIN}"
        )
    if 8 + length > size:
        raise CheckpointError(
            f"{file.name}: the header is cut off: it should end at byte {8 + length}, the file ends at byte {size}. "
            f"{_AGAIN}"
        )
    raw = file.read(8, length)
    if not raw.startswith(b"{"):
        raise CheckpointError(
            f"{file.name}: the header does not start with '{{', so it is no safetensors file. {_AGAIN}"
        )
    entries = parse_object(raw, f"{file.name}: the header")
    metadata = _metadata(entries.pop("__metadata__", {}), file.name)
    data_start = 8 + length
    tensors = sorted(
        (_entry(name, entry, file, data_start) for name, entry in entries.items()),
        key=lambda tensor: (tensor.start, tensor.nbytes),
    )
    _check_layout(tensors, file.name, data_start, size)
    return {tensor.name: tensor for tensor in tensors}, metadata


def _metadata(value: Any, name: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise CheckpointError(f"{name}: __metadata__ of the header is not an object of strings. {_AGAIN}")
    return value


def _entry(name: str, entry: Any, file: DataFile, data_start: int) -> StoredTensor:
    """One tensor of the header, its offsets made absolute."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(
            f"{file.name}: the header's entry for tensor '{name}' is not an object of dtype, shape and data_offsets. "
            f"{_AGAIN}"
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise CheckpointError(f"{file.name}: the dtype of tensor '{name}' is {dtype!r}, not a name. {_AGAIN}")
    if not _counts(shape):
        raise CheckpointError(f"{file.name}: the shape of tensor '{name}' is {shape!r}, not a list of sizes. {_AGAIN}")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(
            f"{file.name}: the data_offsets of tensor '{name}' are {offsets!r}, not [begin, end]. {_AGAIN}"
        )
    begin, end = offsets
    return StoredTensor(name, dtype, tuple(shape), file, data_start + begin, end - begin)


def _counts(value: Any) -> bool:
    """Whether a JSON value is a list of non-negative integers (true and false are none)."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(tensors: list[StoredTensor], name: str, data_start: int, size: int) -> None:
    """Every byte after the header belongs to exactly one tensor."""
    position, previous = data_start, "the header"
    for tensor in tensors:
        here = f"tensor '{tensor.name}'"
        if tensor.start < position:
            raise CheckpointError(
                f"{name}: {here} begins at data byte {tensor.start - data_start}, inside {previous}, which ends at "
                f"{position - data_start}; tensors may not overlap. {_AGAIN}"
            )
        if tensor.start > position:
            raise CheckpointError(
                f"{name}: {tensor.start - position} bytes between {previous} and {here} belong to no tensor. {_AGAIN}"
            )
        position, previous = tensor.start + tensor.nbytes, here
    if position > size:
        cut = next(tensor for tensor in tensors if tensor.start + tensor.nbytes > size)
        raise CheckpointError(
            f"{name}: the file is cut off: it should be {position} bytes long and is {size}; tensor '{cut.name}' is "
            "the first that is not whole. The download or the copy was interrupted; fetch the file again."
        )
    if position < size:
        raise CheckpointError(
            f"{name}: {size - position} bytes after the last tensor belong to no tensor; the file should be {position} "
            f"bytes long and is {size}. {_AGAIN}"
        )


def encode_header(
    rows: Iterable[tuple[str, str, tuple[int, ...], int]],
    metadata: Mapping[str, str],
    align_to: int | None = None,
) -> bytes:
    """The header of a file that holds ``rows`` (name, dtype, shape, bytes) in this order, its length first.

    The data that follows starts at a multiple of 8, and at ``align_to`` modulo 4096 where that is given; a
    value that is no multiple of 8 is passed over, since readers map the file and want aligned elements.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, dtype, shape, nbytes in rows:
        if name in entries or name == "__metadata__":
            raise ValueError(f"two tensors would be named '{name}'")
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + nbytes]}
        position += nbytes
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    place, block = (0, 8) if align_to is None or align_to % 8 else (align_to, PAGE)
    padding = (place - 8 - len(text)) % block
    if len(text) + padding > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {len(text)} bytes is more than safetensors allows")
    return struct.pack("<Q", len(text) + padding) + text + b" " * padding
