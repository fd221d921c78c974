"""One commit on the Hub, made exactly once: tried again where that is safe, and recognised where it landed unseen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from eagle3convert.hub.client import endpoint, hub_api, page
from eagle3convert.hub.errors import HubError, explain, is_transient, is_transport, status_of
from eagle3convert.hub.folder import Upload
from eagle3convert.hub.retrying import WAITS, retried, wait_before

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

NOTHING_TWICE: Final = "Push again (`eagle3convert push`): what has arrived is not sent again."
UPLOAD_TRIES: Final = 2
"""How often large files are sent where the connection breaks; the client itself tries each of them several times."""


@dataclass(frozen=True)
class Landed:
    """A commit that is on the Hub; ``recognised`` where the Hub's answer to it was lost."""

    commit: str
    url: str
    pull_request: str | None = None
    recognised: bool = False


@dataclass(frozen=True)
class Change:
    """What is to be committed: ``files`` added or replaced and ``removed`` taken away, on top of ``parent``."""

    repo: str
    ref: str
    parent: str
    user: str
    files: tuple[Upload, ...]
    removed: tuple[str, ...]
    message: str
    description: str
    create_pr: bool = False


def entries_at(repo: str, revision: str, names: Iterable[str]) -> dict[str, RepoFile]:
    """The repo's files of these names at a revision, those that are there."""
    from huggingface_hub.hf_api import RepoFile

    found = retried(lambda: hub_api().get_paths_info(repo, list(names), revision=revision))
    return {entry.path: entry for entry in found if isinstance(entry, RepoFile)}


def differing(change_files: Iterable[Upload], entries: Mapping[str, RepoFile]) -> tuple[Upload, ...]:
    """The files that are not, bit for bit, in the repo."""
    return tuple(file for file in change_files if not file.is_at(entries.get(file.name)))


def make_commit(change: Change) -> Landed:
    """Uploads what the Hub does not have and commits it in one step.

    Raises HubError saying what arrived and what to do. After an error whose outcome is not known (a lost answer, a
    5xx, a 412 to our own commit) the repo is looked at first, so that there is never a second commit.
    """
    waits, sent = iter(WAITS), 0
    while True:
        try:
            return _commit(change)
        except Exception as error:
            landed = _look(change) if _is_open(error) else None
            if landed is not None:
                return landed
            if status_of(error) == 412:
                raise HubError(_changed(change)) from error
            sent += _is_upload(error)
            wait = next(waits, None)
            again = is_transient(error) and sent < UPLOAD_TRIES and wait is not None
            if not again or not wait_before(error, wait or 0.0):
                raise _final(error, change) from error


def find_pull_request(change: Change) -> Landed | None:
    """An open pull request of the user's that proposes exactly these files, or None."""
    pulls = hub_api().get_repo_discussions(
        change.repo, author=change.user, discussion_type="pull_request", discussion_status="open"
    )
    for _, pull in zip(range(10), pulls, strict=False):
        ref = f"refs/pr/{pull.num}"
        head = hub_api().model_info(change.repo, revision=ref).sha or ""
        if not differing(change.files, entries_at(change.repo, head, _names(change))):
            address = page(change.repo, "discussions", str(pull.num))
            return Landed(head, page(change.repo, "commit", head), address, recognised=True)
    return None


def _commit(change: Change) -> Landed:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    operations: list[Any] = [
        CommitOperationAdd(file.name, file.content if isinstance(file.content, bytes) else str(file.content))
        for file in change.files
    ]
    operations += [CommitOperationDelete(name, is_folder=False) for name in change.removed]
    info = hub_api().create_commit(
        change.repo,
        operations,
        commit_message=change.message,
        commit_description=change.description,
        revision=None if change.create_pr else change.ref,
        create_pr=change.create_pr,
        parent_commit=change.parent,
    )
    return Landed(info.oid, info.commit_url, info.pr_url)


def _is_open(error: BaseException) -> bool:
    """Whether the commit may have been made although the client raised."""
    status = status_of(error)
    return not _is_upload(error) and (is_transport(error) or status == 412 or (status is not None and status >= 500))


def _is_upload(error: BaseException) -> bool:
    """Whether a large file was being sent, so that there was no commit yet."""
    return isinstance(error, RuntimeError) and str(error).startswith("Error while uploading")


def _look(change: Change) -> Landed | None:
    """The commit where the Hub holds it in spite of the error; None where it does not, or cannot be asked."""
    try:
        if change.create_pr:
            return find_pull_request(change)
        head = hub_api().model_info(change.repo, revision=change.ref).sha or ""
        entries = entries_at(change.repo, head, _names(change))
    except Exception as error:
        if explain(error, change.repo) is None:
            raise
        return None
    if differing(change.files, entries) or any(name in entries for name in change.removed):
        return None
    return Landed(head, page(change.repo, "commit", head), recognised=True)


def _names(change: Change) -> list[str]:
    return [*(file.name for file in change.files), *change.removed]


def _changed(change: Change) -> str:
    head = _quietly(lambda: hub_api().model_info(change.repo, revision=change.ref).sha) or "another commit"
    return (
        f"{change.repo}: changed while this push was on its way: '{change.ref}' was at {change.parent[:12]} and is at "
        f"{head[:12]}. Nothing was committed. Look at {page(change.repo, 'commits', change.ref)}, then push again: the "
        "weights have arrived and are not sent again."
    )


def _quietly(ask: Callable[[], str | None]) -> str | None:
    try:
        return ask()
    except Exception:
        return None


def _final(error: Exception, change: Change) -> Exception:
    """The error that ends the push: as a sentence with what has arrived, or as it is where it is a defect of ours."""
    sentence = explain(error, change.repo, change.ref)
    if sentence is None:
        return error
    status = status_of(error)
    if _is_upload(error):
        return HubError(f"{sentence} Nothing was committed. {NOTHING_TWICE}")
    if is_transport(error):
        return HubError(
            f"{sentence} Whether the commit was made could not be seen; the next push finds out. {NOTHING_TWICE}"
        )
    if status is not None and (status >= 500 or status in (409, 429)):
        return HubError(f"{sentence} Nothing was committed; the weights have arrived at {endpoint()}. {NOTHING_TWICE}")
    return HubError(f"{sentence} Nothing was committed.")
