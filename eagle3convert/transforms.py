"""The primitive transforms that every conversion is composed of, each with its inverse beside it.

A transform maps a `State` (tensor names, dtypes, shapes and pending byte operations, and a config or canonical fields)
to a State; no bytes move here.  `reads` and `writes` name what it touches, so that two transforms that touch different
things may trade places when a path is simplified.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from eagle3convert.byteops import ByteOp, Cast, Derive, PermuteBlocks, Recode, run_all, simplified
from eagle3convert.checkpoint.stored import StoredTensor
from eagle3convert.conventions import CONVENTIONS
from eagle3convert.vocab import Encoding


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor on its way: its dtype and shape now, the source tensor it comes from, and changes of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    origin: str | None
    ops: tuple[ByteOp, ...] = ()

    def then(self, op: ByteOp, **changes: Any) -> Row:
        return replace(self, ops=simplified((*self.ops, op)), **changes)

    def blocks(self, stored: StoredTensor | None) -> Iterator[bytes]:
        """The bytes of this tensor, made from those of its origin, in blocks; a derived one has no origin (None)."""
        if stored is None:
            return run_all(self.ops, _nothing, self.dtype, self.shape)
        return run_all(self.ops, stored.read, stored.dtype, stored.shape)


def _nothing(start: int, length: int) -> bytes:
    return b""


@dataclass(frozen=True)
class State:
    """A drafter in some spelling: its tensors, and its config (or, in canonical form, its fields)."""

    tensors: Mapping[str, Row]
    config: Mapping[str, Any]


class Transform(Protocol):
    """A reversible step between two spellings."""

    @property
    def reads(self) -> frozenset[str]: ...
    @property
    def writes(self) -> frozenset[str]: ...
    def apply(self, state: State) -> State: ...
    def inverse(self) -> Transform: ...
    def then(self, other: Transform) -> tuple[Transform, ...] | None:
        """This step followed by another as fewer steps (none where they cancel); None where they do not merge."""
        ...

    def __str__(self) -> str: ...


class Step:
    """What most transforms share: they merge with nothing, except that a step cancels its own inverse."""

    reads: frozenset[str] = frozenset({"names"})
    writes: frozenset[str] = frozenset()

    def inverse(self) -> Self:
        raise NotImplementedError

    def then(self, other: Transform) -> tuple[Transform, ...] | None:
        return () if isinstance(other, type(self)) and other == self.inverse() else None


@dataclass(frozen=True)
class RenameTensors(Step):
    """Tensor names, old to new; one to one, so that the inverse is the same table read backwards."""

    pairs: tuple[tuple[str, str], ...]

    reads = frozenset[str]()
    writes = frozenset({"names"})

    def __post_init__(self) -> None:
        for side, names in (("old", [a for a, _ in self.pairs]), ("new", [b for _, b in self.pairs])):
            if len(set(names)) != len(names):
                raise ValueError(f"a rename needs distinct {side} names: {sorted(names)}")

    def apply(self, state: State) -> State:
        table = dict(self.pairs)
        renamed = {table.get(name, name): row for name, row in state.tensors.items()}
        if len(renamed) != len(state.tensors):
            raise ValueError("two tensors would get one name")
        return replace(state, tensors=renamed)

    def inverse(self) -> RenameTensors:
        return RenameTensors(tuple((new, old) for old, new in self.pairs))

    def then(self, other: Transform) -> tuple[Transform, ...] | None:
        if not isinstance(other, RenameTensors):
            return None
        later = dict(other.pairs)
        pairs = [(old, later.pop(new, new)) for old, new in self.pairs]
        pairs += [(old, new) for old, new in other.pairs if old in later]
        moved = tuple((old, new) for old, new in pairs if old != new)
        return (RenameTensors(moved),) if moved else ()

    def __str__(self) -> str:
        return f"rename {len(self.pairs)} tensors"


@dataclass(frozen=True)
class RecodeVocabMap(Step):
    """d2t from one encoding to the other."""

    source: Encoding
    target: Encoding

    writes = frozenset({"d2t"})

    def apply(self, state: State) -> State:
        if "d2t" not in state.tensors or self.source == self.target:
            return state
        row = state.tensors["d2t"]
        return replace(state, tensors={**state.tensors, "d2t": row.then(Recode(self.source, self.target))})

    def inverse(self) -> RecodeVocabMap:
        return RecodeVocabMap(self.target, self.source)

    def then(self, other: Transform) -> tuple[Transform, ...] | None:
        if not isinstance(other, RecodeVocabMap) or other.source != self.target:
            return None
        return () if self.source == other.target else (RecodeVocabMap(self.source, other.target),)

    def __str__(self) -> str:
        return f"d2t: {self.source} -> {self.target}"


@dataclass(frozen=True)
class RemapAuxLayers(Step):
    """The aux-layer ids from one convention's numbering to another's; an absent list stays absent.

    Some conventions have two lists for the same layers; `known` is the one that stood in the source, with the
    convention that it is in.
    """

    source: str
    target: str
    n: int | None
    known: tuple[str, tuple[int, ...]] | None = None

    reads = frozenset[str]()
    writes = frozenset({"aux"})

    def apply(self, state: State) -> State:
        ids = state.config.get("aux_layers")
        if ids is None:
            return state
        states, target = CONVENTIONS[self.source].decode(tuple(ids), self.n), CONVENTIONS[self.target]
        convention, listed = self.known or ("", ())
        again = convention == self.target and target.decode(listed, self.n) == states
        mapped = listed if again else target.encode(states, self.n)
        if mapped is None:
            raise ValueError(f"{self.target} cannot number {list(ids)} of {self.source}")
        return replace(state, config={**state.config, "aux_layers": mapped})

    def inverse(self) -> RemapAuxLayers:
        return RemapAuxLayers(self.target, self.source, self.n, self.known)

    def then(self, other: Transform) -> tuple[Transform, ...] | None:
        if not isinstance(other, RemapAuxLayers) or (other.source, other.n) != (self.target, self.n):
            return None
        if self.source == other.target:
            return () if self._settled() else None
        return (RemapAuxLayers(self.source, other.target, self.n, self.known or other.known),)

    def _settled(self) -> bool:
        """Whether going to the other numbering and back gives the known list, and not another for the same layers."""
        convention, listed = self.known or ("", ())
        if convention != self.source:
            return True
        rule = CONVENTIONS[convention]
        return rule.encode(rule.decode(listed, self.n), self.n) == listed

    def __str__(self) -> str:
        return f"aux layers: numbering {self.source} -> {self.target}"


@dataclass(frozen=True)
class PermuteFcBlocks(Step):
    """The aux states in another order: fc's column blocks, input_norm's blocks, fc_norm.N and the list of layers."""

    order: tuple[int, ...]

    writes = frozenset({"fc", "aux"})

    def apply(self, state: State) -> State:
        tensors = dict(state.tensors)
        for name in ("fc.weight", "input_norm.weight"):
            if name in tensors:
                tensors[name] = tensors[name].then(PermuteBlocks(self.order))
        norms = {f"fc_norm.{j}.weight": state.tensors.get(f"fc_norm.{i}.weight") for j, i in enumerate(self.order)}
        tensors |= {name: row for name, row in norms.items() if row is not None}
        config = dict(state.config)
        if config.get("aux_layers") is not None:
            config["aux_layers"] = tuple(config["aux_layers"][i] for i in self.order)
        return State(tensors, config)

    def inverse(self) -> PermuteFcBlocks:
        return PermuteFcBlocks(PermuteBlocks(self.order).inverse().order)

    def __str__(self) -> str:
        return f"fc: column blocks in the order {list(self.order)}"


@dataclass(frozen=True)
class CastTensors(Step):
    """Float tensors to another dtype; going back is exact where every cast was a widening one."""

    casts: tuple[tuple[str, str, str], ...]  # (tensor, from, to)

    writes = frozenset({"floats"})

    def apply(self, state: State) -> State:
        tensors = dict(state.tensors)
        for name, source, target in self.casts:
            tensors[name] = tensors[name].then(Cast(source, target), dtype=target)
        return replace(state, tensors=tensors)

    def inverse(self) -> CastTensors:
        return CastTensors(tuple((name, target, source) for name, source, target in self.casts))

    @property
    def exact(self) -> bool:
        return all(Cast(source, target).exact for _, source, target in self.casts)

    def __str__(self) -> str:
        kinds = {(source, target) for _, source, target in self.casts}
        return "cast " + ", ".join(f"{len(self.casts)} tensors {Cast(*kind)}" for kind in sorted(kinds))


@dataclass(frozen=True)
class DropTensors(Step):
    """Tensors that the destination does not keep because they follow from the vocab map."""

    derivations: tuple[tuple[Derive, str, tuple[int, ...]], ...]  # (how, dtype, shape)

    reads = frozenset({"d2t"})
    writes = frozenset({"names", "d2t"})

    def apply(self, state: State) -> State:
        gone = {derive.name for derive, _, _ in self.derivations}
        return replace(state, tensors={n: row for n, row in state.tensors.items() if n not in gone})

    def inverse(self) -> DeriveTensors:  # type: ignore[override]
        return DeriveTensors(self.derivations)

    def then(self, other: Transform) -> tuple[Transform, ...] | None:
        return None

    def __str__(self) -> str:
        return "leave out " + ", ".join(derive.name for derive, _, _ in self.derivations) + " (derivable)"


@dataclass(frozen=True)
class DeriveTensors(Step):
    """Tensors made from the vocab map because the destination keeps them and the source does not."""

    derivations: tuple[tuple[Derive, str, tuple[int, ...]], ...]

    reads = frozenset({"d2t"})
    writes = frozenset({"names", "d2t"})

    def apply(self, state: State) -> State:
        made = {derive.name: Row(dtype, shape, None, (derive,)) for derive, dtype, shape in self.derivations}
        return replace(state, tensors={**state.tensors, **made})

    def inverse(self) -> DropTensors:  # type: ignore[override]
        return DropTensors(self.derivations)

    def then(self, other: Transform) -> tuple[Transform, ...] | None:
        return None

    def __str__(self) -> str:
        return "derive " + ", ".join(derive.name for derive, _, _ in self.derivations) + " from the vocab map"
