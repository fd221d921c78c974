"""push_to_hub: a verified conversion goes to the Hub in one commit, and is read back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle3convert.errors import Eagle3ConvertError, UsageError
from eagle3convert.hub.cache import resolve
from eagle3convert.hub.card import Subject, make_card
from eagle3convert.hub.client import hub_api, page
from eagle3convert.hub.commit import (
    NOTHING_TWICE,
    Change,
    Landed,
    differing,
    entries_at,
    find_pull_request,
    make_commit,
)
from eagle3convert.hub.errors import HubError, PushRefused, hub_errors, is_gone
from eagle3convert.hub.folder import CARD, ConvertedFolder, Upload, read_converted
from eagle3convert.hub.names import HubSource
from eagle3convert.hub.retrying import retried
from eagle3convert.hub.rights import Rights, check_rights, repo_of
from eagle3convert.hub.source_card import card_at, licence_texts, source_card, validate_on_hub
from eagle3convert.hub.sources import open_hub_checkpoint
from eagle3convert.receipt import fingerprint_of


@dataclass(frozen=True)
class PushedFile:
    """A file of the push: ``state`` is new, changed, unchanged or removed."""

    name: str
    size: int
    state: str


@dataclass(frozen=True)
class PushResult:
    """What a push did, or would do; ``commit`` and ``url`` are None for a dry run."""

    repo: str
    revision: str
    commit: str | None
    url: str | None
    pull_request: str | None
    files: tuple[PushedFile, ...]
    card: str
    notes: tuple[str, ...] = ()

    @property
    def unchanged(self) -> bool:
        """Whether the Hub held all of it already."""
        return all(file.state == "unchanged" for file in self.files)

    def as_json(self) -> dict[str, Any]:
        return {
            "repo": self.repo, "revision": self.revision, "commit": self.commit, "url": self.url,
            "pull_request": self.pull_request, "unchanged": self.unchanged,
            "files": [{"name": file.name, "bytes": file.size, "state": file.state} for file in self.files],
            "card": self.card, "notes": list(self.notes),
        }  # fmt: skip

    def lines(self) -> list[str]:
        """The result as text; of a dry run the files, sizes and the card."""
        listed = [f"  {file.state:9} {file.size:>14,} bytes  {file.name}" for file in self.files]
        if self.commit is None:
            return [f"{self.repo}@{self.revision}: would be pushed in one commit:", *listed, f"{CARD}:", self.card]
        if self.unchanged:
            return [
                f"{self.repo}@{self.revision}: is there already, nothing was pushed: {self.pull_request or self.url}"
            ]
        return [
            f"{self.repo}@{self.revision}: pushed in one commit and read back:",
            *listed,
            self.pull_request or str(self.url),
        ]


def push_to_hub(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    create_pr: bool = False,
    branch: str | None = None,
    revision: str | None = None,
    commit_message: str | None = None,
    dry_run: bool = False,
    rights: Rights | None = None,
) -> PushResult:
    """Push the converted drafter in ``folder`` to the Hub, in one commit, and read it back.

    ``branch`` is made where it is not there; ``revision`` must be there; ``create_pr`` proposes the change. ``rights``
    are those that ``check_rights`` found before; without them it is asked first. ``dry_run`` writes nothing. Raises
    PushRefused for a folder that is not what a verified conversion wrote, and HubError for all that the Hub can do.
    """
    if sum((create_pr, branch is not None, revision is not None)) > 1:
        raise UsageError("--create-pr, --branch and --revision exclude each other: say where the commit goes once.")
    converted = read_converted(Path(folder))
    ref = branch or revision or "main"
    if dry_run:
        return _rehearse(converted, repo_of(repo_id), ref, create_pr)
    rights = rights or check_rights(repo_id, create_pr=create_pr, private=private)
    with hub_errors(rights.repo, ref), _interruptible(rights.repo):
        return _push(converted, rights, ref, _Wish(private, create_pr, branch, commit_message))


@dataclass(frozen=True)
class _Wish:
    private: bool | None
    create_pr: bool
    branch: str | None
    message: str | None


def _push(converted: ConvertedFolder, rights: Rights, ref: str, wish: _Wish) -> PushResult:
    original, notes = _source_card(converted)
    subject = Subject(converted.path, converted.receipt, rights.repo, None if wish.create_pr else ref)
    # The card as it would be for a new repo is checked before anything is made on the Hub.
    validate_on_hub(rights.repo, make_card(subject, original, None))
    head = _place(rights, ref, wish)
    there = card_at(rights.repo, head)
    card = make_card(subject, original, there)
    notes = [*converted.notes, *notes]
    if there is not None:
        validate_on_hub(rights.repo, card)
    files = (*converted.files, *_licence_texts(converted), Upload(CARD, card.encode()))
    entries, stale = _there(rights.repo, head, files)
    changed = differing(files, entries)
    result = PushResult(
        rights.repo,
        ref,
        head,
        page(rights.repo, "commit", head),
        None,
        _states(files, entries, stale),
        card,
        tuple(notes),
    )
    if not changed and not stale:
        return result
    change = _change(converted, rights, ref, head, changed, stale, wish)
    proposed = find_pull_request(change) if wish.create_pr else None
    landed = proposed or make_commit(change)
    if proposed is not None:
        result = replace(result, files=_states(files, entries_at(rights.repo, landed.commit, _names(files)), ()))
    _read_back(converted, rights.repo, landed, files)
    if landed.recognised and proposed is None:
        notes.append("The Hub's answer to the commit was lost; the commit itself is there, once.")
    number = landed.pull_request.rsplit("/", 1)[-1] if landed.pull_request else None
    return replace(
        result, revision=f"refs/pr/{number}" if number else ref, commit=landed.commit, url=landed.url,
        pull_request=landed.pull_request, notes=tuple(notes),
    )  # fmt: skip


def _source_card(converted: ConvertedFolder) -> tuple[str | None, list[str]]:
    """The source's card; a source that is gone from the Hub since is a note and no obstacle."""
    try:
        return source_card(converted.receipt), []
    except HubError as error:
        if not is_gone(error):
            raise  # a licence is not left out because a server had a bad minute
        return None, [f"The source's card could not be read, so no licence was copied from it: {error}"]


def _licence_texts(converted: ConvertedFolder) -> tuple[Upload, ...]:
    try:
        return licence_texts(converted)
    except HubError as error:
        if not is_gone(error):
            raise
        return ()  # said above, of the card


def _place(rights: Rights, ref: str, wish: _Wish) -> str:
    """Makes repo and branch where they are not there; the commit at which the ref is now."""
    api = hub_api()
    if not rights.exists:
        retried(lambda: api.create_repo(rights.repo, private=wish.private, exist_ok=True))
    if wish.branch is not None:
        retried(lambda: api.create_branch(rights.repo, branch=ref, exist_ok=True))
    return resolve(rights.repo, ref)


def _there(repo: str, head: str, files: tuple[Upload, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The repo's files at its head that the push touches, and weights of an earlier push that it must take away."""
    tree = {entry.path: entry for entry in retried(lambda: list(hub_api().list_repo_tree(repo, revision=head)))}
    mine = {file.name for file in files}
    endings = (".safetensors", ".safetensors.index.json")
    stale = tuple(sorted(name for name in tree if name.endswith(endings) and name not in mine))
    if stale and "eagle3convert.json" not in tree:
        raise HubError(
            f"{repo}: holds {stale[0]} already, which is no part of this drafter; engines differ in which of the two "
            "weights they would load. Push to another repo, or to a branch of its own after deleting it there."
        )
    return {name: entry for name, entry in tree.items() if hasattr(entry, "size")}, stale


def _states(files: tuple[Upload, ...], entries: dict[str, Any], stale: tuple[str, ...]) -> tuple[PushedFile, ...]:
    rows = []
    for file in files:
        entry = entries.get(file.name)
        state = "new" if entry is None else "unchanged" if file.is_at(entry) else "changed"
        rows.append(PushedFile(file.name, file.size, state))
    return (*rows, *(PushedFile(name, entries[name].size, "removed") for name in stale))


def _names(files: tuple[Upload, ...]) -> list[str]:
    return [file.name for file in files]


def _change(
    converted: ConvertedFolder,
    rights: Rights,
    ref: str,
    head: str,
    changed: tuple[Upload, ...],
    stale: tuple[str, ...],
    wish: _Wish,
) -> Change:
    receipt = converted.receipt
    source, destination = receipt["source"]["format"], receipt["destination"]["format"]
    message = wish.message or f"EAGLE-3 drafter, converted from {source} to {destination}"
    said = f"Converted and verified by eagle3convert {receipt['eagle3convert']}; eagle3convert.json is the report."
    return Change(rights.repo, ref, head, rights.user, changed, stale, message, said, wish.create_pr)


def _read_back(converted: ConvertedFolder, repo: str, landed: Landed, files: tuple[Upload, ...]) -> None:
    """Holds what the Hub serves at the commit against what was verified: every file by its hash, headers by reading."""
    wrong = [file.name for file in differing(files, entries_at(repo, landed.commit, _names(files)))]
    if not wrong:
        with open_hub_checkpoint(HubSource(repo, landed.commit)) as checkpoint:
            if fingerprint_of(checkpoint) == converted.receipt["written"]:
                return
        wrong = ["config.json or the headers of the weights"]
    raise HubError(
        f"{repo}: the commit {landed.url} was made, but {', '.join(wrong)} read back otherwise than it was sent. Do "
        f"not use it. {NOTHING_TWICE}"
    )


def _rehearse(converted: ConvertedFolder, repo: str, ref: str, create_pr: bool) -> PushResult:
    """What a push would do; the repo is looked at where it can be."""
    original, notes = _source_card(converted)
    notes = [*converted.notes, *notes]
    entries, stale, there = dict[str, Any](), tuple[str, ...](), None
    subject = Subject(converted.path, converted.receipt, repo, None if create_pr else ref)
    files = (*converted.files, *_licence_texts(converted))
    try:
        head = resolve(repo, ref)
        there = card_at(repo, head)
        entries, stale = _there(repo, head, files)
    except PushRefused:
        raise
    except Eagle3ConvertError as error:
        notes.append(f"Shown as for a new repo, because the present one could not be read: {error}")
    card = make_card(subject, original, there)
    files = (*files, Upload(CARD, card.encode()))
    return PushResult(repo, ref, None, None, None, _states(files, entries, stale), card, tuple(notes))


@contextmanager
def _interruptible(repo: str) -> Iterator[None]:
    """Says what Ctrl-C leaves on the Hub: a repo without the commit, or with all of it."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"{repo}: the push was interrupted; the Hub has either all of its one commit or nothing of it. "
            f"{NOTHING_TWICE}"
        ) from None
