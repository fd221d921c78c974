"""Destination: the way from the canonical drafter into one format, and the lowest release that reads it right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eagle3convert.aux_layers import AuxRule, bounds_of, family_of, lowest_release, rule_at
from eagle3convert.byteops import FLOAT_NAMES, Derive
from eagle3convert.canonical import FEATURES, VOCAB_TENSORS
from eagle3convert.config_transforms import AmendConfig, Composite, MapConfig, decoded_fields
from eagle3convert.conventions import Ids
from eagle3convert.drafter import Drafter
from eagle3convert.fields import ConfigSpelling
from eagle3convert.nested import ABSENT, Change, patched, same
from eagle3convert.releases import newest
from eagle3convert.schema import Family, FormatSchema
from eagle3convert.spelling import TensorSpelling
from eagle3convert.transforms import (
    CastTensors,
    DeriveTensors,
    DropTensors,
    PermuteFcBlocks,
    RecodeVocabMap,
    RemapAuxLayers,
    RenameTensors,
    Transform,
)
from eagle3convert.vocab import Encoding


@dataclass(frozen=True)
class Restoration:
    """What a receipt remembers of the drafter that this destination is the way back to."""

    config_patch: tuple[Change, ...]
    names: Mapping[str, str]  # canonical -> as it was spelled
    dtypes: Mapping[str, str]  # canonical -> safetensors dtype, where it was cast
    vocab_encoding: Encoding | None
    vocab_tensors: Mapping[str, str]  # d2t, t2d -> dtype, those that were there
    permutation: tuple[int, ...]
    metadata: Mapping[str, str]
    stated: Mapping[str, Any]  # what the user stated of the source then: assume, aux_layers, d2t_encoding


@dataclass(frozen=True)
class Destination:
    """One drafter seen from the format it is to be written in; `release` is the reader's, by default the newest."""

    drafter: Drafter
    schema: FormatSchema
    release: str = ""
    dtype: str | None = None  # safetensors name of the float dtype asked for
    restoration: Restoration | None = None

    @cached_property
    def version(self) -> str:
        return self.release or self.schema.releases[1]

    # --- aux layers ---------------------------------------------------------------------------------------------------

    @property
    def layers(self) -> int | None:
        return self.drafter.reading.verifier.num_hidden_layers

    @cached_property
    def family(self) -> Family | None:
        return family_of(self.schema, self.drafter.reading.verifier)

    @cached_property
    def aux_rule(self) -> AuxRule:
        """The rule that the output is written by, that of the newest release: an older one is refused by its number."""
        return rule_at(self.schema, self.family, self.schema.releases[1])

    @property
    def states(self) -> Ids | None:
        return self.drafter.reading.aux.ascending

    @cached_property
    def aux_ids(self) -> Ids | None:
        """The ids to write; None where the list is the default one, cannot be said, or is not known."""
        if self.states is None or not self.schema.aux_layers.keys:
            return None
        ids, least = self.aux_rule.convention.encode(self.states, self.layers), self.schema.aux_layers.min_id
        return None if ids is not None and least is not None and min(ids, default=least) < least else ids

    @cached_property
    def aux_release(self) -> str | None:
        """The lowest release from which on the written ids feed the trained states; None where none does.

        Where the newest release does not, those up to the release asked for count.
        """
        if self.states is None:
            return self.schema.releases[0]
        lasts = dict.fromkeys((self.schema.releases[1], self.version))
        told = (self.schema, self.family, self.states, self.aux_ids, self.layers)
        return next((r for last in lasts if (r := lowest_release(*told, last)) is not None), None)

    @property
    def aux_bounds(self) -> tuple[str | None, ...]:
        return bounds_of(self.schema, self.family)

    # --- releases -----------------------------------------------------------------------------------------------------

    def requirements(self) -> Iterator[tuple[str, str]]:
        """(what, release): everything the written drafter uses that not every release reads."""
        reading = self.drafter.reading
        for name, rule in self.schema.features.items():
            if rule.since and reading.feature(name).value != FEATURES[name].plain:
                yield name, rule.since
        kind = self.schema.decoders[reading.decoder]
        if kind.since:
            yield f"{reading.decoder} decoder", kind.since
        for name in self.drafter.table:
            if name in reading.names.names and (since := self.spelling.since(name, self.spelling.written(name))):
                yield name, since
        count, count_since = reading.dims.A, self.schema.aux_layers.count_since
        if count is not None and count != 3 and count_since is not None:
            yield f"{count} aux layers", count_since
        size, vocab = reading.dims.DV, self.schema.vocab_map
        if vocab.padding_cut_since and size is not None and size % vocab.multiple and size != reading.dims.V:
            yield f"a draft vocabulary of {size}, no multiple of {vocab.multiple},", vocab.padding_cut_since
        if self.aux_release is not None and self.aux_release != self.schema.releases[0]:
            yield f"aux layers {list(self.states or ())}", self.aux_release

    @cached_property
    def lowest_release(self) -> str:
        """The lowest release that serves the output as it was trained."""
        return newest(since for _, since in self.requirements()) or self.schema.releases[0]

    # --- the steps ----------------------------------------------------------------------------------------------------

    @cached_property
    def spelling(self) -> TensorSpelling:
        return TensorSpelling(self.schema, 1, 3)  # it only writes here, which needs no table of names

    def vocab_changes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(d2t and t2d to leave out, those to derive)."""
        rule, drafter = self.schema.vocab_map, self.drafter
        present = tuple(n for n in VOCAB_TENSORS if n in drafter.reading.names.names)
        if self.restoration is not None:
            had = self.restoration.vocab_tensors
            return tuple(n for n in present if n not in had), tuple(n for n in had if n not in present)
        if drafter.full_vocabulary:
            return (present if rule.full == "never" else ()), ()
        dropped = tuple(n for n in present if n == "t2d" and rule.t2d == "never")
        wanted = ("d2t", "t2d") if rule.t2d == "written" else ("d2t",)
        derived = tuple(n for n in wanted if n not in present)
        return dropped, derived if drafter.targets is not None else ()

    def _derivations(self, names: tuple[str, ...]) -> tuple[tuple[Derive, str, tuple[int, ...]], ...]:
        drafter, dims = self.drafter, self.drafter.reading.dims
        targets, size = drafter.targets or (), dims.V or 0
        shapes = {"d2t": (len(targets),), "t2d": (size,)}
        kinds = {"d2t": "I64", "t2d": "BOOL"} | dict(self.restoration.vocab_tensors if self.restoration else {})
        kinds |= {n: row.dtype for n in names if (row := drafter.canonical_state.tensors.get(n)) is not None}
        return tuple((Derive(name, targets, size, "absolute"), kinds[name], shapes[name]) for name in names)

    def written(self, canonical: str) -> str:
        """The name that a tensor gets: as the receipt remembers it, else as the format spells it."""
        remembered = self.restoration.names.get(canonical) if self.restoration is not None else None
        return remembered or self.spelling.written(canonical)

    @cached_property
    def encode(self) -> tuple[Transform, ...]:
        """The steps from canonical form to this format's spelling."""
        drafter, steps = self.drafter, list[Transform]()
        if self.casts:
            steps.append(CastTensors(self.casts))
            before, wanted = drafter.fields.get("dtype"), FLOAT_NAMES[self.dtype or self.casts[0][2]]
            if before != wanted:
                steps.append(AmendConfig((("dtype", before, wanted),)))
        dropped, derived = self.vocab_changes()
        if dropped:
            steps.append(DropTensors(self._derivations(dropped)))
        if derived:
            steps.append(DeriveTensors(self._derivations(derived)))
        if self.aux_ids is not None:
            steps.append(RemapAuxLayers("hidden_states", self.aux_rule.convention.name, self.layers))
        back = self.restoration
        if back is not None and back.permutation:
            steps.append(PermuteFcBlocks(back.permutation).inverse())
        encoding = back.vocab_encoding if back is not None and back.vocab_encoding else self.schema.vocab_map.encoding
        steps.append(self._map_config(Composite(tuple(steps)).apply(drafter.canonical_state).config))
        held = [n for n in (*drafter.canonical_state.tensors, *derived) if n not in dropped]
        if "d2t" in held:
            steps.append(RecodeVocabMap("absolute", encoding))
        renames = tuple((n, w) for n in held if (w := self.written(n)) != n)
        if renames:
            steps.append(RenameTensors(renames))
        return tuple(steps)

    @property
    def encode_config(self) -> MapConfig:
        """The step of `encode` that writes config.json; its residue is what the format has no place for."""
        return next(step for step in self.encode if isinstance(step, MapConfig))

    @cached_property
    def casts(self) -> tuple[tuple[str, str, str], ...]:
        wanted = dict(self.restoration.dtypes) if self.restoration is not None and self.dtype is None else {}
        rows = {n: r for n, r in self.drafter.canonical_state.tensors.items() if r.dtype in FLOAT_NAMES}
        if self.dtype is not None:
            wanted = dict.fromkeys(rows, self.dtype)
        return tuple((n, r.dtype, wanted[n]) for n, r in rows.items() if wanted.get(n, r.dtype) != r.dtype)

    def _map_config(self, fields: Mapping[str, Any]) -> MapConfig:
        spelling, kind = ConfigSpelling(self.schema), self.drafter.reading.decoder
        patch = self.restoration.config_patch if self.restoration is not None else ()
        written = decoded_fields(spelling, patched(spelling.encode(fields, kind), list(patch)))
        lost = {name: value for name, value in fields.items() if not same(written.get(name, ABSENT), value)}
        lost |= {name: ABSENT for name in written if name not in fields}
        return MapConfig(self.schema, kind, "encode", patch, lost)
