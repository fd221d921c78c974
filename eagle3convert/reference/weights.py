"""Weights: a drafter's canonical tensors as torch tensors, each read from its file when it is first needed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from eagle3convert.checkpoint.stored import StoredTensor
from eagle3convert.errors import CheckpointError
from eagle3convert.transforms import Row

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
EMBEDDING = "embed_tokens.weight"
FLOATS = ("F64", "F32", "F16", "BF16")

Rows = Callable[[Tensor], Tensor]  # token ids [N] -> embeddings [N, hidden]


def read_tensor(stored: StoredTensor) -> Tensor:
    """The tensor itself, in its own dtype; CheckpointError for a dtype that torch has no plain type for."""
    kind = DTYPES.get(stored.dtype)
    if kind is None:
        raise CheckpointError(
            f"{stored.file.name}: tensor '{stored.name}' is {stored.dtype}; the reference forward pass computes with "
            f"plain floats only. Use the drafter before it was quantised."
        )
    data = torch.empty(stored.nbytes, dtype=torch.uint8)
    if stored.nbytes:
        stored.file.readinto(stored.start, memoryview(data.numpy()))
    return data.view(kind).reshape(stored.shape)


class Weights:
    """The canonical tensors of one drafter by name, in the dtype and on the device that is computed with.

    `rows` are the tensors on their way from `stored` (their operations put fc's blocks into ascending layer order).  A
    tensor that is not there is what an engine would have in its place: ones for a norm, noise for the rest; `unfilled`
    lists those that were asked for.  `rounded` names tensors that are first rounded to another dtype.  `lent` gives the
    verifier's embeddings and `head` its lm_head, where the drafter has none of its own.
    """

    def __init__(
        self,
        rows: Mapping[str, Row],
        stored: Mapping[str, StoredTensor],
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        rounded: Mapping[str, str] | None = None,
        lent: Rows | None = None,
        head: Tensor | None = None,
    ) -> None:
        self.rows, self.stored, self.dtype, self.device = rows, stored, dtype, torch.device(device)
        self.rounded = rounded or {}
        self.lent, self.head = lent, head
        self.unfilled: dict[str, tuple[int, ...]] = {}
        self._held: dict[str, Tensor] = {}

    def reread(self, rows: Mapping[str, Row], lent: Rows | None) -> Weights:
        """Weights of the same checkpoint under another reading of its names; what is in memory already is shared."""
        other = Weights(rows, self.stored, self.dtype, self.device, self.rounded, lent, self.head)
        other._held = {name: held for name, held in self._held.items() if rows.get(name) == self.rows.get(name)}
        return other

    def get(self, name: str, *shape: int) -> Tensor:
        """The tensor of this canonical name, of the shape that the forward pass wants."""
        if name not in self._held:
            self._held[name] = self._load(name, shape).to(self.device, self.dtype)
        held = self._held[name]
        if held.shape != shape:
            raise CheckpointError(
                f"{self._place(name)} has shape {list(held.shape)}; this drafter's forward pass needs {list(shape)}."
            )
        return held

    def _place(self, name: str) -> str:
        row = self.rows.get(name)
        stored = self.stored.get(row.origin) if row is not None and row.origin is not None else None
        return f"{stored.file.name}: tensor '{stored.name}'" if stored is not None else name

    def _load(self, name: str, shape: tuple[int, ...]) -> Tensor:
        row = self.rows.get(name)
        if row is None or row.origin is None:
            if name == "lm_head.weight" and self.head is not None:
                return self.head
            self.unfilled[name] = shape
            return torch.ones(shape) if "norm" in name else noise(name, shape)
        stored = self.stored[row.origin]
        if stored.dtype not in FLOATS:
            read_tensor(stored)  # refuses what is quantised by its dtype
            raise CheckpointError(f"{self._place(name)} is {stored.dtype}; a weight is a float.")
        if row.ops:
            data = bytearray().join(row.blocks(stored))
            value = torch.frombuffer(data, dtype=DTYPES[row.dtype]).reshape(row.shape)
        else:
            value = read_tensor(stored)
        return value.to(DTYPES[self.rounded[name]]) if name in self.rounded else value

    def embed(self, ids: Tensor, vocab: int, hidden: int) -> Tensor:
        """The embeddings [N, hidden] of token ids [N]: only the rows that are asked for are read."""
        name, row = EMBEDDING, self.rows.get(EMBEDDING)
        if row is None or row.origin is None:
            if self.lent is None:
                return self.get(name, vocab, hidden)[ids.to(self.device)]
            return self.lent(ids.cpu()).to(self.device, self.dtype)
        table = self.stored[row.origin]
        if table.dtype not in FLOATS or row.ops or table.shape[1:] != (hidden,):
            return self.get(name, vocab, hidden)[ids.to(self.device)]
        wanted, places = torch.unique(ids.cpu(), return_inverse=True)
        if len(wanted) and int(wanted[-1]) >= table.shape[0]:
            raise CheckpointError(
                f"{self._place(name)} has {table.shape[0]} rows, and the text holds the token id {int(wanted[-1])}. "
                f"The drafter and the captured states belong to different verifiers."
            )
        found = gather_rows(table, wanted)
        if name in self.rounded:
            found = found.to(DTYPES[self.rounded[name]])
        return found.to(self.device, self.dtype)[places.to(self.device)]


def gather_rows(table: StoredTensor, ids: Tensor) -> Tensor:
    """Rows [N, width] of a stored table, read one by one so that a large table never is in memory."""
    width = table.nbytes // table.shape[0]
    data = bytearray(width * len(ids))
    view = memoryview(data)
    for at, i in enumerate(ids.tolist()):
        table.file.readinto(table.start + i * width, view[at * width : (at + 1) * width])
    return torch.frombuffer(data, dtype=DTYPES[table.dtype]).reshape(len(ids), -1)


def noise(name: str, shape: tuple[int, ...]) -> Tensor:
    """What stands in for a weight that is not there: small and the same at every run."""
    source = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=source) * 0.02


def random_rows(width: int, seed: int) -> Rows:
    """Embeddings that depend on the token id only, made without a table."""

    def rows(ids: Tensor) -> Tensor:
        made: dict[int, Any] = {}
        for i in set(ids.tolist()):
            made[i] = torch.randn(width, generator=torch.Generator().manual_seed(seed * 1_000_003 + i))
        return torch.stack([made[i] for i in ids.tolist()]) if len(ids) else torch.empty(0, width)

    return rows
