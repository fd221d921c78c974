"""Where a drafter is: in a folder on this machine, or in a repo on the Hub at a revision."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

from eagle3convert.errors import UsageError

_PART: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REVISION: Final = r"refs/(?:pr|heads|tags|convert)/[^/@]+|[^/@]+"
_REPO: Final = re.compile(rf"^(?P<repo>{_PART}/{_PART})$")
_PINNED: Final = re.compile(rf"^(?P<repo>{_PART}/{_PART})@(?P<revision>{_REVISION})$")
_URI: Final = re.compile(
    rf"^(?:models?/)?(?P<repo>{_PART}/{_PART})(?:@(?P<revision>{_REVISION}))?(?:/(?P<folder>.*))?$"
)
_CACHED: Final = re.compile(r"(?:^|/)models--(?P<repo>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})(?:/(?P<folder>.+))?$")
_COMMIT: Final = re.compile(r"^[0-9a-f]{40}$")


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A folder on this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class HubSource:
    """A folder of a model repo on the Hub, as it was asked for; ``revision`` None means its main branch."""

    repo: str
    revision: str | None = None
    folder: str = ""

    def __str__(self) -> str:
        """The source as it can be given on a command line."""
        pinned = self.repo if self.revision is None else f"{self.repo}@{self.revision}"
        return f"hf://{pinned}/{self.folder}" if self.folder else pinned

    def inside(self, name: str) -> str:
        """The path in the repo of a file of this folder."""
        return f"{self.folder}/{name}" if self.folder else name


@dataclass(frozen=True, slots=True)
class HubOrigin:
    """A folder of a repo at one commit: what a receipt and a card record."""

    repo: str
    commit: str
    folder: str = ""

    def __str__(self) -> str:
        return str(HubSource(self.repo, self.commit, self.folder))

    def as_json(self) -> dict[str, Any]:
        return {
            "path": f"hf://{self.repo}@{self.commit}" + (f"/{self.folder}" if self.folder else ""),
            "repo": self.repo,
            "commit": self.commit,
            "folder": self.folder,
        }

    @classmethod
    def of(cls, source: Any) -> Self | None:
        """The origin that a receipt's ``source`` records, or that a path into the Hub cache shows, or None."""
        if not isinstance(source, dict):
            return None
        repo, commit, folder = source.get("repo"), source.get("commit"), source.get("folder") or ""
        if isinstance(repo, str) and isinstance(commit, str) and isinstance(folder, str):
            return cls(repo, commit, folder) if _COMMIT.match(commit) else None
        found = _CACHED.search(str(source.get("path") or ""))
        if found is None or found["repo"].count("--") != 1:
            return None
        return cls(found["repo"].replace("--", "/"), found["commit"], found["folder"] or "")


def parse_source(text: str | Path) -> LocalSource | HubSource:
    """What ``text`` names: a folder that exists, a repo (``org/repo``, ``org/repo@revision``,
    ``hf://org/repo@revision/sub/folder``, the address of its page), or else a path.

    Raises UsageError for an ``hf://`` name or a Hub address that names no model repo.
    """
    word = str(text)
    if not word.strip():
        raise UsageError("an empty name was given for a drafter. Give its folder, or a repo such as org/name.")
    # A path type turns hf://org/repo into hf:/org/repo; both are what the user wrote.
    if scheme := re.match(r"^hf:/{1,2}", word):
        return _uri(word, word[scheme.end() :])
    if word.startswith(("https://", "http://")):
        return _address(word)
    path = Path(word).expanduser()
    if path.exists() or word.startswith((".", "/", "~")):
        return LocalSource(path)
    found = _REPO.match(word) or _PINNED.match(word)
    return HubSource(found["repo"], found.groupdict().get("revision")) if found else LocalSource(path)


def _uri(word: str, rest: str) -> HubSource:
    found = _URI.match(rest.rstrip("/"))
    folder = (found["folder"] or "").strip("/") if found else ""
    if found is None or ".." in folder.split("/") or rest.startswith(("datasets/", "spaces/")):
        raise UsageError(
            f"{word}: names no model repo. Say hf://org/name, with @revision and /folder after it if needed."
        )
    revision = found["revision"]
    return HubSource(found["repo"], unquote(revision) if revision else None, folder)


def _address(word: str) -> HubSource:
    """The repo of an address as a browser shows it: .../org/repo/tree/revision/folder."""
    parts = [unquote(part) for part in urlsplit(word).path.split("/") if part]
    revision, rest = None, parts[2:]
    if rest and rest[0] in ("tree", "blob", "resolve", "commit") and len(rest) > 1:
        taken = 3 if rest[1] == "refs" and len(rest) > 3 else 1
        revision, rest = "/".join(rest[1 : 1 + taken]), rest[1 + taken :]
    name = "/".join(parts[:2])
    if not _REPO.match(name) or parts[0] in ("datasets", "spaces") or ".." in rest:
        raise UsageError(f"{word}: is no address of a model repo. Give org/name instead.")
    return HubSource(name, revision, "/".join(rest))
