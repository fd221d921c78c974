"""Rotary positions: the frequencies of each kind of rope, as transformers defines them, and their application."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from eagle3convert.errors import CheckpointError

# Kinds of rope for which programs do not agree on the numbers, or which a drafter's text alone cannot run.
REFUSED = {
    "mrope": "multimodal positions (three per token) are not in captured text",
    "dynamic": "transformers stretches the base with the length of the text, vLLM once for all",
    "longrope": "its factors change with the length of the text",
    "proportional": "no engine here reads it for a drafter",
}


class Rope:
    """The rope of a drafter: `rotate` turns heads by their positions.

    `parameters` is the canonical rope (`rope_type`, `rope_theta` …), `longest` the config's max_position_embeddings.
    Raises CheckpointError where this kind of rope is not computed here.
    """

    def __init__(self, parameters: Mapping[str, Any], head_dim: int, longest: int | None) -> None:
        kind = str(parameters.get("rope_type", "default"))
        if parameters.get("mrope_section"):
            kind = "mrope"
        if kind in REFUSED:
            raise CheckpointError(
                f"rope_type {kind!r}: the reference forward pass does not compute it, for {REFUSED[kind]}. The "
                f"conversion itself does not depend on it."
            )
        part = parameters.get("partial_rotary_factor", 1.0)
        if part != 1.0:
            raise CheckpointError(
                f"partial_rotary_factor {part}: the reference forward pass turns whole heads only, for transformers' "
                f"llama ignores the field and engines follow it."
            )
        kinds = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
        if kind not in kinds:
            raise CheckpointError(
                f"rope_type {kind!r}: the reference forward pass computes {', '.join(kinds)} only. The conversion "
                f"itself does not depend on it."
            )
        known = dict(parameters)
        if known.get("original_max_position_embeddings") is None:
            known["original_max_position_embeddings"] = longest
        try:
            self.frequencies, self.scale = kinds[kind](known, head_dim)
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"rope {dict(parameters)}: {kind} needs a number for {error}.") from None

    def rotate(self, positions: Tensor, *heads: Tensor) -> list[Tensor]:
        """Tensors of heads [heads, T, head_dim] turned by the positions [T] of their tokens."""
        turns = positions.float()[:, None] * self.frequencies.to(positions.device)[None, :]
        angles = torch.cat([turns, turns], dim=-1)
        cos, sin = angles.cos() * self.scale, angles.sin() * self.scale
        return [x * cos.to(x.dtype) + _half_turned(x) * sin.to(x.dtype) for x in heads]


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def _default(rope: Mapping[str, Any], dim: int) -> tuple[Tensor, float]:
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    return 1.0 / (float(rope["rope_theta"]) ** exponents), 1.0


def _linear(rope: Mapping[str, Any], dim: int) -> tuple[Tensor, float]:
    return _default(rope, dim)[0] / rope["factor"], 1.0


def _llama3(rope: Mapping[str, Any], dim: int) -> tuple[Tensor, float]:
    """Long waves are slowed by `factor`, short ones kept, and those between blended."""
    plain, factor = _default(rope, dim)[0], rope["factor"]
    low, high, context = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    wavelengths = 2 * math.pi / plain
    blend = (context / wavelengths - low) / (high - low)
    blended = (1 - blend) * plain / factor + blend * plain
    slowed = torch.where(wavelengths > context / low, plain / factor, plain)
    between = (wavelengths >= context / high) & (wavelengths <= context / low)
    return torch.where(between, blended, slowed), 1.0


def _yarn(rope: Mapping[str, Any], dim: int) -> tuple[Tensor, float]:
    """Between two bounds on the number of turns in the original context, a ramp from kept to slowed waves."""
    base, factor, context = float(rope["rope_theta"]), rope["factor"], rope["original_max_position_embeddings"]

    def place_of(turns: float) -> float:
        return float(dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base)))

    low, high = place_of(rope.get("beta_fast") or 32), place_of(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    kept = 1 - ramp.clamp(0, 1)
    periods = base ** (torch.arange(0, dim, 2).float() / dim)
    scale = rope.get("attention_factor")
    if scale is None:
        mscale, everywhere = rope.get("mscale"), rope.get("mscale_all_dim")
        scale = _mscale(factor, 1.0)
        if mscale and everywhere:
            scale = _mscale(factor, mscale) / _mscale(factor, everywhere)
    return 1.0 / (factor * periods) * (1 - kept) + 1.0 / periods * kept, float(scale)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
