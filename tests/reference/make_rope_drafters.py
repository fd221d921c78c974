#!/usr/bin/env python3
"""Writes the drafters of ``speculators/`` beside this file: one for each kind of rope that the reference computes.

Runs in the environment of tests/fixtures/install_speculators.sh, like the fixtures there, and in the same way: the real
library writes the drafter, and its own logits are kept in ``oracle.safetensors``.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

from loguru import logger  # type: ignore[import-not-found]
from make_speculators_drafters import Recipe, make, make_verifier
from speculators_oracle import write_oracle
from transformers.utils.logging import disable_progress_bar

ROPES = {
    "rope_linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "rope_llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "rope_yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
    },
    "rope_yarn_mscale": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.3,
        "mscale_all_dim": 0.7,
        "truncate": False,
    },
}


def main() -> None:
    """Writes every drafter anew."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    disable_progress_bar()
    logger.remove()
    with tempfile.TemporaryDirectory() as scratch:
        verifier = Path(scratch) / "llama"
        make_verifier("llama", verifier)
        for seed, (name, rope) in enumerate(ROPES.items()):
            folder = Path(__file__).parent / "speculators" / name
            for old in folder.glob("*"):
                old.unlink()
            folder.parent.mkdir(parents=True, exist_ok=True)
            make(Recipe(layer_config={"rope_parameters": rope}), 200 + seed, verifier, folder)
            write_oracle(folder)
            for path in folder.iterdir():
                path.chmod(0o644)
            print(name, *sorted(path.name for path in folder.iterdir()))


if __name__ == "__main__":
    main()
