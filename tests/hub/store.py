"""What a Hub holds: repos with branches, pull requests and commits, and the large files they point to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

LARGE_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
LARGE_FROM = 10_000_000


def git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_large(path: str, size: int) -> bool:
    return path.endswith(LARGE_SUFFIXES) or size > LARGE_FROM


@dataclass(frozen=True)
class Blob:
    """The content of a file, in memory or on disk; a large one has its sha256."""

    size: int
    oid: str
    data: bytes | None = None
    path: Path | None = None
    sha256: str | None = None

    @classmethod
    def small(cls, data: bytes) -> Blob:
        return cls(len(data), git_oid(data), data)

    @classmethod
    def large(cls, path: Path, sha256: str) -> Blob:
        size = path.stat().st_size
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
        return cls(size, git_oid(pointer.encode()), None, path, sha256)

    def read(self, start: int, length: int) -> bytes:
        if self.data is not None:
            return self.data[start : start + length]
        assert self.path is not None
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(length)

    def bytes(self) -> bytes:
        return self.read(0, self.size)

    def entry(self, path: str) -> dict[str, object]:
        """The file as the tree and paths-info routes tell it."""
        told: dict[str, object] = {"type": "file", "path": path, "size": self.size, "oid": self.oid}
        if self.sha256 is not None:
            told["lfs"] = {"oid": self.sha256, "size": self.size, "pointerSize": 134}
        return told


@dataclass(frozen=True)
class Commit:
    sha: str
    parent: str
    title: str
    files: Mapping[str, Blob]


@dataclass
class PullRequest:
    number: int
    title: str
    author: str


@dataclass
class Repo:
    """One model repo; ``refs`` name commits, pull requests are the refs refs/pr/N."""

    name: str
    private: bool = False
    gated: bool = False
    refs: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    pulls: list[PullRequest] = field(default_factory=list)

    @property
    def owner(self) -> str:
        return self.name.partition("/")[0]

    def at(self, revision: str) -> Commit | None:
        return self.commits.get(self.refs.get(revision, revision))

    def add(self, ref: str, files: Mapping[str, Blob], title: str) -> Commit:
        parent = self.refs.get(ref, "")
        sha = hashlib.sha1(f"{self.name} {ref} {parent} {title} {len(self.commits)}".encode()).hexdigest()
        commit = self.commits[sha] = Commit(sha, parent, title, dict(files))
        self.refs[ref] = sha
        return commit

    def history(self, ref: str = "main") -> list[str]:
        """The titles of the commits of a ref, the newest first."""
        titles, at = [], self.at(ref)
        while at is not None:
            titles.append(at.title)
            at = self.commits.get(at.parent)
        return titles


@dataclass(frozen=True)
class User:
    name: str
    role: str  # of the token: read, write or fineGrained
    orgs: tuple[str, ...] = ()


class Store:
    """All repos and large files of a Hub."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, Blob] = {}
        self.users = {
            "hf_alice": User("alice", "write", ("acme",)),
            "hf_bob": User("bob", "write"),
            "hf_reader": User("alice", "read", ("acme",)),
            "hf_fine": User("alice", "fineGrained", ("acme",)),
        }

    def create(self, name: str, private: bool = False, gated: bool = False) -> Repo:
        repo = self.repos[name] = Repo(name, private, gated)
        attributes = "".join(f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LARGE_SUFFIXES)
        repo.add("main", {".gitattributes": Blob.small(attributes.encode())}, "initial commit")
        return repo

    def keep_large(self, path: Path, sha256: str) -> Blob:
        blob = self.large[sha256] = Blob.large(path, sha256)
        return blob

    def put_folder(self, name: str, folder: Path, ref: str = "main", inside: str = "", **made: bool) -> Repo:
        """A repo with the files of a folder in one commit, as another program would have pushed it."""
        repo = self.repos.get(name) or self.create(name, **made)
        files = dict((repo.at(ref) or repo.commits[repo.refs["main"]]).files)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                size, shown = path.stat().st_size, inside + path.relative_to(folder).as_posix()
                large = is_large(shown, size)
                blob = self.keep_large(path, _sha256(path)) if large else Blob.small(path.read_bytes())
                files[shown] = blob
        repo.add(ref, files, f"Upload {folder.name}")
        return repo


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
