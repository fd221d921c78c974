"""Byte operations: what happens to the bytes of one tensor between source and destination, each with its inverse.

A tensor without operations is copied by the kernel and never seen here.  The others are changed in blocks of whole
rows, so that no more than one block is in memory; d2t and t2d have one row.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from eagle3convert.checkpoint.stored import DTYPE_BYTES
from eagle3convert.vocab import INTEGER_CODES, Encoding, from_targets, mask_of, to_targets

Read = Callable[[int, int], bytes]  # (start, length) -> bytes, counted within the tensor
BLOCK = 1 << 20  # bytes of input held at a time
FLOAT_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class ByteOp(Protocol):
    """One reversible change of a tensor's bytes; it works on whole rows, so that a tensor can be changed in blocks."""

    @property
    def exact(self) -> bool: ...
    def inverse(self) -> ByteOp: ...
    def apply(self, data: bytes, dtype: str, shape: tuple[int, ...]) -> bytes: ...
    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Recode:
    """d2t values of one encoding as values of the other."""

    source: Encoding
    target: Encoding

    @property
    def exact(self) -> bool:
        return True

    def inverse(self) -> Recode:
        return Recode(self.target, self.source)

    def apply(self, data: bytes, dtype: str, shape: tuple[int, ...]) -> bytes:
        targets = to_targets(array(INTEGER_CODES[dtype], data), self.source)
        return array(INTEGER_CODES[dtype], from_targets(targets, self.target)).tobytes()

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True, slots=True)
class PermuteBlocks:
    """The last axis cut into equal blocks, put into another order: block b of the result is block order[b]."""

    order: tuple[int, ...]

    @property
    def exact(self) -> bool:
        return True

    def inverse(self) -> PermuteBlocks:
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return PermuteBlocks(tuple(back))

    def apply(self, data: bytes, dtype: str, shape: tuple[int, ...]) -> bytes:
        row = shape[-1] * DTYPE_BYTES[dtype]
        block = row // len(self.order)
        source, out = memoryview(data), bytearray(len(data))
        for start in range(0, len(data), row):
            for place, origin in enumerate(self.order):
                at, frm = start + place * block, start + origin * block
                out[at : at + block] = source[frm : frm + block]
        return bytes(out)

    def __str__(self) -> str:
        return f"column blocks in the order {list(self.order)}"


@dataclass(frozen=True, slots=True)
class Cast:
    """A change of float dtype, rounding to nearest even; NaN stays NaN."""

    source: str
    target: str

    @property
    def exact(self) -> bool:
        """Whether every value survives: a wider type that keeps exponent and mantissa."""
        return self.source == self.target or (self.source, self.target) in _WIDENING

    def inverse(self) -> Cast:
        return Cast(self.target, self.source)

    def apply(self, data: bytes, dtype: str, shape: tuple[int, ...]) -> bytes:
        import ml_dtypes
        import numpy as np

        kinds = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
        with np.errstate(over="ignore", invalid="ignore"):  # a value too large becomes inf, as in torch
            cast = np.frombuffer(data, dtype=kinds[self.source]).astype(kinds[self.target])
        _keep_nans(data, cast.view(_BITS[self.target][0]), _BITS[self.source], _BITS[self.target])
        return cast.tobytes()

    def __str__(self) -> str:
        return f"{FLOAT_NAMES[self.source]} -> {FLOAT_NAMES[self.target]}"


# dtype -> (its bits, mask of the exponent, number of mantissa bits)
_BITS = {
    "BF16": ("<u2", 0x7F80, 7), "F16": ("<u2", 0x7C00, 10), "F32": ("<u4", 0x7F800000, 23),
    "F64": ("<u8", 0x7FF0000000000000, 52),
}  # fmt: skip
_WIDENING = {("BF16", "F32"), ("F16", "F32"), ("BF16", "F64"), ("F16", "F64"), ("F32", "F64")}


def _keep_nans(data: bytes, cast: Any, old: tuple[str, int, int], new: tuple[str, int, int]) -> None:
    """Give every NaN the sign and the leading mantissa bits that it had, which processors change when they cast.

    A NaN then comes back bit for bit from a wider type; one whose leading bits were all zero stays a NaN all the same.
    """
    import numpy as np

    kind, exponent, mantissa = old
    bits = np.frombuffer(data, kind)
    nan = (bits & ((1 << (8 * bits.itemsize - 1)) - 1)) > exponent
    if not nan.any():
        return
    wide = bits[nan].astype(np.uint64)
    fraction = wide & ((1 << mantissa) - 1)
    shift = new[2] - mantissa
    fraction = fraction << shift if shift >= 0 else fraction >> -shift
    fraction = np.where(fraction == 0, 1, fraction)
    sign = (wide >> (8 * bits.itemsize - 1)) << (8 * cast.itemsize - 1)
    cast[nan] = (sign | new[1] | fraction).astype(cast.dtype)


@dataclass(frozen=True, slots=True)
class Derive:
    """The bytes of d2t or t2d made from the canonical targets; it needs no input."""

    name: str
    targets: tuple[int, ...]
    vocab_size: int
    encoding: Encoding = "offset"

    @property
    def exact(self) -> bool:
        return True

    def inverse(self) -> Derive:
        return self

    def apply(self, data: bytes, dtype: str, shape: tuple[int, ...]) -> bytes:
        if self.name == "t2d":
            return mask_of(self.targets, self.vocab_size)
        return array(INTEGER_CODES[dtype], from_targets(self.targets, self.encoding)).tobytes()

    def __str__(self) -> str:
        return "derived from the vocab map"


def simplified(ops: tuple[ByteOp, ...]) -> tuple[ByteOp, ...]:
    """The same change in fewer operations: an operation that undoes the one before it cancels."""
    kept: list[ByteOp] = []
    for op in ops:
        last = kept[-1] if kept else None
        if isinstance(op, Derive):
            kept = [op]
        elif last is not None and last.exact and op == last.inverse():
            kept.pop()
        else:
            kept.append(op)
    return tuple(kept)


def run_all(ops: tuple[ByteOp, ...], read: Read, dtype: str, shape: tuple[int, ...]) -> Iterator[bytes]:
    """The bytes after every operation in turn, in blocks of whole rows; `dtype` and `shape` are those of the input."""
    if len(shape) < 2:
        blocks = [shape]
    else:
        width = math.prod(shape[1:]) * DTYPE_BYTES[dtype]
        step = max(1, BLOCK // max(1, width))
        blocks = [(min(step, shape[0] - at), *shape[1:]) for at in range(0, shape[0], step)]
    made = bool(ops) and isinstance(ops[0], Derive)
    at = 0
    for block in blocks:
        size = 0 if made else math.prod(block) * DTYPE_BYTES[dtype]
        data, kind = read(at, size) if size else b"", dtype
        at += size
        for op in ops:
            data = op.apply(data, kind, block)
            kind = op.target if isinstance(op, Cast) else kind
        yield data
