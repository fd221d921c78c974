"""Drafters on the Hub: opened by their headers without downloading them, or downloaded into the Hub's cache."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from eagle3convert.checkpoint.source import Checkpoint, open_checkpoint
from eagle3convert.checkpoint.stored import StoredTensor
from eagle3convert.errors import CheckpointError
from eagle3convert.hub.cache import cached_folder, download_files, offline_folder, resolve
from eagle3convert.hub.client import file_address, hub_api, is_offline
from eagle3convert.hub.errors import hub_errors
from eagle3convert.hub.names import HubOrigin, HubSource
from eagle3convert.hub.outline import OutlineFolder, in_parts, lay_out
from eagle3convert.hub.remote_file import RemoteFile, Traffic
from eagle3convert.hub.retrying import retried

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile


@dataclass(frozen=True, kw_only=True)
class HubCheckpoint(Checkpoint):
    """A drafter on the Hub at one commit; its tensors are remote until ``fetched`` has downloaded them.

    ``path`` holds its small files, and its large ones by their headers (or whole, once downloaded); it is there as
    long as this object is.
    """

    source: HubSource
    origin: HubOrigin
    traffic: Traffic
    outline: OutlineFolder | None = None

    @property
    def label(self) -> str:
        """What messages call this drafter."""
        return str(self.source)

    @property
    def is_remote(self) -> bool:
        return self.outline is not None

    def provenance(self) -> dict[str, Any]:
        """Where the drafter is from, for a receipt: the repo and its commit instead of a path on this machine."""
        return self.origin.as_json()

    def read_note(self) -> str:
        """How much was fetched to learn what is known by now."""
        total = sum(path.stat().st_size for path in self.files)
        got, whole = _size(self.traffic.bytes), _size(total)
        return f"{self.label}: read {got} of {whole} in {self.traffic.requests} requests, at {self.origin.commit}."

    def __enter__(self) -> Self:
        return self


def downloaded(checkpoint: HubCheckpoint) -> HubCheckpoint:
    """The same drafter with its weights on this machine; the remote one is closed."""
    if not checkpoint.is_remote:
        return checkpoint
    source, origin, traffic = checkpoint.source, checkpoint.origin, checkpoint.traffic
    names = _weights_of(checkpoint)
    checkpoint.close()
    if checkpoint.outline is not None:
        checkpoint.outline.remove()
    return _open_local(source, origin, download_files(source, origin, names), traffic)


def download(source: HubSource) -> Path:
    """Downloads config.json, weights, index, receipt, card and licence into the Hub's cache; the folder they are in.

    What is there already is not fetched again, and an interrupted download goes on where it stopped.
    """
    with open_hub_checkpoint(source) as checkpoint:
        if not checkpoint.is_remote:
            return checkpoint.path
        names, origin = _weights_of(checkpoint), checkpoint.origin
    return download_files(source, origin, names)


def open_hub_checkpoint(source: HubSource) -> HubCheckpoint:
    """Opens a drafter on the Hub by config.json, index and headers; weights stay where they are.

    Offline, or where all of it is in the Hub's cache already, the cache is opened instead. Raises CheckpointError for
    a defect of the checkpoint and HubError for everything that the Hub can answer.
    """
    if is_offline():
        origin, folder = offline_folder(source)
        return _open_local(source, origin, folder, Traffic())
    commit = resolve(source.repo, source.revision)
    origin = HubOrigin(source.repo, commit, source.folder)
    listing, subfolders = _listing(source, commit)
    cached = cached_folder(source, commit, listing)
    if cached is not None:
        return _open_local(source, origin, cached, Traffic())
    return _open_remote(source, origin, listing, subfolders)


def _weights_of(checkpoint: Checkpoint) -> list[str]:
    return [file.relative_to(checkpoint.path).as_posix() for file in checkpoint.files]


def _listing(source: HubSource, commit: str) -> tuple[dict[str, RepoFile], frozenset[str]]:
    """The files of the folder by their names in it, and its subfolders; what lies deeper only where it is wanted."""
    from huggingface_hub.hf_api import RepoFile

    def listed(recursive: bool) -> list[Any]:
        folder = source.folder or None
        tree = hub_api().list_repo_tree(source.repo, folder, recursive=recursive, revision=commit)
        return list(tree)

    with hub_errors(str(source), source.revision):
        entries = retried(lambda: listed(False))
        if not any(entry.path == source.inside("config.json") for entry in entries):
            entries = retried(lambda: listed(True))  # so that the message can say where a config.json is
    skip = len(source.folder) + 1 if source.folder else 0
    files = {entry.path[skip:]: entry for entry in entries if isinstance(entry, RepoFile)}
    return files, frozenset(entry.path[skip:] for entry in entries if not isinstance(entry, RepoFile))


def _open_remote(
    source: HubSource, origin: HubOrigin, listing: dict[str, RepoFile], subfolders: frozenset[str]
) -> HubCheckpoint:
    traffic = Traffic()
    outline = OutlineFolder()
    folder = outline.path
    try:
        files = {name: _remote(source, origin, name, entry.size, traffic) for name, entry in listing.items()}
        here = {name: file for name, file in files.items() if "/" not in name}
        lay_out(folder, here, subfolders)
        for name in sorted(set(files) - set(here)):
            (folder / name).touch()
        files |= _lay_out_far_shards(source, origin, folder, traffic)
        found = _relabelled(folder, str(source))
        tensors = {name: _made_remote(tensor, folder, files) for name, tensor in found.tensors.items()}
    except BaseException:
        outline.remove()
        raise
    return HubCheckpoint(
        **_parts(found) | {"tensors": tensors}, source=source, origin=origin, traffic=traffic, outline=outline
    )


def _remote(source: HubSource, origin: HubOrigin, name: str, size: int, traffic: Traffic) -> RemoteFile:
    address = file_address(source.repo, origin.commit, source.inside(name))
    return RemoteFile(f"{source}: {name}", source.repo, address, size, traffic)


def _lay_out_far_shards(source: HubSource, origin: HubOrigin, folder: Path, traffic: Traffic) -> dict[str, RemoteFile]:
    """Shards that an index puts into subfolders are laid out too; hardly any drafter has such."""
    far: set[str] = set()
    for index in folder.glob("*.index.json"):
        try:
            shards = json.loads(index.read_bytes()).get("weight_map", {}).values()
            far |= {name for name in shards if isinstance(name, str) and "/" in name}
        except (ValueError, AttributeError):
            continue  # the reader of the folder says what is wrong with it
    if not far or any(".." in name.split("/") or name.startswith("/") for name in far):
        return {}
    with hub_errors(source.repo, origin.commit):
        found = retried(
            lambda: hub_api().get_paths_info(source.repo, [source.inside(n) for n in far], revision=origin.commit)
        )
    sizes = {entry.path: entry.size for entry in found if hasattr(entry, "size")}
    files = {
        name: _remote(source, origin, name, sizes[source.inside(name)], traffic)
        for name in far
        if source.inside(name) in sizes
    }
    lay_out(folder, files, frozenset())
    return files


def _made_remote(tensor: StoredTensor, folder: Path, files: dict[str, RemoteFile]) -> StoredTensor:
    """A tensor of the outline, its bytes now those on the Hub."""
    place = getattr(tensor.file, "path", None)
    name = place.relative_to(folder).as_posix() if isinstance(place, Path) else ""
    if name not in files:
        raise in_parts(tensor.file)  # it was read from the outline's empty data, and would be zeros
    return replace(tensor, file=files[name])


def _relabelled(folder: Path, label: str) -> Checkpoint:
    """The checkpoint in ``folder``; an error names it as the user did."""
    try:
        return open_checkpoint(folder)
    except CheckpointError as error:
        said = str(error).replace(f"{folder}/", f"{label.rstrip('/')}/").replace(str(folder), label)
        raise CheckpointError(said) from error


def _parts(checkpoint: Checkpoint) -> dict[str, Any]:
    return {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__}


def _open_local(source: HubSource, origin: HubOrigin, folder: Path, traffic: Traffic) -> HubCheckpoint:
    found = _relabelled(folder, str(source))
    return HubCheckpoint(**_parts(found), source=source, origin=origin, traffic=traffic)


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
