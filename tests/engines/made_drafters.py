"""Drafters that the speculators library does not make: its fixtures with one thing changed, and their logits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import eagle3convert

from ..drafters import make_drafter, read_config
from .converted import FIXTURES
from .drafter_edits import read_folder, write_folder
from .reference import trained_logits


@dataclass(frozen=True)
class Made:
    """A drafter as it was trained, and a file with states to run it on and the logits that it must give."""

    folder: Path
    source_format: str
    states: Path


def with_oracle(folder: Path, source_format: str, like: Path) -> Made:
    """The drafter with logits of the reference forward pass, on the states of a fixture."""
    oracle = load_file(like / "oracle.safetensors")
    logits = trained_logits(folder, source_format, oracle["hidden"], oracle["input_ids"])
    path = folder.with_suffix(".oracle.safetensors")
    save_file({**oracle, **{f"logits.{k}": x.contiguous() for k, x in enumerate(logits)}}, path)
    return Made(folder, source_format, path)


def fc_bias(place: Path) -> Made:
    source = FIXTURES / "llama1"
    config, tensors = read_folder(source)
    tensors["fc.bias"] = torch.randn(32, generator=torch.Generator().manual_seed(5))
    return with_oracle(write_folder(place / "with-fc-bias", config, tensors), "speculators", source)


def no_final_norm(place: Path) -> Made:
    """SpecForge's norm_output false: logits of the state before the norm."""
    source = FIXTURES / "llama1"
    folder = eagle3convert.convert(source, place / "without-norm", "speculators", "specforge").path
    (folder / "eagle3convert.json").unlink()
    config = read_config(folder) | {"norm_output": False}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return with_oracle(folder, "specforge", source)


def permuted_vocabulary(place: Path) -> Made:
    """All of the verifier's tokens in reverse order, with a d2t that says so."""
    source = FIXTURES / "llama1_fullvocab"
    config, tensors = read_folder(source)
    size = len(tensors["lm_head.weight"])
    tensors["lm_head.weight"] = tensors["lm_head.weight"].flip(0)
    tensors["d2t"], tensors["t2d"] = size - 1 - 2 * torch.arange(size), torch.ones(size, dtype=torch.bool)
    folder = write_folder(place / "reversed", config, tensors)
    oracle = load_file(source / "oracle.safetensors")
    path = place / "reversed.oracle.safetensors"
    save_file({k: x.flip(-1).contiguous() if k.startswith("logits") else x for k, x in oracle.items()}, path)
    return Made(folder, "speculators", path)


def narrow(place: Path) -> Made:
    """16 wide for a verifier of 32."""
    sizes = {"hidden": 16, "intermediate": 24, "heads": 4, "kv_heads": 2, "head_dim": 4, "vocab": 96}
    every_other = tuple(range(0, 96, 2))
    drafter = make_drafter("sglang", **sizes, target_hidden=32, aux=(2, 4, 5), targets=every_other, dtype="F32")
    return with_oracle(drafter.write(place / "narrow"), "sglang", FIXTURES / "llama1")


def shared_lm_head(place: Path) -> tuple[Made, Path]:
    """An SGLang drafter without a head, and a file with the verifier's `head`, which is that of llama1_fullvocab."""
    source = FIXTURES / "llama1_fullvocab"
    folder = eagle3convert.convert(source, place / "without-head", "speculators", "sglang").path
    (folder / "eagle3convert.json").unlink()
    config, tensors = read_config(folder), load_file(folder / "model.safetensors")
    save_file({"head": tensors.pop("lm_head.weight")}, place / "head.safetensors")
    (folder / "config.json").write_text(json.dumps(config | {"draft_vocab_size": None}), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return Made(folder, "sglang", source / "oracle.safetensors"), place / "head.safetensors"


MADE: dict[str, Callable[[Path], Made]] = {
    "fc_bias": fc_bias, "final_norm": no_final_norm, "permuted_vocabulary": permuted_vocabulary, "narrow": narrow,
}  # fmt: skip
"""Feature -> a drafter that has it."""
