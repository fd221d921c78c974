"""Where torch is missing: a sentence with the remedy, and nothing else of the package is touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
sys.modules["torch"] = None  # importing it fails from here on
from eagle3convert.errors import UsageError
try:
    import eagle3convert.reference.replay
except UsageError as error:
    print(error)
"""
IDLE = """
import sys
import eagle3convert.cli, eagle3convert.conversion, eagle3convert.rules
print("torch" in sys.modules, any(name.startswith("eagle3convert.reference") for name in sys.modules))
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def test_the_remedy_is_named() -> None:
    said = run(PROGRAM)
    assert said.startswith("torch is not installed")
    assert said.endswith("pip install 'eagle3convert[torch]'")


def test_nothing_else_imports_torch() -> None:
    assert run(IDLE) == "False False"


def test_nothing_outside_the_reference_imports_it_at_the_top() -> None:
    package = Path(__file__).parents[2] / "eagle3convert"
    for file in package.rglob("*.py"):
        if file.relative_to(package).parts[0] in ("reference", "engines"):  # engines import theirs
            continue
        lines = file.read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines if line.startswith(("import torch", "from torch"))], file
        assert not [line for line in lines if line.startswith("from eagle3convert.reference")], file
