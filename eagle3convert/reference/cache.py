"""Keys and values: which of them a query sees, in training's form (all rows at once) and in serving's (one chain)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

Window = Literal["anchored", "moving"]
CHUNK = 512  # rows of queries attended at once; bounds the memory of the scores


@dataclass(frozen=True)
class Packed:
    """The sequences that T rows consist of, one after the other: `starts` are the rows that begin one."""

    length: int
    starts: tuple[int, ...] = (0,)

    @property
    def spans(self) -> list[tuple[int, int]]:
        return list(zip(self.starts, (*self.starts[1:], self.length), strict=True))

    @cached_property
    def places(self) -> Tensor:
        """The place [T] of each row in its sequence, from 0."""
        return torch.cat([torch.arange(end - start) for start, end in self.spans])

    @cached_property
    def left(self) -> Tensor:
        """How many rows [T] of the same sequence follow each row."""
        return torch.cat([torch.arange(end - start - 1, -1, -1) for start, end in self.spans])

    def shifted(self, values: Tensor, by: int) -> Tensor:
        """`values` [T] moved `by` rows to the left within each sequence, with zeros at its end."""
        if by == 0:
            return values
        moved = torch.cat([values[by:], values.new_zeros(min(by, len(values)))])
        return torch.where(self.left.to(values.device) >= by, moved, torch.zeros_like(values))


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Softmax attention, its weights in float32: q [heads, N, D], k, v [kv_heads, M, D], visible [N, M] -> as q."""
    groups = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(groups, dim=0), v.repeat_interleave(groups, dim=0)
    scores = torch.matmul(q, k.transpose(1, 2)) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~visible, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


class RowCache:
    """The cache of `draft_rows`: a layer's keys of every step, of which a row sees those that it drafts upon."""

    def __init__(self, packed: Packed, window: Window) -> None:
        self.packed, self.window = packed, window
        self._held: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def attend(self, layer: int, window: int | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        steps = self._held.setdefault(layer, [])
        steps.append((k, v))
        out = torch.empty_like(q)
        for start, end in self.packed.spans:
            for first in range(start, end, CHUNK):
                last = min(first + CHUNK, end)
                spans = [(start, last)] + [(first, last)] * (len(steps) - 1)
                keys, values = (
                    torch.cat([step[kind][:, a:b] for step, (a, b) in zip(steps, spans, strict=True)], dim=1)
                    for kind in (0, 1)
                )
                visible = self._visible(len(steps) - 1, last - first, first - start, window).to(q.device)
                out[:, first:last] = attend(q[:, first:last], keys, values, visible)
        return out

    def _visible(self, step: int, rows: int, before: int, window: int | None) -> Tensor:
        """Which keys each row sees, [rows, before + rows * (1 + step)]: earlier rows of step 0, later on itself."""
        row = torch.arange(before, before + rows)[:, None]
        key = torch.arange(before + rows)[None, :]
        blocks: list[Tensor] = [key <= row]
        itself = torch.eye(rows, dtype=torch.bool)
        blocks += [itself] * step
        if window is not None:
            oldest = row + (step if self.window == "moving" else 0) - window  # the last position out of sight
            blocks[0] = blocks[0] & (key > oldest)
            if self.window == "moving":
                blocks[1:] = [itself & (later > step - window) for later in range(1, step + 1)]
        return torch.cat(blocks, dim=1)


class ChainCache:
    """The cache of `draft_chain`: one text, one key per position."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, window: int | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer in self._held:
            k, v = (torch.cat([old, new], dim=1) for old, new in zip(self._held[layer], (k, v), strict=True))
        self._held[layer] = (k, v)
        count, new = k.shape[1], q.shape[1]
        row = torch.arange(count - new, count, device=q.device)[:, None]
        key = torch.arange(count, device=q.device)[None, :]
        visible = key <= row
        if window is not None:
            visible &= key > row - window
        return attend(q, k, v, visible)
