"""Drafters with one thing changed, for the real vLLM to judge.

FAULTS stop vLLM or cost acceptance without a word, HARMLESS changes nothing, IGNORED is a part of the drafter that vLLM
drops, and APPLIED one that it uses.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.engines.drafter_edits import (
    COUNT,
    HIDDEN,
    IDS,
    Edit,
    L,
    absolute_ids,
    absolute_ids_in_range,
    adding,
    attention_bias,
    both,
    flipped,
    full_vocabulary,
    ids_beyond_the_vocabulary,
    ids_in_eagle_config,
    mlp_bias,
    more_heads,
    negated,
    norm_reversed,
    odd_vocabulary,
    one_more_aux_layer,
    permuted_vocabulary,
    renamed,
    shifted,
    silent_on,
    sliding_in,
    stating,
    verifiers_head,
    wider,
    without,
    without_a_window,
    wrapped,
)


@dataclass(frozen=True)
class Change:
    """One change to the folder `base`: `vllm/demo` is the demo drafter in vLLM's format."""

    base: str
    edit: Edit
    says: str = ""  # the doctor's code for it; none where the files alone cannot show it
    stops: str = ""  # words of the error at which vLLM stops; none where it starts, and accepts less
    replay: str = ""  # what replay says is declared wrong, where it is asked


SHAPES = "Attempted to load weight|Tried to load weights"
UNKNOWN = "There is no module or parameter named"
FED = "is invalid for input of size"  # fc is fed with fewer states than it takes
NBR, DEFAULTS, QWEN3, BIASES, ONE = (
    "norm_before_residual", "vllm/trainer_defaults", "vllm/qwen3_two_layers", "vllm/biases_window_fcnorm",
    "vllm/one_aux_layer",
)  # fmt: skip

FAULTS = {
    # The vocab map.
    "absolute ids in d2t": Change("vllm/demo", absolute_ids, "E212", "IndexError"),
    "absolute ids in d2t, in range": Change("vllm/demo", absolute_ids_in_range, "E202"),
    "ids beyond the vocabulary": Change("vllm/demo", ids_beyond_the_vocabulary, "E201", "IndexError"),
    "no d2t": Change("vllm/demo", without("d2t"), "E204"),
    # The aux layers.
    "aux layers one too low": Change(DEFAULTS, shifted(-1)),
    "aux layers one too high": Change("vllm/demo", shifted(1), replay="aux_layers"),
    "aux layers one too high in speculators": Change("speculators/trainer_defaults", shifted(1)),
    "the one aux layer one too low": Change(ONE, shifted(-1), replay="aux_layers"),
    "aux layers left to the default": Change("vllm/demo", silent_on(IDS), "W302", replay="aux_layers"),
    "aux layers as SGLang counts": Change("vllm/demo", shifted(-1), "E303", FED),
    "an aux layer that does not exist": Change("vllm/demo", stating(**{IDS: [0, 4, 99]}), "E303", FED),
    "four aux states not counted": Change(BIASES, silent_on(COUNT), "E312", SHAPES),
    "one aux state not counted": Change(ONE, silent_on(COUNT), "E312", SHAPES),
    "four aux states in a llama speculators folder": Change(
        "speculators/demo", one_more_aux_layer(8), "E312", SHAPES
    ),
    "fed with the final state only": Change(
        "vllm/demo", stating(eagle_config={"use_aux_hidden_state": False}), "E510"
    ),
    # The switches.
    "norm_before_residual flipped": Change("vllm/demo", flipped(NBR), replay=NBR),
    "norm_before_residual flipped in trainer_defaults": Change(DEFAULTS, flipped(NBR)),
    "norm_before_residual flipped in qwen3": Change(QWEN3, flipped(NBR)),
    "norm_before_residual not stated in speculators": Change("speculators/demo", silent_on(NBR), "E402"),
    "norm_before_fc flipped": Change(DEFAULTS, flipped("norm_before_fc"), "E403"),
    "norm_output flipped": Change(DEFAULTS, flipped("norm_output"), replay="norm_output"),
    "fc_norm flipped": Change(BIASES, flipped("fc_norm"), "E403", UNKNOWN),
    "attention_bias flipped": Change(BIASES, flipped("attention_bias"), "E403"),
    "the sliding window not stated": Change(BIASES, without_a_window),
    # The tensors.
    "a tensor renamed": Change("vllm/demo", renamed(L + "hidden_norm", L + "hidden_layernorm"), "E102", UNKNOWN),
    "names wrapped in model.": Change("vllm/demo", wrapped, "E108", UNKNOWN),
    "a tensor too many": Change("vllm/demo", adding("verifier_norm.weight", HIDDEN), "E102", UNKNOWN),
    "no layer": Change("vllm/demo", without("layers."), "E101"),
    "no fc": Change("vllm/demo", without("fc."), "E101"),
    "no lm_head": Change("vllm/demo", without("lm_head."), "E101"),
    # The config.
    "no num_hidden_layers": Change("vllm/demo", silent_on("num_hidden_layers"), "E522"),
    "no hidden_size": Change("vllm/demo", silent_on("hidden_size"), "E523", "size of tensor"),
    "no intermediate_size": Change("vllm/demo", silent_on("intermediate_size"), "E523", "exceeds dimension size"),
    "no num_attention_heads": Change("vllm/demo", silent_on("num_attention_heads"), "E501", "exceeds dimension size"),
    "no vocab_size": Change("vllm/demo", silent_on("vocab_size"), "E523", "AssertionError"),
    "no model_type": Change("vllm/demo", silent_on("model_type"), "E523", "Unrecognized model"),
    "no speculators_config": Change("speculators/demo", silent_on("speculators_config"), "E523", "Unrecognized model"),
    "an architecture of another program": Change(
        "vllm/demo", stating(architectures=["Eagle3Speculator"]), "E521", "are not supported for now"
    ),
    # What vLLM cannot hold.
    "a permuted full vocabulary": Change("vllm/demo", permuted_vocabulary, "E401", UNKNOWN),
}  # fmt: skip

SWITCHES = silent_on(NBR, "norm_before_fc", "fc_norm", "norm_output", "attention_bias", "mlp_bias")
HARMLESS = {
    "midlayer": Change("vllm/demo", renamed(L, "midlayer.")),
    "no t2d": Change("vllm/demo", without("t2d")),
    "no embed_tokens": Change("vllm/demo", without("embed_tokens.")),
    "aux layers listed in reverse": Change("vllm/demo", stating(**{IDS: [6, 4, 0]})),
    "aux layers in eagle_config": Change("vllm/demo", ids_in_eagle_config),
    "four aux layers in eagle_config": Change(BIASES, ids_in_eagle_config),
    "the default aux layers not stated": Change(DEFAULTS, silent_on(IDS)),
    "one more aux layer": Change("vllm/demo", both(one_more_aux_layer(8), stating(**{COUNT: 4}))),
    "one more aux layer in qwen3, not counted": Change(QWEN3, both(one_more_aux_layer(8), silent_on(COUNT))),
    "one more aux layer in qwen3 speculators": Change("speculators/qwen3_two_layers", one_more_aux_layer(8)),
    "no switch stated": Change("vllm/demo", SWITCHES),
    "no switch of one_aux_layer stated": Change(ONE, SWITCHES),
    "norm_before_residual true not stated in speculators": Change("speculators/trainer_defaults", silent_on(NBR)),
    "norm_before_fc in eagle_config": Change(
        DEFAULTS, both(silent_on("norm_before_fc"), stating(eagle_config={"norm_before_fc": True}))
    ),
    "LlamaForCausalLMEagle3": Change("vllm/demo", stating(architectures=["LlamaForCausalLMEagle3"])),
    "LlamaForCausalLM": Change("vllm/demo", stating(architectures=["LlamaForCausalLM"])),
    "the whole vocabulary": Change("vllm/demo", full_vocabulary),
    "a vocabulary of 70": Change("vllm/demo", odd_vocabulary),
    "heads beside the hidden size": Change("vllm/demo", more_heads),
    "an embedding of its own": Change("vllm/demo", negated("embed_tokens.weight", L + "input_layernorm.weight")),
    "wider than the verifier": Change("vllm/demo", wider),
}  # fmt: skip

IGNORED = {
    "a bias of fc": Change("vllm/demo", adding("fc.bias", HIDDEN, value=100.0), "E401"),
    "mask_hidden": Change("vllm/demo", adding("mask_hidden", 1, 1, 3 * HIDDEN), "E105"),
    "a bias of o in qwen3": Change(QWEN3, attention_bias("o_proj"), "E401"),
    "a bias of gate in qwen3": Change(QWEN3, mlp_bias("gate_proj"), "E401"),
    "a bias of down in qwen3": Change(QWEN3, mlp_bias("down_proj"), "E401"),
}

APPLIED = {
    "a bias of q": Change("vllm/demo", attention_bias("q_proj")),
    "a bias of o": Change("vllm/demo", attention_bias("o_proj")),
    "a bias of v in qwen3": Change(QWEN3, attention_bias("v_proj")),
    "a bias of gate": Change("vllm/demo", mlp_bias("gate_proj")),
    "a bias of down": Change("vllm/demo", mlp_bias("down_proj")),
    "a window in both layers of qwen3": Change(QWEN3, sliding_in(0, 1)),
    "the embedding": Change("vllm/demo", negated(L + "input_layernorm.weight")),
    "the final norm": Change(DEFAULTS, norm_reversed),
    "the head of the verifier": Change("vllm/demo", verifiers_head),
}

OTHERS = {
    "the head of the verifier, shared": Change("vllm/demo", both(full_vocabulary, without("lm_head."))),
    "a window in the first layer only": Change(QWEN3, sliding_in(0)),
    "a window in the second layer only": Change(QWEN3, sliding_in(1)),
}
CHANGES = FAULTS | HARMLESS | IGNORED | APPLIED | OTHERS
