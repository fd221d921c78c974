"""ValueStats: what a scan of every element of a drafter's weights finds. Needs numpy, which is imported here only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from eagle3convert.checkpoint.stored import StoredTensor

BLOCK = 8 << 20  # bytes of a tensor held at a time by each thread
THREADS = 2  # the scan is bound by memory; more threads gained nothing on two cores

# dtype -> (unsigned integer of its width, exponent mask, mantissa mask)
_BITS = {"BF16": ("<u2", 0x7F80, 0x007F), "F16": ("<u2", 0x7C00, 0x03FF), "F32": ("<u4", 0x7F800000, 0x007FFFFF)}


@dataclass(frozen=True, slots=True)
class ValueStats:
    """Counts of the elements of one tensor that a trained weight does not hold in number."""

    elements: int
    nan: int
    infinite: int
    zero: int
    subnormal: int

    def __add__(self, other: ValueStats) -> ValueStats:
        return ValueStats(
            self.elements + other.elements,
            self.nan + other.nan,
            self.infinite + other.infinite,
            self.zero + other.zero,
            self.subnormal + other.subnormal,
        )


def count(data: bytes, dtype: str) -> ValueStats:
    """The counts of one block; read as bit patterns, so that no float is made."""
    import numpy as np

    kind, exponent, mantissa = _BITS[dtype]
    bits = np.frombuffer(data, dtype=kind)
    exponents, fraction = bits & exponent, (bits & mantissa) != 0
    top, bottom = exponents == exponent, exponents == 0
    nan = int(np.count_nonzero(top & fraction))
    subnormal = int(np.count_nonzero(bottom & fraction))
    infinite, zero = int(np.count_nonzero(top)) - nan, int(np.count_nonzero(bottom)) - subnormal
    return ValueStats(bits.size, nan, infinite, zero, subnormal)


def scan(tensors: Iterable[StoredTensor], advance: Callable[[int], None] | None = None) -> Mapping[str, ValueStats]:
    """The counts of every tensor of a dtype that is scanned; `advance` is told the bytes done."""

    def one(tensor: StoredTensor) -> tuple[str, ValueStats]:
        total = ValueStats(0, 0, 0, 0, 0)
        for at in range(0, tensor.nbytes, BLOCK):
            size = min(BLOCK, tensor.nbytes - at)
            total += count(tensor.read(at, size), tensor.dtype)
            if advance is not None:
                advance(size)
        return tensor.name, total

    wanted = [tensor for tensor in tensors if tensor.dtype in _BITS]
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(pool.map(one, wanted))
