"""The difference of two drafters in canonical form, whatever formats they are in."""

from __future__ import annotations

from pathlib import Path

from eagle3convert.checkpoint.compare import Comparer
from eagle3convert.checkpoint.source import Checkpoint
from eagle3convert.drafter import Drafter
from eagle3convert.hub.opening import fetched, open_source
from eagle3convert.identify import choose_source
from eagle3convert.nested import same
from eagle3convert.options import Options
from eagle3convert.reading import Reading
from eagle3convert.receipt import read_receipt, remembered
from eagle3convert.verification import BEHAVIOUR


def compare(a: str | Path, b: str | Path) -> list[str]:
    """What differs between the drafters in two folders: sizes, features, vocab map, aux layers and weights."""
    with fetched(open_source(a)) as first, fetched(open_source(b)) as second:
        left, right = _drafter(first), _drafter(second)
        found = []
        for name in sorted(BEHAVIOUR):
            x, y = left.fields.get(name, "unknown"), right.fields.get(name, "unknown")
            if not same(x, y):
                found.append(f"{name}: {x!r} in {a}, {y!r} in {b}")
        if left.targets != right.targets:
            found.append(_maps(left, right))
        x, y = left.reading.aux.ascending, right.reading.aux.ascending
        if x != y and not (None in (x, y) and left.reading.aux.default == right.reading.aux.default):
            found.append(f"aux layers (hidden_states): {_listed(x)} in {a}, {_listed(y)} in {b}")
        return found + _weights(left, right, str(a), str(b))


def _drafter(checkpoint: Checkpoint) -> Drafter:
    receipt = read_receipt(checkpoint)
    schema = choose_source(checkpoint, receipt)
    return Drafter(Reading(checkpoint, schema, Options().statements(remembered(receipt, schema.name))))


def _listed(states: tuple[int, ...] | None) -> str:
    return "unknown" if states is None else str(list(states))


def _maps(left: Drafter, right: Drafter) -> str:
    x, y = left.targets or (), right.targets or ()
    if len(x) != len(y):
        return f"d2t: {len(x)} and {len(y)} draft ids"
    at = next(i for i, (p, q) in enumerate(zip(x, y, strict=True)) if p != q)
    count = sum(p != q for p, q in zip(x, y, strict=True))
    return f"d2t: {count} draft ids have other targets; the first is {at}: {x[at]} and {y[at]}"


def _weights(left: Drafter, right: Drafter, a: str, b: str) -> list[str]:
    """Differences of the tensors by their canonical names; the vocab map was compared already."""
    comparer, found = Comparer(), []
    mine, theirs = left.reading.names.names, right.reading.names.names
    for name in sorted({*mine, *theirs} - {"d2t", "t2d"}):
        if name not in mine or name not in theirs:
            found.append(f"{name}: only in {a if name in mine else b}")
            continue
        x = left.reading.checkpoint.tensors[mine[name]]
        y = right.reading.checkpoint.tensors[theirs[name]]
        if (x.dtype, x.shape) != (y.dtype, y.shape):
            found.append(f"{name}: {x.dtype} {list(x.shape)} and {y.dtype} {list(y.shape)}")
        elif (at := comparer.first_difference(x, y)) is not None:
            found.append(f"{name}: differs from element {at // x.itemsize} on")
    return found
