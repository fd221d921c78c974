"""What a card is made from: the source's card and licence texts, and the card that the repo has already."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from eagle3convert.errors import CheckpointError
from eagle3convert.hub.client import endpoint, file_address, headers, hub_api, raise_for_status
from eagle3convert.hub.errors import HubError, PushRefused, hub_errors
from eagle3convert.hub.folder import CARD, PASSED_ON, ConvertedFolder, Upload
from eagle3convert.hub.names import HubOrigin
from eagle3convert.hub.remote_file import RemoteFile, Traffic
from eagle3convert.hub.retrying import retried

LARGEST_TEXT: Final = 4 << 20


def source_card(receipt: Mapping[str, Any]) -> str | None:
    """The README.md of the drafter that was converted, from its folder or from its repo at its commit; None without."""
    folder = source_folder(receipt)
    if folder is not None and (folder / CARD).is_file():
        return _text((folder / CARD).read_bytes(), str(folder / CARD))
    origin = HubOrigin.of(receipt["source"])
    return _from_hub(origin, CARD) if origin is not None else None


def source_folder(receipt: Mapping[str, Any]) -> Path | None:
    """The folder that was converted, where it is still there; another one that has its path now does not count."""
    source = receipt["source"]
    path, files = source.get("path"), source.get("files")
    if not isinstance(path, str) or not path or not files:
        return None
    folder = Path(path)
    try:
        return folder if all((folder / f["name"]).stat().st_size == f["bytes"] for f in files) else None
    except (OSError, KeyError, TypeError, ValueError):
        return None


def card_at(repo: str, commit: str) -> str | None:
    """The README.md that a repo has at a commit, or None."""
    return _from_hub(HubOrigin(repo, commit), CARD)


def licence_texts(converted: ConvertedFolder) -> tuple[Upload, ...]:
    """The licence and notice files of the source, which its licence asks to pass on; none where the folder has some."""
    if any(fnmatchcase(file.name, pattern) for file in converted.files for pattern in PASSED_ON):
        return ()
    folder = source_folder(converted.receipt)
    if folder is not None:
        names = sorted(path.name for path in folder.iterdir() if path.is_file() and _is_licence(path.name))
        return tuple(Upload(name, folder / name) for name in names)
    origin = HubOrigin.of(converted.receipt["source"])
    if origin is None:
        return ()
    with hub_errors(origin.repo, origin.commit):
        tree = retried(
            lambda: list(hub_api().list_repo_tree(origin.repo, origin.folder or None, revision=origin.commit))
        )
    names = sorted(entry.path.rsplit("/", 1)[-1] for entry in tree if hasattr(entry, "size"))
    texts = [(name, _from_hub(origin, name)) for name in names if _is_licence(name)]
    return tuple(Upload(name, text.encode()) for name, text in texts if text is not None)


def validate_on_hub(repo: str, card: str) -> None:
    """Asks the Hub whether it takes the card; raises PushRefused with its reasons, before anything is uploaded."""
    from huggingface_hub import get_session

    def ask() -> Any:
        told = {"content": card, "repoType": "model"}
        answer = get_session().post(f"{endpoint()}/api/validate-yaml", json=told, headers=headers())
        if answer.status_code not in (400, 404):
            raise_for_status(answer)
        return answer

    with hub_errors(repo):
        answer = retried(ask)
    if answer.status_code == 400:
        said = "; ".join(str(item.get("message")) for item in answer.json().get("errors") or ())
        raise PushRefused(f"{repo}: the Hub refuses the card: {said}. Correct the front matter of README.md.")


def _is_licence(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in PASSED_ON)


def _from_hub(origin: HubOrigin, name: str) -> str | None:
    path = f"{origin.folder}/{name}" if origin.folder else name
    with hub_errors(origin.repo, origin.commit):
        found = retried(lambda: hub_api().get_paths_info(origin.repo, [path], revision=origin.commit))
    entry = next((entry for entry in found if hasattr(entry, "size")), None)
    if entry is None:
        return None
    if entry.size > LARGEST_TEXT:
        raise HubError(f"{origin.repo}: {path} has {entry.size} bytes, too many for a text. Look at it.")
    label = f"{origin.repo}: {path}"
    file = RemoteFile(label, origin.repo, file_address(origin.repo, origin.commit, path), entry.size, Traffic())
    return _text(file.read(0, entry.size), label)


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{where}: is no UTF-8 text (byte {error.start}). Save it as UTF-8.") from error
