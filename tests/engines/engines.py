"""The engines' environments, and how a test runs a program inside one.

`install.sh` makes one virtual environment per engine and release.  They lie in `.engines/` of the checkout, or in the
folder that EAGLE3CONVERT_ENGINES names.  A host is a program in `hosts/` that runs in such an environment: it reads a
job (JSON) from standard input and writes what it found to the JSON file that the job names as "results".
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HOSTS = HERE / "hosts"
ENVIRONMENTS = Path(os.environ.get("EAGLE3CONVERT_ENGINES") or ROOT / ".engines")
SGLANG = "0.5.23"
SPECULATORS = "0.9.0"
OLDER = tuple(line.split()[0] for line in (HERE / "sglang-releases.txt").read_text().splitlines() if line[0] != "#")
"""The older SGLang releases that `install.sh` makes environments of, oldest first."""


def python_of(engine: str) -> Path:
    """The Python of an engine's environment: "speculators", "vllm", or "sglang-RELEASE"."""
    python = ENVIRONMENTS / engine / "bin" / "python"
    assert python.is_file(), (
        f"{python} is missing, so nothing can be said about {engine}. "
        f"`bash tests/engines/install.sh` makes the environments of all engines."
    )
    return python


def run_host(
    engine: str,
    program: str,
    job: Mapping[str, Any],
    results: Path,
    timeout: float = 600,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Run `hosts/program` in an engine's environment on a job; the results that it wrote."""
    results.unlink(missing_ok=True)
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [str(python_of(engine)), str(HOSTS / program)],
        input=json.dumps({**job, "results": str(results)}), capture_output=True, text=True, timeout=timeout,
        env={**os.environ, **offline, **(environment or {})}, check=False,
    )  # fmt: skip
    talk = (done.stdout + done.stderr)[-6000:]
    assert done.returncode == 0, f"{program} in {engine} ended with {done.returncode}:\n{talk}"
    assert results.is_file(), f"{program} in {engine} wrote no results:\n{talk}"
    return json.loads(results.read_text(encoding="utf-8"))
