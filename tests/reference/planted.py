"""Drafters with planted faults, made from the trained drafter that ships with the package, and small captures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "eagle3convert" / "demo_drafter"
CAPTURED = DEMO / "captured_states.safetensors"
FIXTURES = ROOT / "tests" / "fixtures" / "speculators"
ROPES = Path(__file__).parent / "speculators"

Config = dict[str, Any]
Tensors = dict[str, Tensor]
Fault = Callable[[Config, Tensors], None]


def plant(out: Path, *faults: Fault, source: Path = DEMO) -> Path:
    """A copy of a one-file drafter in `out` with the faults done to its config and tensors."""
    out.mkdir(parents=True)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(source / "model.safetensors")
    for fault in faults:
        fault(config, tensors)
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def d2t_absolute(config: Config, tensors: Tensors) -> None:
    """Absolute ids where offsets are read: every reader adds the draft id once more."""
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))


def without_t2d(config: Config, tensors: Tensors) -> None:
    del tensors["t2d"]


def aux_layers(*ids: int) -> Fault:
    def fault(config: Config, tensors: Tensors) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = list(ids)

    return fault


def flag(name: str, value: bool) -> Fault:
    def fault(config: Config, tensors: Tensors) -> None:
        config[name] = value

    return fault


def norms_swapped(config: Config, tensors: Tensors) -> None:
    a, b = "layers.0.hidden_norm.weight", "layers.0.input_layernorm.weight"
    tensors[a], tensors[b] = tensors[b], tensors[a]


def other_embedding(config: Config, tensors: Tensors) -> None:
    """Every token with the embedding of the one before it."""
    tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"].roll(1, 0).contiguous()


def fc_blocks_moved(config: Config, tensors: Tensors) -> None:
    """fc's blocks as if it had been trained on the states 6, 0, 4."""
    first, second, third = tensors["fc.weight"].chunk(3, dim=1)
    tensors["fc.weight"] = torch.cat([third, first, second], dim=1).contiguous()


def layer_missing(config: Config, tensors: Tensors) -> None:
    for name in [n for n in tensors if n.startswith("layers.0.")]:
        del tensors[name]


def layer_fresh(config: Config, tensors: Tensors) -> None:
    """The decoder layer as at the start of a training: what a loader leaves that did not find it."""
    random = torch.Generator().manual_seed(0)
    for name, value in tensors.items():
        if name.startswith("layers.0."):
            fresh = torch.ones(value.shape) if "norm" in name else 0.02 * torch.randn(value.shape, generator=random)
            tensors[name] = fresh.to(value.dtype)


def undertrained(config: Config, tensors: Tensors) -> None:
    random = torch.Generator().manual_seed(0)
    for name, value in tensors.items():
        if value.is_floating_point():
            tensors[name] = (0.05 * torch.randn(value.shape, generator=random) + ("norm" in name)).to(value.dtype)


def without_embedding(config: Config, tensors: Tensors) -> None:
    del tensors["embed_tokens.weight"]


def captured() -> Tensors:
    """The captured states that ship with the package."""
    return load_file(CAPTURED)


def subjects(report: Any) -> set[str]:
    """In which respects the winning reading of a ReplayReport differs from the declared one."""
    return {d.subject for d in report.winner.differences}
