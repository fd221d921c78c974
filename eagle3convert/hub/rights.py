"""Whether the user may push where he wants to, asked before anything is converted or uploaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from eagle3convert.errors import UsageError
from eagle3convert.hub.client import endpoint, hub_api, is_offline, page, token_place
from eagle3convert.hub.errors import HubError, hub_errors
from eagle3convert.hub.names import HubSource, parse_source
from eagle3convert.hub.retrying import retried


@dataclass(frozen=True)
class Rights:
    """Who pushes to which repo; ``exists`` is whether it is there already."""

    user: str
    repo: str
    exists: bool

    def existing(self) -> Rights:
        """The same rights after a push has made the repo."""
        return replace(self, exists=True)


def repo_of(text: str) -> str:
    """The name of a repo to push to: ``org/name``, or ``name`` alone for the user's own.

    Raises UsageError where it is neither.
    """
    word = text.strip()
    if word and "/" not in word and isinstance(parse_source(f"user/{word}"), HubSource):
        return word
    # Not parse_source alone: a folder org/name beside the user is no reason to refuse the repo org/name.
    try:
        source = parse_source(word if word.startswith(("hf:", "http")) else f"hf://{word}")
    except UsageError:
        source = None
    if not isinstance(source, HubSource) or source.folder or source.revision:
        raise UsageError(f"{text}: is no name of a repo to push to. Say org/name; a revision goes into --branch.")
    return source.repo


def check_rights(repo_id: str, *, create_pr: bool = False, private: bool | None = None) -> Rights:
    """Asks the Hub who the user is and whether he may write to ``repo_id``; one or two small requests.

    Raises HubError where the token is missing, wrong or may not write, where the namespace is not the user's, and
    where ``private`` is asked for a repo that is public already. What only the Hub can know (limits of an
    organisation, some fine-grained tokens) it says at the upload, before any weight is sent.
    """
    name = repo_of(repo_id)
    if is_offline():
        raise HubError(f"{name}: HF_HUB_OFFLINE is set, so nothing can be pushed. Unset it.")
    with hub_errors(name):
        me = retried(hub_api().whoami)
    user = str(me["name"])
    repo = name if "/" in name else f"{user}/{name}"
    info = _info(repo)
    if create_pr:
        if info is None and not _is_mine(me, repo):
            raise HubError(
                f"{repo}: there is no such repo to propose a change to, or {user} may not see it. Check the name."
            )
    else:
        _check_write(me, user, repo)
    if private and info is not None and not info.private:
        raise HubError(
            f"{repo}: is public already, and --private only holds for a repo that is made by the push. Make it private "
            f"at {page(repo, 'settings')} first, or push to another name."
        )
    return Rights(user, repo, info is not None)


def _info(repo: str) -> Any:
    """The repo's description, or None where there is none that the user may see."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    with hub_errors(repo):
        try:
            return retried(lambda: hub_api().model_info(repo))
        except GatedRepoError:
            raise
        except RepositoryNotFoundError:
            return None


def _is_mine(me: Mapping[str, Any], repo: str) -> bool:
    owner = repo.split("/")[0]
    return owner == me["name"] or owner in [org.get("name") for org in me.get("orgs") or ()]


def _check_write(me: Mapping[str, Any], user: str, repo: str) -> None:
    """Raises HubError where role, namespace or the permissions of the token rule out a push."""
    token = (me.get("auth") or {}).get("accessToken") or {}
    owner, tokens = repo.split("/")[0], f"{endpoint()}/settings/tokens"
    if token.get("role") == "read":
        raise HubError(
            f"{repo}: {token_place()} (of {user}) may only read. Make one with write access at {tokens}, then run "
            "`hf auth login` or set HF_TOKEN; or propose the change with --create-pr."
        )
    if token.get("role") == "fineGrained":
        _check_fine_grained(token, user, repo)
        return  # which organisations such a token sees is its own matter; the Hub decides
    if not _is_mine(me, repo):
        names = [str(me["name"]), *(str(org.get("name")) for org in me.get("orgs") or ())]
        raise HubError(
            f"{repo}: {user} is no member of '{owner}' and may not push there. Push under one of "
            f"{', '.join(names)}, or propose the change with --create-pr."
        )
    roles = {org.get("name"): org.get("roleInOrg") for org in me.get("orgs") or ()}
    if roles.get(owner) == "read":
        raise HubError(
            f"{repo}: {user} may only read in '{owner}'. Ask an administrator of it for the role 'write', or propose "
            "the change with --create-pr."
        )


def _check_fine_grained(token: Mapping[str, Any], user: str, repo: str) -> None:
    fine = token.get("fineGrained")
    if not isinstance(fine, Mapping) or not isinstance(fine.get("scoped"), list):
        return
    granted = [str(p) for scope in fine["scoped"] for p in scope.get("permissions") or ()]
    granted += [str(p) for p in fine.get("global") or ()]
    if not any("write" in permission for permission in granted):
        raise HubError(
            f"{repo}: {token_place()} (of {user}) is fine-grained and has no permission to write to any repo. Add "
            f"'write access to contents of repos' for '{repo.split('/')[0]}' at {endpoint()}/settings/tokens."
        )
