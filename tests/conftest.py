"""What every test may use: the command line as a user runs it, and a check that nothing was left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

Command = Callable[..., subprocess.CompletedProcess[str]]

settings.register_profile(
    "eagle3convert",
    deadline=None,
    derandomize=True,  # the same examples on every machine; the search for new ones is for the developer's own runs
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
settings.load_profile("eagle3convert")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-engine-table", action="store_true", help="write the tables of docs/engines.md anew")


def pytest_configure(config: pytest.Config) -> None:
    # A program started by one that ignores a signal (nohup, a background job) ignores it as well; handlers are not
    # inherited, so the programs under test meet the signals as they would in a terminal.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


def run_command(*words: str | Path, cwd: Path | None = None, **options: object) -> subprocess.CompletedProcess[str]:
    """`python -m eagle3convert` with these words, in a process of its own."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "eagle3convert", *map(str, words)],
        capture_output=True, text=True, timeout=120, cwd=cwd, env=environment, check=False,
    )  # fmt: skip


@pytest.fixture
def command() -> Command:
    """The command line; every run also proves that no traceback and no defect notice is shown."""

    def run(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        done = run_command(*words, cwd=cwd)
        talk = done.stdout + done.stderr
        assert "Traceback" not in talk, talk
        assert done.returncode in (0, 1, 2, 130), talk
        return done

    return run


def left_behind(folder: Path) -> list[str]:
    """Names in a folder that a conversion must not leave: its temporary siblings."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name.startswith(".") or "tmp" in entry.name)
