"""The attention kernel's stand-in: what an engine's KV cache lets a drafted token see, in plain torch.

Step 0 reads a whole text: a row sees the keys of its own and earlier rows, `window` of them before itself at most
(SGLang's size does not count the query: srt/layers/attention/torch_native_backend.py:34-48 of 0.5.23).  Later draft
steps add each row's own keys, as the trainers' mask has it, so that all rows can be drafted at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class RowAttention:
    """Keys and values of one text, layer by layer and draft step by draft step."""

    def __init__(self) -> None:
        self.seen: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def reset(self) -> None:
        self.seen.clear()

    def attend(self, layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Queries, keys and values of T rows -> the same shape as the queries, as SGLang's own backends answer."""
        shape, rows = q.shape, q.shape[1 if q.dim() == 4 else 0]
        q, k, v = (x.reshape(rows, -1, layer.head_dim).transpose(0, 1) for x in (q, k, v))
        groups = q.shape[0] // k.shape[0]
        steps = self.seen.setdefault(layer.layer_id, [])
        steps.append((k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)))
        (first_k, first_v), own = steps[0], steps[1:]
        back = torch.arange(rows)[:, None] - torch.arange(rows)[None]
        size = getattr(layer, "sliding_window_size", -1)
        hidden = (back < 0) | (back > size) if size is not None and size >= 0 else back < 0
        scores = (q @ first_k.transpose(-1, -2)).masked_fill(hidden, float("-inf"))
        later = [(q * key).sum(-1, keepdim=True) for key, _ in own]
        weights = (torch.cat([scores, *later], -1) * layer.scaling).softmax(-1)
        out = weights[..., :rows] @ first_v
        for step, (_, value) in enumerate(own):
            out = out + weights[..., rows + step, None] * value
        return out.transpose(0, 1).reshape(shape)


def replace_attention() -> RowAttention:
    """Put the stand-in where SGLang's models call the attention backend."""
    from sglang.srt.layers.radix_attention import RadixAttention

    attention = RowAttention()

    def forward(self: Any, q: Tensor, k: Tensor, v: Tensor, forward_batch: Any, *_: Any, **__: Any) -> Tensor:
        return attention.attend(self, q, k, v)

    RadixAttention.forward = forward
    return attention
