"""A converted folder as it goes to the Hub: an explicit list of files, each known by its hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from eagle3convert.checkpoint.source import open_checkpoint
from eagle3convert.errors import CheckpointError
from eagle3convert.hub.errors import PushRefused
from eagle3convert.hub.names import HubOrigin
from eagle3convert.receipt import RECEIPT_FILE, fingerprint_of, load_receipt

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

CARD: Final = "README.md"
PASSED_ON: Final = ("LICENSE*", "NOTICE*", "USE_POLICY*")
_BLOCK: Final = 8 << 20


@dataclass(frozen=True)
class Upload:
    """A file of the commit: its path in the repo, and its content on disk or in memory."""

    name: str
    content: Path | bytes

    @cached_property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    @cached_property
    def sha256(self) -> str:
        if isinstance(self.content, bytes):
            return hashlib.sha256(self.content).hexdigest()
        with self.content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @cached_property
    def git_oid(self) -> str:
        digest = hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        if isinstance(self.content, bytes):
            digest.update(self.content)
        else:
            with self.content.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
        return digest.hexdigest()

    def is_at(self, entry: RepoFile | None) -> bool:
        """Whether the repo's file of this name is this file, bit for bit."""
        if entry is None or entry.size != self.size:
            return False
        return entry.lfs.sha256 == self.sha256 if entry.lfs is not None else entry.blob_id == self.git_oid


@dataclass(frozen=True)
class ConvertedFolder:
    """A folder that a verified conversion wrote and nobody changed since."""

    path: Path
    receipt: Mapping[str, Any]
    files: tuple[Upload, ...]  # everything but the card
    notes: tuple[str, ...]


def read_converted(path: Path) -> ConvertedFolder:
    """The folder with its receipt, ready to be pushed.

    Raises PushRefused where there is no receipt, where the verification did not pass, or where config or tensors are
    not those that were verified; CheckpointError where the folder is no checkpoint.
    """
    with open_checkpoint(path) as checkpoint:
        receipt = _receipt(path)
        if fingerprint_of(checkpoint) != receipt["written"]:
            raise PushRefused(
                f"{path}: config.json or the weights are not those that were verified ({RECEIPT_FILE} tells). "
                "Convert again, then push."
            )
        weights = [file.relative_to(path) for file in checkpoint.files]
    names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
    wanted = [name for name in names if name == "config.json" or name.endswith(".safetensors.index.json")]
    wanted += [file.as_posix() for file in weights]
    wanted += [name for name in names if any(fnmatchcase(name, pattern) for pattern in PASSED_ON)]
    left = [name for name in names if name not in (*wanted, RECEIPT_FILE, CARD) and not name.startswith(".")]
    notes = [f"{', '.join(left)}: not pushed, no part of the drafter."] if left else []
    notes += _local_names(checkpoint.config)
    files = [*(Upload(name, path / name) for name in wanted), Upload(RECEIPT_FILE, _published(receipt))]
    return ConvertedFolder(path, receipt, tuple(files), tuple(notes))


def _receipt(path: Path) -> dict[str, Any]:
    try:
        receipt = load_receipt(path)
    except CheckpointError as error:
        raise PushRefused(
            f"{error} So nothing proves what this drafter is. Only what eagle3convert wrote and verified is pushed: "
            "convert it first, or upload it yourself with `hf upload`."
        ) from error
    report = receipt["verification"]
    if report is None or not report["passed"]:
        said = "; ".join(report["defects"] if report is not None else ()) or "it was not verified"
        raise PushRefused(f"{path}: the receipt has no passing verification ({said}). Convert again with verification.")
    return receipt


def _published(receipt: Mapping[str, Any]) -> bytes:
    """The receipt as it is pushed: of a source on this machine only the folder's name, of the Hub's cache the repo."""
    source, verifier = dict(receipt["source"]), dict(receipt["verifier"])
    origin = HubOrigin.of(source)
    if origin is not None:
        source |= origin.as_json()
    else:
        source["path"] = Path(source["path"]).name
    hidden = verifier["name"] or ""
    told = {**receipt, "source": source}
    if Path(hidden).is_absolute():
        verifier["name"] = Path(hidden).name
        launch = [word.replace(hidden, Path(hidden).name) for word in receipt["launch"]]
        told |= {"verifier": verifier, "launch": launch}
    return (json.dumps(told, indent=2, ensure_ascii=False) + "\n").encode()


def _local_names(config: Mapping[str, Any]) -> list[str]:
    """A note for every path of this machine that config.json would publish."""

    def walk(value: Any, at: str) -> list[str]:
        if isinstance(value, Mapping):
            return [note for key, item in value.items() for note in walk(item, f"{at}.{key}" if at else str(key))]
        if isinstance(value, str) and value.startswith(("/", "~/")):
            return [
                f"config.json: {at} is '{value}', a path on your machine, and is pushed as it is. Convert again with "
                "--verifier org/model to name the verifier's repo instead."
            ]
        return []

    return walk(config, "")
