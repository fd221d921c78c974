"""The Hub's own cache on this machine: what is put there, what is there already, and what it offers offline."""

from __future__ import annotations

from collections.abc import Iterable
from glob import escape
from pathlib import Path
from typing import Any, Final

from eagle3convert.checkpoint.layout import TORCH_ENDINGS, is_trainer_file
from eagle3convert.checkpoint.strict_json import parse_object
from eagle3convert.errors import UsageError
from eagle3convert.hub.client import cache_folder, endpoint, hub_api, is_offline
from eagle3convert.hub.errors import HubError, hub_errors
from eagle3convert.hub.names import HubOrigin, HubSource, LocalSource, parse_source
from eagle3convert.hub.retrying import retried
from eagle3convert.receipt import RECEIPT_FILE

BESIDE: Final = ("README.md", "LICENSE*", "NOTICE*", "USE_POLICY*")
"""What is downloaded beside the weights: the card, and the texts that a licence asks to pass on."""


def download_files(source: HubSource, origin: HubOrigin, names: Iterable[str]) -> Path:
    """Downloads the weights ``names`` and what goes with them; the folder of the cache that they are in.

    What is there already is not fetched again, and an interrupted download goes on where it stopped.
    """
    from huggingface_hub import snapshot_download

    wanted = [escape(source.inside(name)) for name in (*names, "config.json", RECEIPT_FILE)]
    wanted += [escape(source.inside("")) + pattern for pattern in ("*.index.json", *BESIDE)]

    def snapshot(revision: str | None) -> Path:
        return Path(str(snapshot_download(source.repo, revision=revision, allow_patterns=wanted, endpoint=endpoint())))

    again = "What is downloaded already is kept; nothing of it is fetched again."
    with hub_errors(source.repo, origin.commit, also=again):
        # By the name that was asked for, so that the cache knows it offline too; by the commit where it moved since.
        place = retried(lambda: snapshot(source.revision))
        if place.name != origin.commit:
            place = retried(lambda: snapshot(origin.commit))
    return place / source.folder


def cached_folder(source: HubSource, commit: str, names: Iterable[str]) -> Path | None:
    """The folder where the cache holds all that the drafter is opened by, or None; ``names`` are all its files."""
    from huggingface_hub import try_to_load_from_cache

    names = [name for name in names if "/" not in name]
    weights = [name for name in names if name.endswith(".safetensors")]
    weights = weights or [name for name in names if name.endswith(TORCH_ENDINGS) and not is_trainer_file(name)]
    small = [name for name in names if name in ("config.json", RECEIPT_FILE) or name.endswith(".index.json")]
    if "config.json" not in small or not weights:
        return None
    found = [try_to_load_from_cache(source.repo, source.inside(n), revision=commit) for n in (*weights, *small)]
    places = [Path(place).parent for place in found if isinstance(place, str)]
    return places[0] if len(places) == len(found) else None


def offline_folder(source: HubSource) -> tuple[HubOrigin, Path]:
    """Where the cache holds the drafter, and at which commit. Raises HubError where it does not."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source.repo, source.inside("config.json"), revision=source.revision)
    if not isinstance(found, str):
        raise HubError(
            f"{source}: HF_HUB_OFFLINE is set, and the drafter is not in the Hub cache ({cache_folder()}). Unset it, "
            f"or run `hf download {source.repo}` once while online."
        )
    folder = Path(found).parent
    depth = source.folder.count("/") + 1 if source.folder else 0
    return HubOrigin(source.repo, folder.parts[-1 - depth], source.folder), folder


def resolve(repo: str, revision: str | None, patient: bool = True) -> str:
    """The commit that a revision of a repo is at now; ``patient`` waits where the Hub is not to be reached."""
    with hub_errors(repo, revision):
        info = retried(lambda: hub_api().model_info(repo, revision=revision), (1.0, 2.0, 4.0, 8.0) if patient else ())
    if not info.sha:
        raise HubError(f"{repo}: {endpoint()} names no commit for revision '{revision or 'main'}'. Run again later.")
    return info.sha


def verifier_config(text: str) -> dict[str, Any]:
    """The config.json of a verifier on the Hub (``org/model``, ``org/model@revision``); nothing else is fetched.

    Raises HubError, soon where there is no network: what is wanted is a fact or two, for which nobody waits long.
    """
    from huggingface_hub import hf_hub_download

    source = parse_source(text)
    if isinstance(source, LocalSource):
        raise UsageError(f"{text}: is no folder here and no name of a repo. Give the verifier's folder or org/model.")
    if not is_offline():
        resolve(source.repo, source.revision, patient=False)
    path = source.inside("config.json")
    with hub_errors(source.repo, source.revision):
        # By the name that was asked for, so that the cache knows it offline too.
        place = hf_hub_download(source.repo, path, revision=source.revision, endpoint=endpoint())
    return parse_object(Path(place).read_bytes(), f"{source}: config.json")
