"""Reading: a checkpoint understood through one format's schema, as facts with their origins.

Nothing is judged here and nothing raises: what contradicts or is missing stays visible in the reading, and the rules in
`eagle3convert.rules` turn it into findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from eagle3convert.aux_layers import AuxReading, read_aux_layers
from eagle3convert.canonical import DECODER_FIELDS, FEATURES, UNKNOWN, Dims, Fact, Origin, is_whole
from eagle3convert.checkpoint.source import Checkpoint
from eagle3convert.checkpoint.stored import StoredTensor
from eagle3convert.fields import ConfigReading, ConfigSpelling
from eagle3convert.schema import FormatSchema
from eagle3convert.spelling import NameReading, TensorSpelling, fc_norms_named, layers_named, read_names
from eagle3convert.verifier import VerifierFacts
from eagle3convert.vocab import Encoding, VocabReading, judge

# What tells, by itself, that a tensor-decided feature is on.
_TENSOR_PROOF = {
    "norm_before_fc": "input_norm.weight",
    "fc_norm": "fc_norm.0.weight",
    "qk_norm": "layers.0.self_attn.q_norm.weight",
    "attention_bias": "layers.0.self_attn.q_proj.bias",
    "mlp_bias": "layers.0.mlp.gate_proj.bias",
    "fc_bias": "fc.bias",
    "multi_layer": "layers.1.post_attention_layernorm.weight",
}
MLA_TENSORS = ("kv_a_proj_with_mqa", "kv_b_proj", "q_a_proj")


@dataclass(frozen=True)
class Statements:
    """What the user states beside the checkpoint; it never overrides a fact that the checkpoint proves."""

    assume: Mapping[str, Any] = field(default_factory=dict)
    aux_layers: tuple[int, ...] | None = None
    d2t_encoding: Encoding | None = None
    verifier: VerifierFacts = field(default_factory=VerifierFacts)
    remembered: Mapping[str, Any] = field(default_factory=dict)  # facts from the receipt of an earlier conversion


class Reading:
    """One checkpoint through one schema; every attribute is computed when it is first asked for."""

    release = ""  # of the reader; the newest known

    def __init__(self, checkpoint: Checkpoint, schema: FormatSchema, statements: Statements | None = None) -> None:
        self.checkpoint = checkpoint
        self.schema = schema
        self.statements = statements or Statements()

    # --- what stands in the files -------------------------------------------------------------------------------------

    @cached_property
    def config(self) -> ConfigReading:
        return ConfigSpelling(self.schema).decode(self.checkpoint.config)

    @cached_property
    def spelling(self) -> TensorSpelling:
        names = self.checkpoint.tensors
        return TensorSpelling(self.schema, layers_named(names), fc_norms_named(names))

    @cached_property
    def names(self) -> NameReading:
        return read_names(self.spelling, self.checkpoint.tensors)

    def found(self, canonical: str) -> str:
        """How this checkpoint spells a canonical tensor: as found, or as the format would write it."""
        return self.names.names.get(canonical) or self.spelling.written(canonical)

    def shape(self, canonical: str) -> tuple[int, ...] | None:
        name = self.names.names.get(canonical)
        return self.checkpoint.tensors[name].shape if name is not None else None

    def tensor(self, canonical: str) -> StoredTensor | None:
        """The stored tensor of a canonical name, or None."""
        name = self.names.names.get(canonical)
        return self.checkpoint.tensors[name] if name is not None else None

    def _axis(self, canonical: str, axis: int) -> int | None:
        shape = self.shape(canonical)
        return shape[axis] if shape is not None and len(shape) > axis else None

    # --- facts --------------------------------------------------------------------------------------------------------

    @cached_property
    def verifier(self) -> VerifierFacts:
        """The verifier's facts: the user's first, then those of the config, then those of the receipt."""
        stated = {
            k.removeprefix("verifier."): v for k, v in self.statements.assume.items() if k.startswith("verifier.")
        }
        model_type = stated.pop("model_type", None)
        mine = replace(VerifierFacts(), **stated, model_types=(model_type,) if model_type else ())
        name, classes = self.config.value("verifier.name"), self.config.value("verifier.architectures")
        said = VerifierFacts(
            name=name if isinstance(name, str) else None,
            architectures=tuple(filter(_is_text, classes)) if isinstance(classes, list) else (),
        )
        told = self.statements.remembered.get("verifier")
        receipt = VerifierFacts(**_tuples(told)) if isinstance(told, dict) else VerifierFacts()
        return mine.filled_from(self.statements.verifier).filled_from(said).filled_from(receipt)

    @cached_property
    def decoder(self) -> str:
        """The kind of decoder layer, by the tensors: "llama", "qwen3" or "mla"."""
        if any(part in name for name in self.checkpoint.tensors for part in MLA_TENSORS):
            return "mla"
        return "qwen3" if self.feature("qk_norm").value else "llama"

    def fact(self, name: str) -> Fact:
        """Any canonical field or feature by its name."""
        if name in FEATURES:
            return self.feature(name)
        return self._sizes.get(name) or self._field(name)

    def feature(self, name: str) -> Fact:
        return self._features[name]

    @cached_property
    def _features(self) -> dict[str, Fact]:
        return {name: self._feature(name) for name in FEATURES}

    def _feature(self, name: str) -> Fact:
        spec, rule, assumed = FEATURES[name], self.schema.features[name], self.statements.assume
        if name in assumed:
            return Fact(assumed[name], Origin.ASSUMED, "--assume")
        if spec.source == "tensors":
            return Fact(self._proven(name), Origin.TENSORS)
        stated = self.config.stated.get(name)
        if any(path in self.checkpoint.config for path in rule.disputed_by):
            value = rule.fixed_value if rule.is_fixed else (stated.value if stated else rule.absent)
            return Fact(value, Origin.DISPUTED, rule.disputed_by[0])
        if spec.source == "both":
            return self._both(name)
        if stated is not None and not (spec.kind == "window" and stated.value is None and rule.is_fixed):
            return Fact(stated.value, Origin.STATED, stated.path)
        if rule.is_fixed:
            return Fact(rule.fixed_value, Origin.FORMAT)
        if rule.absence_known:
            return Fact(rule.absent, Origin.DEFAULT, rule.config_key or "")
        if name in self.statements.remembered:
            return Fact(self.statements.remembered[name], Origin.RECEIPT)
        return Fact(None, Origin.UNKNOWN, rule.config_key or "")

    def _both(self, name: str) -> Fact:
        """A feature that the config says and tensors prove; where they differ it is disputed."""
        stated, proof = self.config.stated.get(name), self._proven(name)
        if stated is None:
            return Fact(proof, Origin.TENSORS)
        origin = Origin.STATED if bool(stated.value) == proof else Origin.DISPUTED
        return Fact(bool(stated.value), origin, stated.path)

    def _proven(self, name: str) -> bool:
        names = self.names.names
        if name == "single_aux_layer":
            return self.dims.A == 1
        if name == "narrow":
            return self.dims.T is not None and self.dims.H is not None and self.dims.T != self.dims.H
        if name == "shared_lm_head":
            reduced = (self.config.value("draft_vocab_size") or self.dims.V) != self.dims.V
            head = any(n.startswith("lm_head.") for n in names)
            return not head and not reduced and "d2t" not in names
        if name == "permuted_vocabulary":
            targets = self.vocab.targets
            return targets is not None and len(targets) == self.dims.V and targets != tuple(range(len(targets)))
        if name == "qk_norm":
            return any(n.endswith((".q_norm.weight", ".k_norm.weight")) for n in names)
        if name == "attention_bias":
            return any(".self_attn." in n and n.endswith(".bias") for n in names)
        if name == "mlp_bias":
            return any(".mlp." in n and n.endswith(".bias") for n in names)
        return _TENSOR_PROOF[name] in names

    def _field(self, name: str) -> Fact:
        if name in self.statements.assume:
            return Fact(self.statements.assume[name], Origin.ASSUMED, "--assume")
        stated = self.config.stated.get(name)
        return Fact(stated.value, Origin.STATED, stated.path) if stated else UNKNOWN

    # --- sizes --------------------------------------------------------------------------------------------------------

    @cached_property
    def _sizes(self) -> dict[str, Fact]:
        """The decoder's sizes: stated, or proven by a shape, or derived the way every reader derives them."""
        sizes = {name: self._field(name) for name in (*DECODER_FIELDS, "draft_vocab_size", "target_hidden_size")}

        def derive(name: str, value: int | None, where: str) -> None:
            if sizes[name].value is None and value is not None:
                sizes[name] = Fact(value, Origin.TENSORS, where)

        derive("hidden_size", self._axis("norm.weight", 0), "norm.weight")
        derive("intermediate_size", self._axis("layers.0.mlp.gate_proj.weight", 0), "gate_proj")
        derive("vocab_size", self._axis("t2d", 0) or self._axis("embed_tokens.weight", 0), "t2d")
        derive("vocab_size", self.verifier.vocab_size, "the verifier's config")
        derive("draft_vocab_size", self._axis("lm_head.weight", 0), "lm_head.weight")
        derive("draft_vocab_size", _whole(sizes["vocab_size"].value), "vocab_size")
        heads, hidden = _whole(sizes["num_attention_heads"].value), _whole(sizes["hidden_size"].value)
        rows = self._axis("layers.0.self_attn.q_proj.weight", 0)
        if heads and rows is not None and rows % heads == 0:
            derive("head_dim", rows // heads, "q_proj")
        elif heads and hidden:
            derive("head_dim", hidden // heads, "hidden_size / num_attention_heads")
        keys, dim = self._axis("layers.0.self_attn.k_proj.weight", 0), _whole(sizes["head_dim"].value)
        if keys is not None and dim and keys % dim == 0:
            derive("num_key_value_heads", keys // dim, "k_proj")
        sizes["num_hidden_layers"] = self._layer_count(sizes["num_hidden_layers"])
        sizes["target_hidden_size"] = self._target_hidden(sizes["target_hidden_size"], hidden)
        return sizes

    def _layer_count(self, stated: Fact) -> Fact:
        """The drafter's layers: by its tensors where the config copied the verifier's count."""
        named = layers_named(self.names.names)
        count = _whole(stated.value)
        if stated.origin is Origin.ASSUMED or count == named:
            return stated
        if count is None:
            return Fact(named, Origin.TENSORS, "layers")
        one_layer = self.schema.features["multi_layer"].is_fixed
        if named < count and (one_layer or count == self.verifier.num_hidden_layers):
            return Fact(named, Origin.DISPUTED, stated.where)
        return stated

    def _target_hidden(self, stated: Fact, hidden: int | None) -> Fact:
        if stated.value is not None:
            return stated
        width, verifier = self._axis("fc.weight", 1), self.verifier.hidden_size
        if verifier and hidden and verifier != hidden and width is not None and width % verifier == 0:
            count = len(self.config.value("aux_layers") or ()) or self.config.value("aux_count") or width // verifier
            if count * verifier == width:
                return Fact(verifier, Origin.TENSORS, "fc.weight and the verifier's config")
        return Fact(hidden, Origin.DEFAULT, "hidden_size")

    @cached_property
    def dims(self) -> Dims:
        size = {name: _whole(fact.value) for name, fact in self._sizes.items()}
        return Dims(
            H=size["hidden_size"], T=size["target_hidden_size"], A=self._aux_count(size["target_hidden_size"]),
            Q=size["num_attention_heads"], K=size["num_key_value_heads"] or size["num_attention_heads"],
            D=size["head_dim"], I=size["intermediate_size"], V=size["vocab_size"], DV=size["draft_vocab_size"],
            L=size["num_hidden_layers"],
        )  # fmt: skip

    def _aux_count(self, target_hidden: int | None) -> int | None:
        if self.statements.aux_layers is not None:
            return len(self.statements.aux_layers)
        ids, count = self.config.value("aux_layers"), _whole(self.config.value("aux_count"))
        if isinstance(ids, list) and ids:
            return len(ids)
        if count:
            return count
        width = self._axis("fc.weight", 1)
        if width is not None and target_hidden and width % target_hidden == 0:
            return width // target_hidden
        return 3

    # --- the two maps -------------------------------------------------------------------------------------------------

    @cached_property
    def vocab(self) -> VocabReading:
        rule, names, tensors = self.schema.vocab_map, self.names.names, self.checkpoint.tensors
        d2t, t2d = (tensors[names[n]] if n in names else None for n in ("d2t", "t2d"))
        vocab_size = _whole(self._sizes["vocab_size"].value)
        return judge(d2t, t2d, vocab_size, rule.encoding, self.statements.d2t_encoding, rule.order == "ascending")

    @cached_property
    def aux(self) -> AuxReading:
        raw = self.config.value("aux_layers")
        order = self.statements.assume.get("fc_order", self.schema.aux_layers.fc_order)
        return read_aux_layers(
            self.schema,
            self.verifier,
            raw,
            self.statements.aux_layers,
            order,
            self.release,
        )


def _whole(value: Any) -> int | None:
    return value if is_whole(value) else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _tuples(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()}
