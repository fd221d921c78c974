"""The canonical drafter of a reading: its fields, its tensors, and the amendments that lead from the config to them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eagle3convert.byteops import FLOAT_NAMES
from eagle3convert.canonical import DECODER_FIELDS, FEATURES, TensorSpec, concrete_table
from eagle3convert.config_transforms import AmendConfig, MapConfig, decoded_fields
from eagle3convert.conventions import DEFAULT_THETA
from eagle3convert.fields import ConfigSpelling
from eagle3convert.nested import ABSENT, difference, same
from eagle3convert.reading import Reading
from eagle3convert.transforms import (
    PermuteFcBlocks,
    RecodeVocabMap,
    RemapAuxLayers,
    RenameTensors,
    Row,
    State,
    Transform,
)
from eagle3convert.vocab import LARGEST_VOCABULARY

LAYERS_BEYOND = 64  # so many layers that the config states and the tensors lack are listed as missing, and no more


@dataclass(frozen=True)
class Drafter:
    """What one source drafter is in canonical form, and the path that leads there."""

    reading: Reading

    @cached_property
    def table(self) -> dict[str, TensorSpec]:
        """The tensors that a drafter of these sizes and features consists of, d2t and t2d apart."""
        reading, dims = self.reading, self.reading.dims
        most = len(reading.checkpoint.tensors) + LAYERS_BEYOND  # a config may state any number
        layers, aux = min(dims.L or 1, most), min(dims.A or 3, most)
        off = {name for name in FEATURES if not reading.feature(name).value}
        table = {name: spec for name, spec in concrete_table(layers, aux) if spec.feature not in off}
        if reading.feature("shared_lm_head").value:
            table.pop("lm_head.weight", None)
        return table

    @property
    def full_vocabulary(self) -> bool:
        dims = self.reading.dims
        return dims.DV is not None and dims.DV == dims.V

    @cached_property
    def targets(self) -> tuple[int, ...] | None:
        """The target id of every draft id; None where no sound map is there."""
        vocab = self.reading.vocab
        if vocab.targets is not None:
            return vocab.targets
        size = self.reading.dims.V
        counted = self.full_vocabulary and vocab.values is None and size is not None and size <= LARGEST_VOCABULARY
        return tuple(range(size or 0)) if counted else None

    @cached_property
    def dtype(self) -> str | None:
        """The float dtype of most of the weights' elements, as a config names it."""
        counts: Counter[str] = Counter()
        for tensor in self.reading.checkpoint.tensors.values():
            counts[tensor.dtype] += tensor.numel
        return next((FLOAT_NAMES[kind] for kind, _ in counts.most_common() if kind in FLOAT_NAMES), None)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The canonical fields of the drafter as it was trained; unknown ones are absent."""
        reading = self.reading
        stated = self.source_fields
        kept = {"rope", "layer_types", "quantization_config"}
        fields = {k: v for k, v in stated.items() if k in kept or k.startswith("neutral.")}
        fields.setdefault("rope", {"rope_type": "default", "rope_theta": DEFAULT_THETA})
        for name in (*DECODER_FIELDS, "draft_vocab_size", "target_hidden_size"):
            if (value := reading.fact(name).value) is not None:
                fields[name] = value
        for name in FEATURES:
            fact = reading.feature(name)
            if fact.known:
                fields[name] = fact.value
        fields["tie_word_embeddings"] = False
        fields["aux_count"] = reading.dims.A
        if self.dtype is not None:
            fields["dtype"] = self.dtype
        if reading.aux.states is not None:
            fields["aux_layers"] = reading.aux.ascending
        verifier = reading.verifier
        if verifier.name:
            fields["verifier.name"] = verifier.name
        if verifier.architectures:
            fields["verifier.architectures"] = list(verifier.architectures)
        return fields

    # --- the way from the source's spelling ---------------------------------------------------------------------------

    @cached_property
    def source_state(self) -> State:
        checkpoint = self.reading.checkpoint
        rows = {name: Row(t.dtype, t.shape, name) for name, t in checkpoint.tensors.items()}
        return State(rows, checkpoint.config)

    @cached_property
    def config_patch(self) -> tuple[dict[str, Any], ...]:
        """What the source's config says beyond (or against) the canonical fields, as changes to what they spell."""
        reading = self.reading
        spelled = ConfigSpelling(reading.schema).encode(self.source_fields, self.source_decoder)
        return tuple(difference(spelled, reading.checkpoint.config))

    @cached_property
    def source_decoder(self) -> str:
        """The decoder kind under which the source's format is written again; its first one where it has none such."""
        schema, kind = self.reading.schema, self.reading.decoder
        return kind if schema.decoders[kind].architectures else next(iter(schema.decoders))

    @cached_property
    def source_fields(self) -> dict[str, Any]:
        """The canonical fields that the source's config itself states, before any amendment."""
        return decoded_fields(ConfigSpelling(self.reading.schema), self.reading.checkpoint.config)

    @cached_property
    def permutation(self) -> tuple[int, ...]:
        return self.reading.aux.permutation

    @cached_property
    def decode(self) -> tuple[Transform, ...]:
        """The steps from the source's spelling to canonical form."""
        reading = self.reading
        steps: list[Transform] = []
        renames = tuple((found, name) for name, found in reading.names.names.items() if found != name)
        if renames:
            steps.append(RenameTensors(renames))
        if reading.vocab.encoding is not None:
            steps.append(RecodeVocabMap(reading.vocab.encoding, "absolute"))
        steps.append(MapConfig(reading.schema, self.source_decoder, "decode", self.config_patch))
        if reading.aux.ids is not None and reading.aux.states is not None and reading.statements.aux_layers is None:
            n = reading.verifier.num_hidden_layers
            known = (reading.aux.convention, reading.aux.ids)
            steps.append(RemapAuxLayers(reading.aux.convention, "hidden_states", n, known))
        if self.permutation:
            steps.append(PermuteFcBlocks(self.permutation))
        amended = self._amendments(steps)
        if amended:
            steps.append(AmendConfig(amended))
        return tuple(steps)

    def _amendments(self, steps: list[Transform]) -> tuple[tuple[str, Any, Any], ...]:
        """What the steps so far leave different from the canonical fields."""
        state = self.source_state
        for step in steps:
            state = step.apply(state)
        before, after = state.config, self.fields
        names = [*before, *(name for name in after if name not in before)]
        return tuple(
            (name, before.get(name, ABSENT), after.get(name, ABSENT))
            for name in names
            if not same(before.get(name, ABSENT), after.get(name, ABSENT))
        )

    @cached_property
    def canonical_state(self) -> State:
        state = self.source_state
        for step in self.decode:
            state = step.apply(state)
        return state
