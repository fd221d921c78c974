"""What can go wrong with the Hub, as sentences: every error of the client becomes a HubError or stays a defect."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from eagle3convert.errors import Eagle3ConvertError
from eagle3convert.hub.client import cache_folder, endpoint, page, token_place

TRANSIENT_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504})
"""Answers after which the same request may succeed a little later."""


class HubError(Eagle3ConvertError):
    """The Hub did not do what was asked: the repo first, then why, then the remedy."""


class PushRefused(HubError):
    """A folder that is not pushed because it is not what a verified conversion wrote; nothing was uploaded."""


@contextmanager
def hub_errors(repo: str, revision: str | None = None, also: str = "") -> Iterator[None]:
    """Makes a HubError about ``repo`` of whatever the client raises inside; ``also`` is a sentence put after it."""
    try:
        yield
    except Eagle3ConvertError:
        raise
    except Exception as error:
        sentence = explain(error, repo, revision)
        if sentence is None:
            raise
        raise HubError(f"{sentence} {also}".rstrip()) from error


def status_of(error: BaseException) -> int | None:
    """The HTTP status of the client's error, or None where the Hub did not answer."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def is_transport(error: BaseException) -> bool:
    """Whether the connection failed, so that nobody knows whether the request was carried out.

    The client's HTTP library has another name in each of its major versions; the class name is the same in all.
    """
    if any(cls.__name__ == "TransportError" for cls in type(error).__mro__):
        return True
    cause = error.__cause__
    return isinstance(error, RuntimeError) and cause is not None and is_transport(cause)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    return is_transport(error) or status_of(error) in TRANSIENT_STATUS


def is_gone(error: HubError) -> bool:
    """Whether the repo or the revision is not there, or not for this user."""
    from huggingface_hub import errors as hf

    return isinstance(error.__cause__, hf.RepositoryNotFoundError | hf.RevisionNotFoundError)


def server_said(error: BaseException) -> str:
    """What the Hub itself said in its answer, on one line."""
    said = getattr(error, "server_message", None) or ""
    if not said:
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        said = headers.get("x-error-message") or ""
    return " ".join(str(said).split())[:300].rstrip(".")


def explain(error: BaseException, repo: str, revision: str | None = None) -> str | None:
    """The sentence for an error of the client, or None where the error is none that the Hub can cause."""
    from huggingface_hub import errors as hf

    match error:
        case hf.GatedRepoError():
            return _gated(repo)
        case hf.RepositoryNotFoundError():
            return _not_found(repo)
        case hf.RevisionNotFoundError():
            return (
                f"{repo}: has no revision '{revision}'. Give a branch, a tag or a commit of it; they are listed at "
                f"{page(repo)}."
            )
        case hf.LocalTokenNotFoundError():
            return f"{repo}: nobody is logged in to {endpoint()}. Run `hf auth login`, or set HF_TOKEN."
        case hf.OfflineModeIsEnabled() | hf.LocalEntryNotFoundError():
            return _not_cached(error, repo)
        case hf.EntryNotFoundError():
            return f"{repo}: a file is not there{_at(revision)}: {server_said(error) or error}. See {page(repo)}."
        case hf.HFValidationError():
            return f"{repo}: is no name of a repo on the Hub. Say org/name."
    if is_transport(error):
        return _no_connection(error, repo)
    status = status_of(error)
    if status is not None:
        return _answered(status, error, repo)
    return _local(error, repo)


def _at(revision: str | None) -> str:
    return f" at revision '{revision}'" if revision else ""


def _gated(repo: str) -> str:
    who = f"{token_place()} has no access yet" if token_place() else "nobody is logged in"
    return f"{repo}: is gated, and {who}. Ask for access at {page(repo)}, then run `hf auth login` or set HF_TOKEN."


def _not_found(repo: str) -> str:
    place = token_place()
    seen = f"or it is private and {place} may not see it" if place else "or it is private and nobody is logged in"
    remedy = "check the name" if place else "check the name, or run `hf auth login`"
    return f"{repo}: there is no such model repo at {endpoint()}, {seen}; {remedy}."


def _not_cached(error: BaseException, repo: str) -> str:
    from eagle3convert.hub.client import is_offline

    if not is_offline() and error.__cause__ is not None:
        return _no_connection(error.__cause__, repo)
    return (
        f"{repo}: HF_HUB_OFFLINE is set, and what is needed is not in the Hub cache ({cache_folder()}). Unset it, or "
        f"run `hf download {repo}` once while online."
    )


def _no_connection(error: BaseException, repo: str) -> str:
    root = error
    while isinstance(root, RuntimeError) and root.__cause__ is not None:
        root = root.__cause__
    uploading = f" while {str(error).split(chr(39))[1]} was uploaded" if str(error).startswith("Error while") else ""
    return (
        f"{repo}: the connection to {endpoint()} failed{uploading} ({_why(root)}). Check the network (and HF_ENDPOINT, "
        "where it is set), then run again."
    )


def _why(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _answered(status: int, error: BaseException, repo: str) -> str | None:
    said = server_said(error)
    quoted = f' ("{said}")' if said else ""
    if status == 401:
        place = token_place() or "the request without a token"
        return (
            f"{repo}: {endpoint()} does not accept {place}{quoted}. Make a token with write access at "
            f"{endpoint()}/settings/tokens, then run `hf auth login` or set HF_TOKEN."
        )
    if status in (402, 403):
        return (
            f"{repo}: {token_place() or 'no token'} gives no right to do this{quoted}. Use a token with write access "
            f"to '{repo.split('/')[0]}', or push with --create-pr to propose it to its owner."
        )
    if status == 429:
        return f"{repo}: {endpoint()} asks to wait: too many requests{quoted}. Run again in some minutes."
    if status == 409:
        return f"{repo}: another change of the repo is under way{quoted}. Run again in a minute."
    if status == 400:
        return f"{repo}: {endpoint()} finds the request wrong: {said or _why(error)}. Please report this."
    if status >= 500:
        return f"{repo}: {endpoint()} has trouble of its own (status {status}){quoted}. Run again later."
    return f"{repo}: {endpoint()} answered with status {status}{quoted}."


def _local(error: BaseException, repo: str) -> str | None:
    """Errors without an answer: of the Xet client, of card validation, of the disk with the cache."""
    text = " ".join(str(error).split())
    if type(error) is ConnectionError and "xet" in text.lower():
        if "404" in text:
            return (
                f"{repo}: {endpoint()} does not offer Xet, the Hub's store for large files, and huggingface_hub no "
                "longer asks first. Set HF_HUB_DISABLE_XET=1 and run again."
            )
        if "401" in text or "403" in text:
            return (
                f"{repo}: {token_place() or 'no token'} gives no right to upload large files there. Use a token with "
                f"write access to '{repo.split('/')[0]}'."
            )
        return (
            f"{repo}: large files could not be sent through Xet ({text[:200]}). Run again; if it stays so, set "
            "HF_HUB_DISABLE_XET=1."
        )
    if isinstance(error, RuntimeError) and text.startswith("Error while uploading"):
        cause = error.__cause__
        answered = explain(cause, repo) if cause is not None else None
        return answered or f"{repo}: {text} {_why(cause) if cause else ''}".rstrip()
    if isinstance(error, ValueError) and "README" in text:
        return f"{repo}: the Hub refuses the card: {text[:500]}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.filename or cache_folder()}: the disk is full. Make room, or set HF_HOME to another place."
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        place = str(error.filename)
        if place.startswith(str(cache_folder())):
            return f"{place}: the Hub cache cannot be used ({error.strerror}). Set HF_HOME to another place."
        return f"{place}: cannot be read or written ({error.strerror}). Check its mode and its owner."
    return None
