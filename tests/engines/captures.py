"""SGLang's own verifiers, run for the aux layers of many drafters: what the plans write, and which states are captured.

Small verifiers with random weights, written by transformers, run in SGLang's classes. Every block of what the drafter
would get is compared with each state of transformers' residual stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3convert.conventions import Ids
from tests.engines.aux_ids import Written, written_ids
from tests.engines.engines import run_host
from tests.engines.matrix import Verdict, record

LAYERS = 8
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "num_key_value_heads": 4, "head_dim": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1,
    "topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1,
    "rms_norm_eps": 1e-6, "first_k_dense_replace": LAYERS, "mlp_layer_types": ["dense"] * LAYERS,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 32,
        "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1,
    },
}  # fmt: skip
"""MLA with dense layers. Yarn, for SGLang knows no other rope for MLA on a CPU (rotary_embedding/factory.py:478)."""
RUN: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "phi3": ("Phi3ForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {}),
    "ministral3": ("Ministral3ForCausalLM", {}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {**EXPERTS, "shared_expert_intermediate_size": 0}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", EXPERTS),
    "mellum": ("MellumForCausalLM", EXPERTS),
    "glm4_moe": ("Glm4MoeForCausalLM", {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    "exaone_moe": (
        "ExaoneMoeForCausalLM",
        # One window for all layers, wider than the text: its size with or without the query is no matter here.
        {"is_moe_layer": [False] * LAYERS, "mlp_layer_types": ["dense"] * LAYERS, "sliding_window": 32,
         "layer_types": ["sliding_attention"] * LAYERS,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
    ),
    "apertus": ("ApertusForCausalLM", {}),
    "gpt_oss": (
        "GptOssForCausalLM",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4, "swiglu_limit": 7.0},
    ),
    "gemma4_text": (
        "Gemma4ForCausalLM",
        {"tie_word_embeddings": True, "sliding_window": 4, "global_head_dim": 8, "hidden_size_per_layer_input": 0},
    ),
    "gemma3_text": ("Gemma3ForCausalLM", {"tie_word_embeddings": True, "sliding_window": 4}),
    "deepseek_v2": ("DeepseekV2ForCausalLM", LATENT | {"topk_method": "greedy", "scoring_func": "softmax"}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", LATENT),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM", LATENT),
}  # fmt: skip
"""model_type -> the class that SGLang serves it with, and what its small verifier has beside the host's SMALL."""
NO_VERIFIERS = {
    "DeepseekV3ForCausalLMNextN", "ExaoneMoEForCausalLMMTP", "Gemma4AssistantForCausalLM",
    "Gemma4UnifiedAssistantForCausalLM", "Glm4MoeForCausalLMNextN", "Glm4MoeLiteForCausalLMNextN",
    "Glm5NextForConditionalGenerationNextN", "GlmMoeDsaForCausalLMNextN",
    "LlamaForCausalLMEagle", "LlamaForCausalLMEagle3",
    "LongcatFlashForCausalLMNextN", "MistralForCausalLMEagle", "MistralLarge3ForCausalLMEagle", "Qwen2ForCausalLMEagle",
    "Qwen3MoeForCausalLMMTP", "Qwen3NextForCausalLMMTP",  # draft classes, which inherit the setter
    "EmbeddingGemmaModel",  # makes embeddings
    "MindSporeForCausalLM",  # hands the ids to a model of another program
}  # fmt: skip
"""Classes of SGLang that have the setter and that nobody drafts for."""

DEFAULT = (2, 4, 5)
LISTS: tuple[Ids, ...] = (DEFAULT, (0, 3, 7), (0, 1), (1, 2, 3), (2, 3, 6), (3, 4, 5, 6), (0, 1, 4, 6, 7), (2, 5, 8))
WITH_EMBEDDING = (0, 3, 7)
WITH_FINAL = (2, 5, 8)
TOLD = {DEFAULT: "{}", WITH_EMBEDDING: "{} with embedding"}
"""Lists that have a row in the table of verifiers: how its name is made from the model_type."""


@dataclass(frozen=True)
class Engine:
    """What SGLang did, by case name; and what the conversions wrote."""

    captures: dict[str, dict[str, Any]]
    written: dict[tuple[str, Ids], Written]
    classes: dict[str, list[str]]

    def states(self, name: str) -> list[int | None] | None:
        """The captured states of a case, or None where SGLang stopped at setting the ids or in its forward pass."""
        found = self.captures[name]
        if found["error"] is not None:
            assert found["stage"] in ("set", "forward"), f"{name}: {found['stage']}: {found['error']}"
            return None
        assert found["apart"] > 0.05, f"{name}: the states of this verifier are too close to be told apart"
        states: list[int | None] = found["states"]
        return states


def tell(release: str, model_type: str, states: Ids, verdict: Verdict) -> None:
    """Record a cell of the table of verifiers, for the lists that have one."""
    if states in TOLD:
        record(TOLD[states].format(model_type), "sglang", release, verdict, f"{states}, compared with transformers'")


def by_hand(states: Ids, ids: Ids) -> str:
    """The end of the name of a case whose ids nobody's plan wrote."""
    return f"{states} by hand {ids}"


def capture(
    space: Path, release: str, engine_version: str = "", more: Iterable[tuple[str, str, Ids | None]] = ()
) -> Engine:
    """Run every verifier of RUN for every list of LISTS, and `more`: (model_type, what it is called, ids).

    A list that the plan refuses is run with every ids that one could write by hand.
    """
    written = {
        (model_type, states): written_ids(space, states, model_type, architecture, LAYERS, engine_version)
        for model_type, (architecture, _) in RUN.items()
        for states in LISTS
    }
    wanted: list[tuple[str, str, Ids | None]] = []
    for (model_type, states), found in written.items():
        if not found.errors:
            wanted.append((model_type, str(states), found.ids))
        else:
            wanted += [(model_type, by_hand(states, ids), ids) for ids in found.candidates]
    cases = [
        {
            "name": f"{model_type} {name}", "model_type": model_type, "config": RUN[model_type][1],
            "ids": None if ids is None else list(ids),
        }
        for model_type, name, ids in (*wanted, *more)
    ]  # fmt: skip
    results = run_host(
        f"sglang-{release}", "sglang_verifiers.py", {"captures": cases, "classes": True}, space / "results.json"
    )
    assert results["release"] == release
    return Engine(results["captures"], written, results["classes"])
