"""The fixtures of the Hub tests: a server, a client that knows only this server, and converted drafters."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3convert import convert

from .server import HubServer

FIXTURES = Path(__file__).parents[1] / "fixtures" / "speculators"
SOURCE_CARD = """---
license: apache-2.0
base_model: example-org/tiny-llama
tags:
- speculators
- my-tag
---

# The drafter

Trained with care. See [the plot](plots/loss.png).
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    with HubServer(tmp_path_factory.mktemp("server")).running() as running:
        yield running


@pytest.fixture
def hub(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """An empty Hub, and the real client set up for it: alice's token, a cache of its own, no Xet, no waiting."""
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import disable_progress_bars

    from eagle3convert.hub import retrying

    folder = tmp_path / "hub"
    folder.mkdir()
    server.reset(folder)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(retrying, "pause", lambda seconds: None)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client's own waits between tries
    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    return server


@pytest.fixture(scope="session")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter that speculators wrote, with a card and a licence beside it."""
    folder = tmp_path_factory.mktemp("drafter") / "tiny-speculator"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURES / "llama1" / name, folder)
    (folder / "README.md").write_text(SOURCE_CARD)
    (folder / "LICENSE").write_text("Do what is right.\n")
    return folder


@pytest.fixture(scope="session")
def converted_once(drafter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("converted") / "tiny-sglang"
    convert(drafter, out, "speculators", "sglang", durable=False)
    return out


@pytest.fixture
def converted(converted_once: Path, tmp_path: Path) -> Path:
    """The drafter converted to sglang, in a folder that the test may change."""
    return Path(shutil.copytree(converted_once, tmp_path / "tiny-sglang"))


@pytest.fixture
def command_environment(hub: HubServer, tmp_path: Path) -> dict[str, str]:
    """The environment of a command that is run against the server."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    return kept | {
        "HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_alice", "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HOME": str(tmp_path),
    }  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The client sends large files in a way that its own HTTP library calls outdated; that is not ours to mend."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"))
