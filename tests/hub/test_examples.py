"""The examples, run as they are written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .server import HubServer

EXAMPLES = Path(__file__).parent / "examples"


@pytest.fixture
def run(drafter: Path, tmp_path: Path) -> Path:
    for epoch in (1, 2):
        shutil.copytree(drafter, tmp_path / "run" / f"epoch_{epoch}")
    return tmp_path / "run"


def test_python(hub: HubServer, run: Path, command_environment: dict[str, str]) -> None:
    words = [sys.executable, str(EXAMPLES / "push_each_checkpoint.py")]
    for _ in range(2):
        done = subprocess.run(
            words, cwd=run.parent, env=command_environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert set(hub.store.repos["acme/drafter"].refs) == {"main", "epoch_1", "epoch_2"}
        assert hub.count("POST .*/commit/") == 2


def test_actions(hub: HubServer, run: Path, command_environment: dict[str, str]) -> None:
    job = yaml.safe_load((EXAMPLES / "push-checkpoints.yml").read_text())["jobs"]["push"]
    step = job["steps"][-1]
    assert step["env"]["HF_TOKEN"] == "${{ secrets.HF_TOKEN }}"
    path = os.pathsep.join([str(Path(sys.executable).parent), command_environment["PATH"]])
    environment = {**command_environment, "PATH": path, "RUN_DIR": str(run), "REPO": step["env"]["REPO"]}
    done = subprocess.run(
        ["bash", "-ec", step["run"]], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert set(hub.store.repos[step["env"]["REPO"]].refs) == {"main", "epoch_1", "epoch_2"}
