"""VocabReading: what d2t and t2d say, read under both encodings and judged by each other.

`offset`: target = i + d2t[i].  `absolute`: target = d2t[i].  A reading is sound where every target lies inside the
verifier's vocabulary, no target comes twice, and t2d (where there is one) selects just these targets.  Stdlib only:
a vocab map has some ten thousand entries, and importing an array library would cost more than judging it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3convert.checkpoint.stored import StoredTensor

Encoding = Literal["offset", "absolute"]
ENCODINGS: tuple[Encoding, ...] = ("offset", "absolute")
LARGEST_VOCABULARY = 1 << 24  # tokens; a config that states more is damaged
INTEGER_CODES = {"I64": "q", "I32": "i", "I16": "h", "U8": "B", "I8": "b"}


def to_targets(values: Sequence[int], encoding: Encoding) -> list[int]:
    """d2t values -> absolute target ids."""
    return [i + v for i, v in enumerate(values)] if encoding == "offset" else list(values)


def from_targets(targets: Sequence[int], encoding: Encoding) -> list[int]:
    """Absolute target ids -> d2t values; the inverse of `to_targets`."""
    return [t - i for i, t in enumerate(targets)] if encoding == "offset" else list(targets)


def mask_of(targets: Sequence[int], vocab_size: int) -> bytes:
    """The t2d mask of these targets, one byte per target id."""
    mask = bytearray(vocab_size)
    for target in targets:
        mask[target] = 1
    return bytes(mask)


def targets_of(mask: bytes) -> list[int]:
    """The target ids that a t2d mask selects, ascending."""
    return [i for i, bit in enumerate(mask) if bit]


@dataclass(frozen=True, slots=True)
class MapReading:
    """d2t read under one encoding."""

    encoding: Encoding
    targets: tuple[int, ...]
    out_of_range: tuple[int, ...]  # draft ids
    duplicated: tuple[int, ...]  # target ids
    fits_t2d: bool | None  # None: there is no t2d to ask

    @property
    def sound(self) -> bool:
        return not self.out_of_range and not self.duplicated and self.fits_t2d is not False


@dataclass(frozen=True, slots=True)
class VocabReading:
    """The vocab map of a drafter: its judged encoding, absolute targets, and what is wrong where it is unusable.

    `encoding` is None where there is no d2t or no encoding makes it sound; `decided_by` says how it was chosen.
    """

    values: tuple[int, ...] | None = None
    mask: bytes | None = None
    readings: tuple[MapReading, ...] = ()
    encoding: Encoding | None = None
    decided_by: Literal["t2d", "range", "format", "user", "nothing"] = "nothing"
    targets: tuple[int, ...] | None = None
    derived: bool = False  # targets come from t2d: there is no d2t
    bad_dtype: str = ""

    def reading(self, encoding: Encoding) -> MapReading:
        return next(r for r in self.readings if r.encoding == encoding)

    @property
    def undecided(self) -> bool:
        """Both encodings are sound and mean different maps: only the format's rule chose."""
        sound = [r.targets for r in self.readings if r.sound]
        return self.decided_by == "format" and len(sound) == 2 and sound[0] != sound[1]


def judge(
    d2t: StoredTensor | None,
    t2d: StoredTensor | None,
    vocab_size: int | None,
    declared: Encoding,
    stated: Encoding | None = None,
    ascending: bool = False,
) -> VocabReading:
    """Read d2t under both encodings and choose.

    `declared` is the encoding of the format, `stated` what the user insists on.  The mask decides where it can, then
    range and injectivity, then the user or the format.  `ascending`: the trainer sorts draft ids, so that t2d alone
    gives the map.
    """
    mask = t2d.read() if t2d is not None else None
    if d2t is None:
        targets = tuple(targets_of(mask)) if mask is not None and ascending else None
        return VocabReading(mask=mask, targets=targets, derived=targets is not None)
    if d2t.dtype not in INTEGER_CODES or len(d2t.shape) != 1:
        return VocabReading(mask=mask, bad_dtype=f"{d2t.dtype} {list(d2t.shape)}")
    values = array(INTEGER_CODES[d2t.dtype], d2t.read())
    limit = vocab_size if vocab_size is not None else (len(mask) if mask is not None else None)
    wanted = set(targets_of(mask)) if mask is not None else None
    readings = tuple(_read(values, encoding, limit, wanted) for encoding in ENCODINGS)
    sound = [r for r in readings if r.sound]
    base = VocabReading(values=tuple(values), mask=mask, readings=readings)
    if not sound:
        return base
    preferred = stated or declared
    chosen = next((r for r in sound if r.encoding == preferred), sound[0])
    if stated is not None and chosen.encoding == stated:
        by: Literal["t2d", "range", "format", "user"] = "user"
    elif len(sound) == 2 and sound[0].targets != sound[1].targets:
        by = "format"
    elif mask is not None:
        by = "t2d"
    else:
        by = "range"
    return VocabReading(tuple(values), mask, readings, chosen.encoding, by, chosen.targets)


def _read(values: Sequence[int], encoding: Encoding, limit: int | None, wanted: set[int] | None) -> MapReading:
    targets = to_targets(values, encoding)
    out = tuple(i for i, t in enumerate(targets) if t < 0 or (limit is not None and t >= limit))
    seen: set[int] = set()
    twice = tuple(t for t in targets if t in seen or seen.add(t))  # type: ignore[func-returns-value]
    return MapReading(encoding, tuple(targets), out, twice, None if wanted is None else seen == wanted)
