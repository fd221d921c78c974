"""The one place where huggingface_hub is set up: endpoint, names for the user agent, offline mode, addresses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from eagle3convert.version import __version__

if TYPE_CHECKING:
    from huggingface_hub import HfApi

LIBRARY: Final = "eagle3convert"


def endpoint() -> str:
    """The address of the Hub, without a slash at its end; HF_ENDPOINT names another one than huggingface.co."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def hub_api() -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint(), library_name=LIBRARY, library_version=__version__)


def headers() -> dict[str, str]:
    """The headers of a request to the Hub, with the user's token where there is one."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined,unused-ignore]

    made: dict[str, str] = build_hf_headers(library_name=LIBRARY, library_version=__version__)
    return made


def raise_for_status(response: Any) -> None:
    """Raises the client's own error where the Hub answered with one."""
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined,unused-ignore]

    hf_raise_for_status(response)


def is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def cache_folder() -> Path:
    """Where the Hub's own cache keeps downloaded repos."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def be_quiet() -> None:
    """Keeps the client from drawing progress bars; to be called before its first use."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def token_place() -> str:
    """Where the token in use comes from, as a phrase; empty where there is none."""
    from huggingface_hub import get_token

    if not get_token():
        return ""
    named = next((name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(name)), None)
    return f"the token in {named}" if named else "the token that `hf auth login` stored"


def page(repo: str, *more: str) -> str:
    """The address of a repo's page, or of one below it."""
    return "/".join([endpoint(), quote(repo), *more])


def file_address(repo: str, commit: str, path: str) -> str:
    """The address of a file's bytes at a revision."""
    return f"{endpoint()}/{quote(repo)}/resolve/{quote(commit, safe='')}/{quote(path)}"
