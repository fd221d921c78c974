"""Aux layers in both directions: ids of a config to hidden_states indices, and back, by verifier family and release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle3convert.canonical import Origin, is_whole
from eagle3convert.conventions import CONVENTIONS, Convention, Ids, default_states
from eagle3convert.releases import holds, lowest_serving
from eagle3convert.schema import Family, FormatSchema
from eagle3convert.verifier import VerifierFacts


@dataclass(frozen=True, slots=True)
class AuxRule:
    """How one release of a format numbers and captures the aux layers of one verifier family."""

    convention: Convention
    default: tuple[str, ...]
    captures: bool  # this release captures aux layers of the family at all
    reads_ids: bool
    serves_custom: bool  # other layers than the default ones reach fc
    embedding: bool
    final: bool

    def reads(self, ids: Ids | None, n: int | None) -> Ids | None:
        """The states that a list of ids (None: absent) feeds to fc, ascending; None where n would have to be known."""
        if ids is None or not self.reads_ids:
            return default_states(self.default, n) if n is not None else None
        return tuple(sorted(self.convention.decode(ids, n)))

    def lacks_embedding(self, states: Ids) -> bool:
        """Whether the embedding output is among the states, and never captured."""
        return 0 in states and not self.embedding

    def lacks_final(self, states: Ids, n: int | None) -> bool:
        """Whether the state after the last of n layers is among the states, and never captured."""
        return n is not None and n in states and not self.final

    def serves(self, states: Ids, ids: Ids | None, n: int | None) -> bool:
        """Whether these ids make the engine feed just these states."""
        default = default_states(self.default, n) if n is not None else None
        if not self.captures or self.lacks_embedding(states) or self.lacks_final(states, n):
            return False
        return (states == default or self.serves_custom) and self.reads(ids, n) == states


def family_of(schema: FormatSchema, verifier: VerifierFacts) -> Family | None:
    """The family whose rule applies: the one that names a model_type of the verifier, else an architecture of it."""
    families = schema.aux_layers.families
    return next(
        (f for types in verifier.model_types for f in families if types in f.model_types),
        next((f for name in verifier.architectures for f in families if name in f.architectures), None),
    )


def broken_in(family: Family, release: str) -> bool:
    """Whether this release captures something else than the states of this family."""
    return family.broken_since is not None and holds(release, family.broken_since)


def rule_at(schema: FormatSchema, family: Family | None, release: str) -> AuxRule:
    """The rule of one release; without a family the format's general one."""
    aux = schema.aux_layers
    own = family.convention if family is not None and holds(release, family.convention_since) else None
    embedding = aux.embedding if family is None or family.embedding is None else family.embedding
    embedding_since = aux.embedding_since
    if family is not None and family.embedding_since is not None:
        embedding_since = family.embedding_since
    final = aux.final if family is None or family.final is None else family.final
    return AuxRule(
        CONVENTIONS[own or aux.convention],
        family.default if family is not None and family.default else aux.default,
        family is None or (holds(release, family.since) and not broken_in(family, release)),
        bool(aux.keys) and holds(release, aux.since),
        holds(release, aux.custom_since),
        embedding and holds(release, embedding_since),
        final and (family is None or holds(release, family.final_since)),
    )


def bounds_of(schema: FormatSchema, family: Family | None) -> tuple[str | None, ...]:
    """The releases at which the rule of a family changes."""
    aux = schema.aux_layers
    own: tuple[str | None, ...] = ()
    if family is not None:
        own = (family.since, family.convention_since, family.embedding_since, family.final_since, family.broken_since)
    return (aux.since, aux.custom_since, aux.embedding_since, *own)


def lowest_release(
    schema: FormatSchema, family: Family | None, states: Ids, ids: Ids | None, n: int | None, last: str
) -> str | None:
    """The lowest release from which on, up to `last`, these ids feed just these states."""
    return lowest_serving(
        schema.releases[0],
        last,
        bounds_of(schema, family),
        lambda release: rule_at(schema, family, release).serves(states, ids, n),
    )


@dataclass(frozen=True, slots=True)
class AuxReading:
    """The aux layers of a drafter as its source says them.

    `states` are hidden_states indices in the order of the list, None where they cannot be known.  `candidates` holds
    every reading where the verifier's family would decide and is unknown.
    """

    ids: Ids | None
    states: Ids | None
    origin: Origin
    fc_order: str
    default: tuple[str, ...]
    convention: str
    family: Family | None = None
    candidates: tuple[Ids, ...] = ()

    @property
    def ascending(self) -> Ids | None:
        return tuple(sorted(self.states)) if self.states is not None else None

    @property
    def trained(self) -> Ids | None:
        """The states in the order of fc's blocks, as it was trained."""
        return self.states if self.permutation else self.ascending

    @property
    def permutation(self) -> tuple[int, ...]:
        """For each fc block in ascending order, its place in the source; empty where fc is ascending already."""
        if self.states is None or self.fc_order == "ascending":
            return ()
        order = tuple(sorted(range(len(self.states)), key=self.states.__getitem__))
        return () if order == tuple(range(len(order))) else order


def read_aux_layers(
    schema: FormatSchema,
    verifier: VerifierFacts,
    ids: Any,
    stated: Ids | None,
    fc_order: str,
    release: str = "",
) -> AuxReading:
    """Read a list of ids (None: absent) under the format's convention for this verifier; `stated` overrides it.

    `release` is the reader's, the newest known by default.
    """
    family, n = family_of(schema, verifier), verifier.num_hidden_layers
    rule = rule_at(schema, family, release or schema.releases[1])
    raw = tuple(ids) if isinstance(ids, list) else None

    def result(states: Ids | None, origin: Origin, candidates: tuple[Ids, ...] = ()) -> AuxReading:
        return AuxReading(raw, states, origin, fc_order, rule.default, rule.convention.name, family, candidates)

    if stated is not None:
        return result(stated, Origin.ASSUMED)
    if raw is None and ids is not None:
        return result(None, Origin.UNKNOWN)
    if raw is None:
        return result(default_states(rule.default, n) if n is not None else None, Origin.DEFAULT)
    if not all(map(is_whole, raw)):
        return result(None, Origin.UNKNOWN)
    if family is None and schema.aux_layers.known_families and not verifier.family_known:
        readings = possible_readings(schema, raw, n)
        return result(readings[0], Origin.STATED) if len(readings) == 1 else result(None, Origin.UNKNOWN, readings)
    return result(rule.convention.decode(raw, n), Origin.STATED)


def possible_readings(schema: FormatSchema, ids: Ids, n: int | None) -> tuple[Ids, ...]:
    """Every list of states that the ids mean to some verifier family."""
    names = {schema.aux_layers.convention, *(f.convention for f in schema.aux_layers.families if f.convention)}
    return tuple(sorted({CONVENTIONS[name].decode(ids, n) for name in names}))
