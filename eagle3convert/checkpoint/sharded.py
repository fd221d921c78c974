"""The index of a sharded checkpoint, checked against its shards in both directions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from eagle3convert.checkpoint.stored import LocalFile, StoredTensor
from eagle3convert.checkpoint.strict_json import parse_object
from eagle3convert.errors import CheckpointError

Reader = Callable[[LocalFile], tuple[dict[str, StoredTensor], dict[str, str]]]
"""Reads the header of one shard: its tensors in the order of their data, and its metadata."""


def read_index(path: Path) -> dict[str, list[str]]:
    """The shards that an index names, sorted, each with the tensors it promises.

    Raises CheckpointError where the index is no index or names a file outside its folder.
    """
    file = LocalFile(path)
    try:
        index = parse_object(file.read(0, file.size), str(path))
    finally:
        file.close()
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{path}: there is no weight_map, or an empty one, so it names no shard. Download the index again."
        )
    shards: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not _stays_inside(name):
            raise CheckpointError(
                f"{path}: weight_map puts tensor '{tensor}' into {name!r}, which is no file inside the folder. Do not "
                "use an index from a source you do not trust; download it again."
            )
        shards.setdefault(name, []).append(tensor)
    return dict(sorted(shards.items()))


def _stays_inside(name: str) -> bool:
    parts = PurePosixPath(name)
    return bool(name) and "\\" not in name and "\0" not in name and not parts.is_absolute() and ".." not in parts.parts


def read_shards(
    folder: Path, index: str, shards: dict[str, list[str]], reader: Reader
) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors of all shards, in the order of the shards' names and of the data within each.

    Raises CheckpointError naming file and tensor wherever index and shards disagree.
    """
    _check_present(folder, index, shards)
    tensors: dict[str, StoredTensor] = {}
    metadata: dict[str, str] = {}
    opened: list[LocalFile] = []
    try:
        for name, promised in shards.items():
            file = LocalFile(folder / name)
            opened.append(file)
            found, more = reader(file)
            missing = next((tensor for tensor in promised if tensor not in found), None)
            if missing is not None:
                raise CheckpointError(
                    f"{file.name}: {index} says that tensor '{missing}' is in this shard, and it is not. Index and "
                    "shards are from different versions; download the folder again."
                )
            known = set(promised)
            extra = next((tensor for tensor in found if tensor not in known), None)
            if extra is not None:
                raise CheckpointError(
                    f"{file.name}: tensor '{extra}' is in this shard, but {index} does not say so. Index and shards "
                    "are from different versions; download the folder again."
                )
            if not found:
                file.close()
            tensors.update(found)
            metadata = {**more, **metadata}
    except BaseException:
        for file in opened:
            file.close()
        raise
    return tensors, metadata


def _check_present(folder: Path, index: str, shards: dict[str, list[str]]) -> None:
    missing = [name for name in shards if not (folder / name).exists()]
    if not missing:
        return
    others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    whole = ""
    if "model.safetensors" not in shards and (folder / "model.safetensors").exists():
        whole = " If model.safetensors beside it is the whole drafter, delete the index."
    raise CheckpointError(
        f"{folder / missing[0]}: {index} names this shard{others}, and it is not there; the tensors in it, such as "
        f"'{shards[missing[0]][0]}', would be missing. Download the folder again.{whole}"
    )
