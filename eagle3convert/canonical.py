"""The canonical drafter: the one spelling of an EAGLE-3 drafter that every format is described against.

Tensor names follow the decoder-layer spelling (`layers.0.…`), the vocab map holds absolute target ids, aux layers are
numbered as transformers numbers `hidden_states` (0 = embedding output, k = after k decoder layers), and `fc` takes its
column blocks in ascending layer order.  Nothing here knows a format: that knowledge is in `schemas/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeGuard

Value = bool | int | float | str | None | list[Any] | dict[str, Any] | tuple[int, ...]


class Origin(StrEnum):
    """How a fact about a drafter is known; `UNKNOWN` is never silently replaced by a default."""

    STATED = "stated"  # the checkpoint's config says it
    TENSORS = "tensors"  # the names or shapes of the tensors prove it
    FORMAT = "format"  # the source's format fixes it: its trainer or reader knows nothing else
    DEFAULT = "default"  # absent from the config; the format's documented reading of absence
    ASSUMED = "assumed"  # the user states it (--assume, --aux-layers …)
    RECEIPT = "receipt"  # the receipt of the conversion that made this folder says it
    DISPUTED = "disputed"  # stated, and contradicted by the tensors or by the format's history
    UNKNOWN = "unknown"


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a JSON value is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Fact:
    """One value of the canonical drafter together with how it is known and where that stands."""

    value: Value
    origin: Origin
    where: str = ""

    @property
    def known(self) -> bool:
        return self.origin is not Origin.UNKNOWN


UNKNOWN = Fact(None, Origin.UNKNOWN)

# --- fields -----------------------------------------------------------------------------------------------------------

# Integers and strings that every decoder config carries under the field's own name.
DECODER_FIELDS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "vocab_size", "hidden_act", "rms_norm_eps", "max_position_embeddings",
)  # fmt: skip
# Fields whose place differs from format to format; `rope`, `dtype`, `aux_layers` … have codecs of their own.
DRAFTER_FIELDS = ("draft_vocab_size", "target_hidden_size", "tie_word_embeddings", "dtype", "rope", "aux_layers")
VERIFIER_FIELDS = ("verifier.name", "verifier.architectures")

# Decoder fields that change nothing in a drafter's forward pass at inference; they travel as they are.
NEUTRAL_FIELDS = frozenset({
    "attention_dropout", "bos_token_id", "eos_token_id", "initializer_range", "max_window_layers", "modal_type",
    "pad_token_id", "pretraining_tp", "target_model_type", "transformers_version", "use_cache",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """A behaviour of the forward pass that a format may or may not be able to say.

    `kind` is the type of its value.  `source` tells what decides it: the config ("config"), the tensors ("tensors"),
    or both, which must then agree ("both").  `plain` is the value of a drafter without the feature.
    """

    name: str
    kind: Literal["bool", "window"]
    source: Literal["config", "tensors", "both"]
    plain: Value
    says: str


FEATURES: Mapping[str, FeatureSpec] = {
    spec.name: spec
    for spec in (
        FeatureSpec("norm_before_residual", "bool", "config", False,
                    "the first layer's residual is taken after hidden_norm"),
        FeatureSpec("norm_before_fc", "bool", "both", False, "one RMSNorm over all aux states before fc"),
        FeatureSpec("fc_norm", "bool", "both", False, "an RMSNorm for each aux state before fc"),
        FeatureSpec("norm_output", "bool", "config", False,
                    "the state handed to the next draft step is the one after the final norm"),
        FeatureSpec("final_norm", "bool", "config", True, "the final norm is applied before lm_head"),
        FeatureSpec("qk_norm", "bool", "tensors", False, "RMSNorm on the heads of q and k (qwen3)"),
        FeatureSpec("attention_bias", "bool", "both", False, "biases on q, k, v and o"),
        FeatureSpec("mlp_bias", "bool", "both", False, "biases on gate, up and down"),
        FeatureSpec("fc_bias", "bool", "both", False, "a bias on fc"),
        FeatureSpec("sliding_window", "window", "config", None, "attention over a window of so many tokens"),
        FeatureSpec("mixed_attention", "bool", "config", False, "some layers slide and others do not"),
        FeatureSpec("multi_layer", "bool", "tensors", False, "more than one decoder layer"),
        FeatureSpec("single_aux_layer", "bool", "tensors", False, "fc is fed with one aux state only"),
        FeatureSpec("narrow", "bool", "tensors", False, "the drafter's width is not the verifier's"),
        FeatureSpec("shared_lm_head", "bool", "tensors", False, "the drafter has no lm_head: the verifier's is used"),
        FeatureSpec("permuted_vocabulary", "bool", "tensors", False,
                    "a full draft vocabulary in another order than the verifier's"),
    )
}  # fmt: skip


# --- tensors ----------------------------------------------------------------------------------------------------------


# Symbols in shapes: H hidden, T verifier hidden, A aux states, Q/K heads, D head_dim, I intermediate, V vocabulary,
# DV draft vocabulary.  A shape is a product of symbols and integers per axis.
@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One row of the closed table: a canonical tensor, its symbolic shape and when it exists.

    `{i}` runs over the decoder layers named by `layers` ("first": 0, "rest": 1.., "all"), `{j}` over the aux states.
    """

    name: str
    shape: tuple[str, ...]
    layers: Literal["first", "rest", "all", ""] = ""
    feature: str = ""  # exists only where this feature is on
    optional: bool = False  # may be absent: the engine takes the verifier's


def _attention(layers: Literal["first", "rest"], width: str) -> tuple[TensorSpec, ...]:
    at = "layers.{i}.self_attn."
    heads = (("q_proj", "Q*D"), ("k_proj", "K*D"), ("v_proj", "K*D"))
    return (
        *(TensorSpec(f"{at}{n}.weight", (rows, width), layers) for n, rows in heads),
        TensorSpec(f"{at}o_proj.weight", ("H", "Q*D"), layers),
        *(TensorSpec(f"{at}{n}.bias", (rows,), layers, "attention_bias") for n, rows in (*heads, ("o_proj", "H"))),
        *(TensorSpec(f"{at}{n}.weight", ("D",), layers, "qk_norm") for n in ("q_norm", "k_norm")),
    )


TENSORS: tuple[TensorSpec, ...] = (
    TensorSpec("embed_tokens.weight", ("V", "H"), optional=True),
    TensorSpec("input_norm.weight", ("A*T",), feature="norm_before_fc"),
    TensorSpec("fc_norm.{j}.weight", ("T",), feature="fc_norm"),
    TensorSpec("fc.weight", ("H", "A*T")),
    TensorSpec("fc.bias", ("H",), feature="fc_bias"),
    TensorSpec("layers.{i}.hidden_norm.weight", ("H",), "first"),
    TensorSpec("layers.{i}.input_layernorm.weight", ("H",), "all"),
    *_attention("first", "2*H"),
    *_attention("rest", "H"),
    TensorSpec("layers.{i}.post_attention_layernorm.weight", ("H",), "all"),
    *(
        spec
        for name, shape in (("gate_proj", ("I", "H")), ("up_proj", ("I", "H")), ("down_proj", ("H", "I")))
        for spec in (
            TensorSpec(f"layers.{{i}}.mlp.{name}.weight", shape, "all"),
            TensorSpec(f"layers.{{i}}.mlp.{name}.bias", shape[:1], "all", "mlp_bias"),
        )
    ),
    TensorSpec("norm.weight", ("H",)),
    TensorSpec("lm_head.weight", ("DV", "H")),
)
VOCAB_TENSORS = ("d2t", "t2d")

# What a quantised module keeps beside (or instead of) its weight; it travels with the module under its new name.
COMPANION_SUFFIXES = (
    "weight_scale", "weight_scale_2", "weight_scale_inv", "weight_zero_point", "weight_packed", "weight_shape",
    "weight_g_idx", "input_scale", "input_zero_point", "k_scale", "v_scale", "qweight", "qzeros", "scales", "g_idx",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dims:
    """The sizes that a drafter's shapes are made of; an unknown size is None."""

    H: int | None = None
    T: int | None = None
    A: int | None = None
    Q: int | None = None
    K: int | None = None
    D: int | None = None
    I: int | None = None  # noqa: E741  (the symbol of the shape table)
    V: int | None = None
    DV: int | None = None
    L: int | None = None

    def size(self, product: str) -> int | None:
        """The value of one axis, such as "2*H"; None where a symbol in it is unknown."""
        total = 1
        for factor in product.split("*"):
            value = int(factor) if factor.isdigit() else getattr(self, factor)
            if value is None:
                return None
            total *= value
        return total

    def shape(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return tuple(self.size(axis) for axis in spec.shape)


def concrete_table(layers: int, aux: int) -> Iterator[tuple[str, TensorSpec]]:
    """Every canonical tensor name of a drafter with so many decoder layers and aux states, with its spec."""
    for spec in TENSORS:
        if "{i}" in spec.name:
            chosen = {"first": range(1), "rest": range(1, layers), "all": range(layers)}[spec.layers or "all"]
            yield from ((spec.name.replace("{i}", str(i)), spec) for i in chosen)
        elif "{j}" in spec.name:
            yield from ((spec.name.replace("{j}", str(j)), spec) for j in range(aux))
        else:
            yield spec.name, spec


_LAYER_INDEX = re.compile(r"^layers\.(\d+)\.")


def layer_index(name: str) -> int | None:
    """The decoder layer that a canonical tensor belongs to, or None."""
    found = _LAYER_INDEX.match(name)
    return int(found[1]) if found else None


_LAYER = re.compile(r"^(.*?layers\.\d+|.*?midlayer)\.")


def fold_layers(names: Sequence[str]) -> list[str]:
    """Names with three or more of one decoder layer written as `layers.0.* (10 tensors)`, the rest folded by number."""
    layers: dict[str, list[str]] = {}
    for name in names:
        found = _LAYER.match(name)
        layers.setdefault(found[1] if found else "", []).append(name)
    whole = {layer: members for layer, members in layers.items() if layer and len(members) >= 3}
    rest = [name for layer, members in layers.items() if layer not in whole for name in members]
    return [f"{layer}.* ({len(members)} tensors)" for layer, members in whole.items()] + fold_names(rest)


_RUN = re.compile(r"(?<=\.)\d+(?=\.)")


def fold_names(names: list[str]) -> list[str]:
    """Names that differ in one number only, written once: `layers.{0..3}.mlp.up_proj.weight`."""
    groups: dict[str, list[int]] = {}
    plain: dict[str, str] = {}
    for name in names:
        found = _RUN.search(name)
        shape = _RUN.sub("#", name, count=1) if found else name
        groups.setdefault(shape, [])
        plain.setdefault(shape, name)
        if found:
            groups[shape].append(int(found[0]))
    folded = []
    for shape, numbers in groups.items():
        if len(numbers) < 2:
            folded.append(plain[shape])
            continue
        ordered = sorted(numbers)
        whole = ordered == list(range(ordered[0], ordered[-1] + 1))
        span = f"{ordered[0]}..{ordered[-1]}" if whole else ",".join(map(str, ordered))
        folded.append(shape.replace("#", "{" + span + "}", 1))
    return folded
