"""Each command imports what it needs and no more: help at once, names without torch, files without the Hub."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FIXTURE = Path(__file__).parent / "fixtures" / "speculators" / "llama1"

HEAVY = ("torch", "huggingface_hub", "numpy", "ml_dtypes", "safetensors", "tqdm", "jsonschema")
PROBE = """
import sys
from eagle3convert.cli import run
sys.argv = ["eagle3convert", *sys.argv[1:]]
try:
    run()
except SystemExit as stop:
    assert stop.code in (0, None), stop.code
print("\\nloaded:", *sorted(m for m in sys.modules if "." not in m))
"""


def imported(*words: str | Path) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *map(str, words)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("loaded:")[2].split())


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["convert", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    assert not imported(*words) & {*HEAVY, "pydantic"}


@pytest.mark.parametrize("words", [["formats"], ["formats", "sglang"], ["formats", "--graph"], ["inspect", FIXTURE]])
def test_reading_imports_no_torch_and_no_hub(words: list[str | Path]) -> None:
    assert not imported(*words) & set(HEAVY)


def test_a_conversion_by_names_imports_no_torch_and_no_hub(tmp_path: Path) -> None:
    assert not imported("speculators", "sglang", FIXTURE, tmp_path / "out") & set(HEAVY)
    assert not imported("verify", FIXTURE, tmp_path / "out") & set(HEAVY)
    assert not imported("sglang", "speculators", tmp_path / "out", tmp_path / "back") & set(HEAVY)


def test_a_cast_needs_numpy_and_no_torch(tmp_path: Path) -> None:
    loaded = imported("speculators", "sglang", FIXTURE, tmp_path / "out", "--dtype", "bfloat16")
    assert "torch" not in loaded
    assert "numpy" in loaded


def test_importing_the_package_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, eagle3convert; print(*sorted(sys.modules))"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert not set(done.stdout.split()) & {*HEAVY, "click", "pydantic"}
