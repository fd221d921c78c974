"""The Xet path with the real Rust client, which keeps what it is sent in a folder instead of on a server."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from packaging.version import Version

from .server import HubServer
from .xet import files_in

pytest.importorskip("hf_xet")
pytestmark = pytest.mark.skipif(
    Version(huggingface_hub.__version__) < Version("1.20"), reason="older clients ask the server, which offers LFS"
)

PUSH = """
import sys
from eagle3convert.hub.push import push_to_hub
result = push_to_hub(sys.argv[1], "acme/tiny")
print(result.commit, result.unchanged)
"""
DOWNLOAD = """
from eagle3convert.hub.names import HubSource
from eagle3convert.hub.sources import download
print(download(HubSource("acme/tiny")))
"""


def run(code: str, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, env=environment, check=False
    )


def test_push_and_download_through_xet(
    hub: HubServer, converted: Path, command_environment: dict[str, str], tmp_path: Path
) -> None:
    weights = converted / "model.safetensors"
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    hub.xet = tmp_path / "xet"
    hub.xet.mkdir()
    hub.originals = {sha256: weights}
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), *filter(None, [command_environment.get("PYTHONPATH")])])
    environment = {**command_environment, "HF_HUB_DISABLE_XET": "0", "PYTHONPATH": paths}
    done = run(PUSH, environment, str(converted))
    if not files_in(hub.xet):
        pytest.skip(f"this hf_xet keeps its files otherwise: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    commit, unchanged = done.stdout.split()
    assert (commit, unchanged) == (hub.store.repos["acme/tiny"].refs["main"], "False")
    assert sha256 in files_in(hub.xet)
    assert hub.count("PUT /large/|/objects/batch") == 0
    assert hub.count("/xet-write-token/") >= 1

    stored = sum(path.stat().st_size for path in hub.xet.rglob("*") if path.is_file())
    assert run(PUSH, environment, str(converted)).stdout.split() == [commit, "True"]
    assert sum(path.stat().st_size for path in hub.xet.rglob("*") if path.is_file()) == stored

    shutil.rmtree(tmp_path / "home")
    done = run(DOWNLOAD, environment)
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "model.safetensors").read_bytes() == weights.read_bytes()
    assert hub.count("/xet-read-token/") >= 1
