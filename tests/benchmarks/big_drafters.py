"""Large speculators drafters of random bytes, made in a second or two, for the benchmark."""

from __future__ import annotations

import json
import math
import os
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTH = {"BF16": 2, "I64": 8, "BOOL": 1}

SIZES: dict[str, dict[str, int]] = {
    "small": {"hidden": 64, "inner": 256, "heads": 4, "kv": 2, "vocab": 640, "draft": 320},
    "8B": {"hidden": 4096, "inner": 14336, "heads": 32, "kv": 8, "vocab": 128256, "draft": 32000},
    "2.4GB": {"hidden": 7168, "inner": 29696, "heads": 56, "kv": 8, "vocab": 163840, "draft": 32000},
}


def table(hidden: int, inner: int, heads: int, kv: int, draft: int, vocab: int, layers: int = 1) -> dict[str, Any]:
    """Tensor name -> (dtype, shape) of a speculators drafter without embed_tokens, wide types first."""
    dim, rows = hidden // heads, dict[str, tuple[str, tuple[int, ...]]]()
    rows["d2t"] = ("I64", (draft,))
    rows["fc.weight"] = ("BF16", (hidden, 3 * hidden))
    for i in range(layers):
        at, width = f"layers.{i}.", hidden * (2 if i == 0 else 1)
        norms = ["input_layernorm", "post_attention_layernorm", *(["hidden_norm"] if i == 0 else [])]
        rows |= {f"{at}{n}.weight": ("BF16", (hidden,)) for n in norms}
        rows |= {
            f"{at}self_attn.q_proj.weight": ("BF16", (heads * dim, width)),
            f"{at}self_attn.k_proj.weight": ("BF16", (kv * dim, width)),
            f"{at}self_attn.v_proj.weight": ("BF16", (kv * dim, width)),
            f"{at}self_attn.o_proj.weight": ("BF16", (hidden, heads * dim)),
            f"{at}mlp.gate_proj.weight": ("BF16", (inner, hidden)),
            f"{at}mlp.up_proj.weight": ("BF16", (inner, hidden)),
            f"{at}mlp.down_proj.weight": ("BF16", (hidden, inner)),
        }
    rows |= {"norm.weight": ("BF16", (hidden,)), "lm_head.weight": ("BF16", (draft, hidden))}
    return rows | {"t2d": ("BOOL", (vocab,))}


def config(hidden: int, inner: int, heads: int, kv: int, draft: int, vocab: int, layers: int = 1) -> dict[str, Any]:
    block = {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads,
        "num_key_value_heads": kv, "head_dim": hidden // heads, "num_hidden_layers": layers, "vocab_size": vocab,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip
    verifier = {"name_or_path": "example-org/verifier", "architectures": ["LlamaForCausalLM"]}
    return {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "speculators_version": "0.9.0",
        "draft_vocab_size": draft, "dtype": "bfloat16", "norm_before_residual": False, "norm_before_fc": False,
        "fc_norm": False, "norm_output": False, "eagle_aux_hidden_state_layer_ids": [2, 16, 29],
        "transformer_layer_config": block, "speculators_config": {"algorithm": "eagle3", "verifier": verifier},
    }  # fmt: skip


def data(name: str, dtype: str, shape: tuple[int, ...], draft: int, vocab: int, noise: bytes) -> Iterator[bytes]:
    """The bytes of one tensor: the vocab map for d2t and t2d, noise of small bfloat16 values for the rest."""
    step = vocab // draft
    if name == "d2t":
        yield array("q", (i * step - i for i in range(draft))).tobytes()
    elif name == "t2d":
        mask = bytearray(vocab)
        mask[0 : draft * step : step] = b"\1" * draft
        yield bytes(mask)
    else:
        left = math.prod(shape) * WIDTH[dtype]
        while left:
            piece = noise[: min(left, len(noise))]
            yield piece
            left -= len(piece)


def _noise(size: int = 16 << 20) -> bytes:
    """Random bfloat16 values below 1: random mantissas under an exponent of 2**-3."""
    low = bytearray(os.urandom(size))
    low[1::2] = b"\x3d" * (size // 2)
    return bytes(low)


def write_drafter(folder: Path, layers: int = 1, **sizes: int) -> None:
    """A drafter as one model.safetensors; a folder that is there already is kept."""
    if folder.exists():
        return
    rows, at, header = table(layers=layers, **sizes), 0, dict[str, Any]()
    for name, (dtype, shape) in rows.items():
        size = math.prod(shape) * WIDTH[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config(layers=layers, **sizes)))
    noise = _noise()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, (dtype, shape) in rows.items():
            file.writelines(data(name, dtype, shape, sizes["draft"], sizes["vocab"], noise))


def write_bin(folder: Path, **sizes: int) -> None:
    """The same drafter as a pytorch_model.bin, written by torch."""
    import torch

    kinds = {"BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool}
    noise, tensors = _noise(), {}
    for name, (dtype, shape) in table(**sizes).items():
        raw = bytearray(b"".join(data(name, dtype, shape, sizes["draft"], sizes["vocab"], noise)))
        tensors[name] = torch.frombuffer(raw, dtype=kinds[dtype]).reshape(shape)
    folder.mkdir(parents=True)
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(config(**sizes)))


def many_layers(folder: Path, layers: int) -> None:
    """A tiny drafter of very many decoder layers, nine tensors each."""
    write_drafter(folder, layers=layers, hidden=16, inner=16, heads=2, kv=1, vocab=64, draft=32)
