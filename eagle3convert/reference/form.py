"""Form: everything a drafter's forward pass depends on beside its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3convert.canonical import FEATURES
from eagle3convert.drafter import Drafter
from eagle3convert.errors import CheckpointError

DEFAULT_EPS = 1e-6  # transformers' LlamaConfig and Qwen3Config, where rms_norm_eps is not written

# Features that are switches of the forward pass; the others show in sizes, windows and the vocab map.
SWITCHES = (
    "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "final_norm", "qk_norm", "attention_bias",
    "mlp_bias", "fc_bias",
)  # fmt: skip


@dataclass(frozen=True)
class Form:
    """The sizes, rope and switches of one drafter as one reader takes it."""

    hidden_size: int
    target_hidden_size: int
    aux_count: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab_size: int
    draft_vocab_size: int
    eps: float
    activation: str
    rope: Mapping[str, Any]
    longest: int | None  # max_position_embeddings
    windows: tuple[int | None, ...]  # of each layer, in tokens including the query; None for the whole context
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    final_norm: bool = True
    qk_norm: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    fc_bias: bool = False
    # What no drafter is trained with, and engines or broken exports do:
    fc_bypassed: bool = False  # the last aux state goes into layer 0 as it is
    norms_swapped: bool = False  # hidden_norm on the embedding, input_layernorm on the state
    guessed: tuple[str, ...] = field(default=(), compare=False)  # features that nothing states; the plain value is used


def form_of(drafter: Drafter) -> Form:
    """The form of a drafter as it was trained; CheckpointError for a missing size or layers that are not computed."""
    reading, fields = drafter.reading, drafter.fields
    where = f"{reading.checkpoint.label}"
    if reading.decoder == "mla":
        raise CheckpointError(f"{where}: the reference forward pass has no MLA attention.")
    sizes = {
        "hidden_size": "hidden_size", "intermediate_size": "", "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads", "head_dim": "head_dim", "num_hidden_layers": "layers",
        "target_hidden_size": "target_hidden_size", "vocab_size": "vocab_size", "draft_vocab_size": "draft_vocab_size",
    }  # fmt: skip
    found = {name: reading.fact(name).value for name in sizes}
    if found["num_key_value_heads"] is None:
        found["num_key_value_heads"] = found["num_attention_heads"]
    missing = [name for name, value in found.items() if not isinstance(value, int)]
    if missing:
        raise CheckpointError(
            f"{where}: nothing states {', '.join(missing)}, and the forward pass needs it. "
            f"State it with --assume {missing[0]}=NUMBER."
        )
    switches = {name: reading.feature(name) for name in SWITCHES}
    values = {n: fact.value if fact.known else FEATURES[n].plain for n, fact in switches.items()}
    window, types = reading.feature("sliding_window").value, fields.get("layer_types")
    layers = int(found["num_hidden_layers"] or 1)  # type: ignore[arg-type]
    slides = [not isinstance(types, list) or i >= len(types) or types[i] == "sliding_attention" for i in range(layers)]
    return Form(
        **{place: found[name] for name, place in sizes.items() if place},  # type: ignore[arg-type]
        **values,  # type: ignore[arg-type]
        aux_count=reading.dims.A or 3,
        eps=float(fields.get("rms_norm_eps", DEFAULT_EPS)),
        activation=str(fields.get("hidden_act", "silu")),
        rope=fields["rope"],
        longest=fields.get("max_position_embeddings"),
        windows=tuple(window if isinstance(window, int) and slides[i] else None for i in range(layers)),
        guessed=tuple(name for name, fact in switches.items() if not fact.known),
    )
