"""A drafter on disk, opened by its headers: its config and where each tensor's bytes lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eagle3convert.checkpoint.layout import (
    SAFETENSORS_FILE,
    SAFETENSORS_INDEX,
    TORCH_FILE,
    TORCH_INDEX,
    Folder,
    looks_like_weight,
    no_config,
    no_weights,
    read_folder,
    shard_parts,
)
from eagle3convert.checkpoint.safetensors import read_header
from eagle3convert.checkpoint.sharded import Reader, read_index, read_shards
from eagle3convert.checkpoint.stored import LocalFile, StoredTensor
from eagle3convert.checkpoint.strict_json import parse_object
from eagle3convert.errors import CheckpointError


@dataclass(frozen=True)
class Checkpoint:
    """A drafter as it was found: nothing of its weights is in memory, only the place of each tensor.

    ``tensors`` are in the order of their data, file by file. ``notes`` are full sentences about what was left
    aside. ``container`` is "safetensors", "sharded safetensors", "torch zip" or "memory". Close it, or use it
    in a ``with`` statement, when its tensors are no longer read.
    """

    path: Path
    config: dict[str, Any]
    tensors: dict[str, StoredTensor]
    metadata: dict[str, str]
    files: tuple[Path, ...]
    notes: tuple[str, ...]
    container: str = "memory"
    strays: tuple[str, ...] = ()  # safetensors files beside the drafter's, which hold none of its weights

    @property
    def label(self) -> str:
        """What messages call this drafter."""
        return str(self.path)

    @property
    def is_remote(self) -> bool:
        """Whether reading a tensor means fetching it over a network."""
        return False

    def provenance(self) -> dict[str, Any]:
        """Where the drafter is from, for a receipt."""
        return {"path": str(self.path)}

    def read_note(self) -> str:
        """How much was fetched over a network; empty where nothing was."""
        return ""

    def close(self) -> None:
        _close_all(self.tensors)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close_all(tensors: dict[str, StoredTensor]) -> None:
    for file in {id(tensor.file): tensor.file for tensor in tensors.values()}.values():
        file.close()


@dataclass
class _Weights:
    """What one way of finding the weights yields, before the config joins it."""

    container: str
    files: list[Path]
    tensors: dict[str, StoredTensor]
    metadata: dict[str, str]
    notes: list[str]
    strays: list[str] = field(default_factory=list)


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Opens the drafter in the folder ``path``, reading config.json and headers only.

    Raises CheckpointError, naming the file, for every defect that can be seen without reading weights.
    """
    folder = read_folder(Path(path))
    if "config.json" not in folder.files:
        raise CheckpointError(no_config(folder))
    config = read_config(folder.path / "config.json")
    weights = _find_weights(folder)
    notes = weights.notes
    aside = folder.trainer + folder.adapters
    if aside:
        notes.append(f"{', '.join(aside)}: a trainer's files, not read.")
    return Checkpoint(
        path=folder.path,
        config=config,
        tensors=weights.tensors,
        metadata=weights.metadata,
        files=tuple(weights.files),
        notes=tuple(notes),
        container=weights.container,
        strays=tuple(weights.strays),
    )


def read_config(path: Path) -> dict[str, Any]:
    """The object in a config.json, read strictly."""
    file = LocalFile(path)
    try:
        return parse_object(file.read(0, file.size), str(path))
    finally:
        file.close()


def _find_weights(folder: Folder) -> _Weights:
    """The weights by preference: safetensors by index, one safetensors file, then torch's files likewise."""
    if folder.safetensors_indexes:
        weights = _sharded(folder, _one_index(folder, folder.safetensors_indexes, SAFETENSORS_INDEX), read_header)
        weights.container = "sharded safetensors"
    elif folder.safetensors:
        weights = _single(_single_safetensors(folder), read_header)
        weights.container = "safetensors"
    else:
        return _torch_weights(folder)
    try:
        _check_strays(folder, weights)
    except BaseException:
        _close_all(weights.tensors)
        raise
    if folder.torch:
        names = ", ".join(folder.torch)
        notes = f"{names}: not read, because the safetensors files beside are the same weights in a safer form."
        weights.notes.append(notes)
    return weights


def _one_index(folder: Folder, indexes: tuple[str, ...], usual: str) -> str:
    if usual in indexes:
        return usual
    if len(indexes) > 1:
        raise CheckpointError(
            f"{folder.path}: {indexes[0]} and {indexes[1]} both claim to list the weights, and neither is named "
            f"{usual}. Keep the one that belongs to the drafter."
        )
    return indexes[0]


def _single(path: Path, reader: Reader) -> _Weights:
    file = LocalFile(path)
    try:
        tensors, metadata = reader(file)
    except BaseException:
        file.close()
        raise
    if not tensors:
        file.close()
    return _Weights("", [path], tensors, metadata, [])


def _sharded(folder: Folder, index: str, reader: Reader) -> _Weights:
    shards = read_index(folder.path / index)
    tensors, metadata = read_shards(folder.path, index, shards, reader)
    return _Weights("", [folder.path / name for name in shards], tensors, metadata, [])


def _single_safetensors(folder: Folder) -> Path:
    """The one safetensors file that holds the drafter; whether it is the only one is seen afterwards."""
    name = SAFETENSORS_FILE
    if name not in folder.safetensors:
        name = _only_drafter(folder)
    if shard_parts(name) > 1:
        raise CheckpointError(
            f"{folder.path / name}: the name says that this is one of {shard_parts(name)} shards, but the index that "
            f"lists them ({SAFETENSORS_INDEX}) is not there. Download the whole folder again."
        )
    return folder.path / name


def _only_drafter(folder: Folder) -> str:
    """The only safetensors file, or the only one among several that holds tensors a drafter could load."""
    names = folder.safetensors
    if len(names) == 1:
        return names[0]
    holders = [name for name in names if any(map(looks_like_weight, _names_in(folder.path / name)))]
    if len(holders) == 1:
        return holders[0]
    first, second = (holders or list(names))[:2]
    if shard_parts(first) > 1:
        raise CheckpointError(
            f"{folder.path}: {first} and {second} are shards, but the index that lists them ({SAFETENSORS_INDEX}) is "
            "not there. Download the whole folder again."
        )
    raise CheckpointError(
        f"{folder.path}: {first} and {second} are two files of weights and no index says how they belong together. "
        "Leave only the drafter's file in the folder."
    )


def _names_in(path: Path) -> list[str]:
    file = LocalFile(path)
    try:
        return list(read_header(file)[0])
    finally:
        file.close()


def _check_strays(folder: Folder, weights: _Weights) -> None:
    """Refuses a second safetensors file that a server could load in place of the drafter; notes others."""
    main = SAFETENSORS_INDEX if weights.container.startswith("sharded") else weights.files[0].name
    for name in folder.safetensors:
        path = folder.path / name
        if path in weights.files:
            continue
        names = _names_in(path)
        shared = next((tensor for tensor in names if tensor in weights.tensors), None)
        alike = next((tensor for tensor in names if looks_like_weight(tensor)), None)
        if shared is None and alike is None and shard_parts(name) == 1:
            weights.strays.append(name)
            weights.notes.append(f"{name}: not read, none of its {len(names)} tensors is a drafter's weight.")
            continue
        why = f"both hold tensor '{shared}'" if shared is not None else f"it holds '{alike}'"
        raise CheckpointError(
            f"{path}: a stray second weights file beside {main}, which does not name it ({why}); programs differ in "
            "which of the two they load. Move the one that is not the drafter out of the folder."
        )


def _torch_weights(folder: Folder) -> _Weights:
    """The weights from what torch.save wrote."""
    if not folder.torch and not folder.torch_indexes:
        raise CheckpointError(no_weights(folder))
    # Imported here because zipfile and pickle are slow to import and seldom wanted.
    from eagle3convert.checkpoint.torch_pickle import read_torch_file

    notes: list[str] = []

    def reader(file: LocalFile) -> tuple[dict[str, StoredTensor], dict[str, str]]:
        tensors, more = read_torch_file(file)
        notes.extend(more)
        return tensors, {}

    if folder.torch_indexes:
        weights = _sharded(folder, _one_index(folder, folder.torch_indexes, TORCH_INDEX), reader)
    else:
        weights = _single(folder.path / _one_torch_file(folder), reader)
    weights.container = "torch zip"
    others = [name for name in folder.torch if folder.path / name not in weights.files]
    if others:
        notes.append(f"{', '.join(others)}: not read, {weights.files[0].name} holds the weights.")
    weights.notes.extend(notes)
    return weights


def _one_torch_file(folder: Folder) -> str:
    if TORCH_FILE in folder.torch:
        return TORCH_FILE
    if len(folder.torch) > 1:
        raise CheckpointError(
            f"{folder.path}: {folder.torch[0]} and {folder.torch[1]} are two files of weights and none is named "
            f"{TORCH_FILE}. Leave only the drafter's file in the folder."
        )
    name = folder.torch[0]
    if shard_parts(name) > 1:
        raise CheckpointError(
            f"{folder.path / name}: the name says that this is one of {shard_parts(name)} shards, but {TORCH_INDEX} is "
            "not there. Download the whole folder again."
        )
    return name
