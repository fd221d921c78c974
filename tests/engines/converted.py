"""The fixtures of the real speculators library, converted and run in a real SGLang."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import eagle3convert
from eagle3convert.planning import Plan

from .engines import ROOT, SGLANG, run_host

FIXTURES = Path(__file__).parents[1] / "fixtures" / "speculators"
ROPES = Path(__file__).parents[1] / "reference" / "speculators"
SOURCES = {path.parent.name: path.parent for place in (FIXTURES, ROPES) for path in place.glob("*/oracle.safetensors")}
"""Every drafter of the library that has its logits beside it."""
NAMES = sorted(SOURCES)
TOLERANCE = 1e-5
"""Largest difference of float32 logits between two programs that compute the same: they sum in other orders."""
APART = 1e-2
"""A difference of logits that no rounding makes."""
PLUGIN = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "eagle3convert.engines.sglang", "PYTHONPATH": str(ROOT)}


def verifier_config(folder: Path, model_type: str = "llama") -> Path:
    """The config of the fixtures' verifier, as far as a conversion reads it."""
    facts = {"model_type": model_type, "num_hidden_layers": 8, "hidden_size": 32, "vocab_size": 96}
    path = folder / f"{model_type}.json"
    path.write_text(json.dumps(facts | {"max_position_embeddings": 512}), encoding="utf-8")
    return path


ROWS: dict[str, tuple[str, ...]] = {
    "llama1": ("plain", "odd vocabulary"),
    "llama1_fullvocab": ("full vocabulary",),
    "llama1_headdim": ("head_dim",),
    "llama1_4aux_inner": ("four aux layers",),
    "llama1_nbr": ("norm_before_residual",),
    "llama1_normfc": ("norm_before_fc",),
    "llama1_fcnorm": ("fc_norm",),
    "llama1_normout": ("norm_output",),
    "llama1_swa4": ("sliding_window",),
    "llama1_attnbias": ("attention_bias",),
    "llama1_mlpbias": ("mlp_bias",),
    "llama1_1aux": ("single_aux_layer",),
    "llama2": ("multi_layer",),
    "llama2_mixed": ("mixed_attention",),
    "qwen3_1": ("qk_norm",),
    **dict.fromkeys(("rope_linear", "rope_llama3", "rope_yarn", "rope_yarn_mscale"), ("rope",)),
}
"""Fixture -> the rows of the table (matrix.py) that it stands for."""


@dataclass(frozen=True)
class Job:
    """One drafter folder for the host, with the states to run it on and the server's window flag."""

    folder: Path
    states: Path
    window: int | None = None


@dataclass(frozen=True)
class Ran:
    """What SGLang made of a drafter."""

    found: Mapping[str, Any]
    logits: Path
    states: Path

    @property
    def distance(self) -> float:
        """Largest difference from the library's logits, over three draft steps; infinite where nothing was computed."""
        if self.found["stage"] != "done":
            return float("inf")
        ours, theirs = load_file(self.logits), load_file(self.states)
        return max(float((ours[f"logits.{k}"] - theirs[f"logits.{k}"]).abs().max()) for k in range(3))

    @property
    def lost(self) -> set[str]:
        """Tensors that it dropped; t2d is not needed where d2t is read."""
        return set(self.found["dropped"]) - {"t2d"}


def run_drafters(
    place: Path, jobs: Mapping[str, Job], release: str = SGLANG, environment: Mapping[str, str] | None = None
) -> dict[str, Ran]:
    """Run drafter folders in one SGLang; by name."""
    cases = [
        {
            "name": name, "folder": str(job.folder), "states": str(job.states), "window": job.window,
            "logits": str(place / f"{name}.logits.safetensors"),
        }
        for name, job in jobs.items()
    ]  # fmt: skip
    told = run_host(
        f"sglang-{release}", "sglang_drafters.py", {"cases": cases}, place / "found.json", environment=environment
    )
    assert told["release"] == release
    return {
        name: Ran(told["cases"][name], place / f"{name}.logits.safetensors", job.states) for name, job in jobs.items()
    }


def window_flag(plan: Plan) -> int | None:
    """The value of --speculative-draft-window-size in a plan's launch command."""
    words = list(plan.launch)
    flag = "--speculative-draft-window-size"
    return int(words[words.index(flag) + 1]) if flag in words else None


def convert_allowed(
    place: Path, destination: str, names: Iterable[str] = tuple(NAMES), model_type: str = "llama"
) -> tuple[dict[str, Job], dict[str, Plan], dict[str, Plan]]:
    """Convert every fixture that the plan allows: (the jobs, their plans, the refused plans)."""
    verifier = verifier_config(place, model_type)
    jobs: dict[str, Job] = {}
    allowed: dict[str, Plan] = {}
    refused: dict[str, Plan] = {}
    for name in names:
        source = SOURCES[name]
        plan = eagle3convert.plan(source, "speculators", destination, verifier_config=verifier)
        if plan.errors:
            refused[name] = plan
            continue
        done = eagle3convert.convert(source, place / name, "speculators", destination, verifier_config=verifier)
        allowed[name] = done.plan
        jobs[name] = Job(done.path, source / "oracle.safetensors", window_flag(done.plan))
    return jobs, allowed, refused
