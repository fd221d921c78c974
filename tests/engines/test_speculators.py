"""The real speculators library reads what came back from every format, and computes the same logits, bit for bit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import eagle3convert

from ..drafters import write_verifier
from ..test_real_speculators import FIXTURES, WAYS, without_receipt
from .converted import NAMES, SOURCES
from .engines import SPECULATORS, python_of

pytestmark = pytest.mark.engine
ORACLE = FIXTURES.parent / "speculators_oracle.py"
# One process for all drafters: importing the library takes longer than running it.
CHECK_ALL = """
import json, sys
sys.path.insert(0, sys.argv[1])
from importlib.metadata import version
from speculators_oracle import main
print("speculators", version("speculators"))
sys.exit(max(main(words) for words in json.load(sys.stdin)))
"""


def library(runs: list[list[str]]) -> str:
    """What the library's oracle says of these folders; fails where one is not equal."""
    done = subprocess.run(
        [python_of("speculators"), "-c", CHECK_ALL, str(ORACLE.parent)], input=json.dumps(runs), capture_output=True,
        text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"speculators {SPECULATORS}" in done.stdout
    return done.stdout


def test_the_stored_logits_are_the_librarys_own() -> None:
    """All engines are held against them."""
    said = library([[str(SOURCES[name]) for name in NAMES]])
    assert said.count("equal") >= len(NAMES)


def test_the_library_computes_the_same_logits_from_what_came_back(tmp_path: Path) -> None:
    verifier = write_verifier(
        tmp_path / "verifier", num_hidden_layers=8, hidden_size=32, vocab_size=96, max_position_embeddings=512
    )
    runs = []
    for name, destination in WAYS:
        source, work = FIXTURES / name, tmp_path / f"{name}-{destination}"
        there, back, plain = work / "there", work / "with-receipt", work / "without-receipt"
        work.mkdir()
        eagle3convert.convert(source, there, "speculators", destination, verifier_config=verifier)
        eagle3convert.convert(there, back, destination, "speculators")
        bare = without_receipt(there, work / "bare")
        eagle3convert.convert(bare, plain, destination, "speculators", verifier_config=verifier)
        runs.append([str(back), str(plain), "--check", str(source)])
    assert library(runs).count("bit-equal") == 2 * len(WAYS)
