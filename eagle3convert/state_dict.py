"""Conversion of a drafter that a training script holds in memory: a state dict and its config. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3convert.checkpoint.source import Checkpoint
from eagle3convert.checkpoint.stored import MemoryFile, StoredTensor
from eagle3convert.conversion import plan_checkpoint
from eagle3convert.errors import CheckpointError, UsageError
from eagle3convert.options import Options
from eagle3convert.planning import Plan

if TYPE_CHECKING:
    import torch

_TORCH_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip


@dataclass(frozen=True)
class ConvertedStateDict:
    """The converted tensors and config; tensors whose bytes did not change are the very ones that were given."""

    state_dict: dict[str, torch.Tensor]
    config: dict[str, Any]
    plan: Plan


def convert_state_dict(
    state_dict: Mapping[str, torch.Tensor],
    config: Mapping[str, Any],
    *,
    source: str,
    destination: str,
    **stated: Any,
) -> ConvertedStateDict:
    """Convert a drafter held in memory, from the format `source` to `destination`; nothing is written.

    `config` is the config.json of the source format as an object.  Keyword arguments are the fields of
    `eagle3convert.Options`.  Raises Refused with every reason where the destination would compute something else.
    """
    try:
        import torch
    except ImportError:
        raise UsageError(
            "convert_state_dict works on torch tensors, and torch is not installed: pip install 'eagle3convert[torch]'."
        ) from None
    dtypes = {getattr(torch, name): code for code, name in _TORCH_NAMES.items() if hasattr(torch, name)}
    stored = {name: _stored(name, tensor, dtypes, torch) for name, tensor in state_dict.items()}
    checkpoint = Checkpoint(Path("state dict"), dict(config), stored, {}, (), (), "memory")
    plan = plan_checkpoint(checkpoint, source, destination, Options(**stated))
    plan.demand()
    converted = {}
    for name, row in plan.output.tensors.items():
        if row.origin is not None and not row.ops:
            converted[name] = state_dict[row.origin]
            continue
        old = stored[row.origin] if row.origin is not None else None
        data = bytearray(b"".join(row.blocks(old)))
        converted[name] = torch.frombuffer(data, dtype=getattr(torch, _TORCH_NAMES[row.dtype])).reshape(row.shape)
    return ConvertedStateDict(converted, dict(plan.output.config), plan)


def _stored(name: str, tensor: torch.Tensor, dtypes: Mapping[Any, str], torch: Any) -> StoredTensor:
    """A tensor of the caller as one that lies in memory; on the CPU and contiguous it is not copied."""
    if tensor.dtype not in dtypes:
        raise CheckpointError(f"{name}: its dtype {tensor.dtype} cannot be written to safetensors. Cast it first.")
    flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return StoredTensor(
        name,
        dtypes[tensor.dtype],
        tuple(tensor.shape),
        MemoryFile(f"state dict: {name}", memoryview(flat.numpy())),
        0,
        flat.numel(),
    )
