"""SGLang's own verifiers capture just the states that a drafter was trained on, for the ids that a conversion writes.

Small verifiers with random weights, written by transformers, run in SGLang's classes. Every block of what the drafter
would get is compared with each state of transformers' residual stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from eagle3convert.conventions import Ids
from tests.engines.aux_ids import Written, written_ids
from tests.engines.engines import SGLANG, run_host
from tests.engines.matrix import record

pytestmark = pytest.mark.engine

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
    "gpt_oss": ("GptOssForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}),
    "gemma4_text": (
        "Gemma4ForCausalLM",
        {"tie_word_embeddings": True, "sliding_window": 4, "global_head_dim": 8, "hidden_size_per_layer_input": 0},
    ),
    "deepseek_v2": ("DeepseekV2ForCausalLM", LATENT | {"topk_method": "greedy", "scoring_func": "softmax"}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", LATENT),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM", LATENT),
}  # fmt: skip
"""model_type -> the class that SGLang serves it with, and what its small verifier has beside the host's SMALL."""
GEMMA3 = ("gemma3_text", "Gemma3ForCausalLM", {"tie_word_embeddings": True, "sliding_window": 4})
FIRST_ID_DECIDES = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")
"""Ids that begin with 1 mean the outputs of layers, all others states (deepseek_v2.py:3458-3473 of 0.5.23)."""
HAS_FINAL = ("gpt_oss", "gemma4_text")

DEFAULT = (2, 4, 5)
LISTS: tuple[Ids, ...] = (DEFAULT, (0, 3, 7), (0, 1), (1, 2, 3), (2, 3, 6), (3, 4, 5, 6), (0, 1, 4, 6, 7), (2, 5, 8))
WITH_FINAL = (2, 5, 8)
ORDER = {"out of order": [6, -1, 3], "a duplicate": [3, 3, 1]}


@dataclass(frozen=True)
class Engine:
    """What SGLang did, by case name; and what the conversions wrote."""

    captures: dict[str, dict[str, Any]]
    written: dict[tuple[str, Ids], Written]

    def states(self, name: str) -> list[int | None] | None:
        """The captured states of a case, or None where SGLang stopped at setting the ids or in its forward pass."""
        found = self.captures[name]
        if found["error"] is not None:
            assert found["stage"] in ("set", "forward"), f"{name}: {found['stage']}: {found['error']}"
            return None
        assert found["apart"] > 0.05, f"{name}: the states of this verifier are too close to be told apart"
        states: list[int | None] = found["states"]
        return states


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    space = tmp_path_factory.mktemp("captures")
    cases: list[dict[str, Any]] = []
    written: dict[tuple[str, Ids], Written] = {}

    def add(name: str, model_type: str, config: dict[str, Any], ids: Any) -> None:
        ids = None if ids is None else list(ids)
        cases.append({"name": name, "model_type": model_type, "config": config, "ids": ids})

    for model_type, (architecture, config) in (*RUN.items(), (GEMMA3[0], GEMMA3[1:])):
        for states in LISTS:
            found = written_ids(space, states, model_type, architecture, LAYERS)
            written[model_type, states] = found
            if not found.errors:
                add(f"{model_type} {states}", model_type, config, found.ids)
            for by_hand in found.candidates if found.errors else ():
                add(f"{model_type} {states} by hand {by_hand}", model_type, config, by_hand)
        if model_type in ("llama", "qwen3", "deepseek_v3"):
            found = written_ids(space, (4,), model_type, architecture, LAYERS)
            add(f"{model_type} one state", model_type, config, found.encoded)
            for name, ids in ORDER.items():
                add(f"{model_type} {name}", model_type, config, ids)
    results = run_host(f"sglang-{SGLANG}", "sglang_verifiers.py", {"captures": cases}, space / "results.json")
    assert results["release"] == SGLANG
    return Engine(results["captures"], written)


@pytest.mark.parametrize("model_type", RUN)
def test_the_written_ids_make_sglang_capture_just_these_states(engine: Engine, model_type: str) -> None:
    served = [states for states in LISTS if not engine.written[model_type, states].errors]
    assert DEFAULT in served
    assert (0, 3, 7) in served
    for states in served:
        ids = engine.written[model_type, states].ids
        assert engine.states(f"{model_type} {states}") == list(states), f"{model_type}: {states} written as {ids}"
    record("aux layers with embedding", "sglang", SGLANG, "served", "states equal transformers' in SGLang's verifiers")


@pytest.mark.parametrize("model_type", RUN)
def test_a_refused_list_can_be_had_with_no_ids(engine: Engine, model_type: str) -> None:
    refused = [states for states in LISTS if engine.written[model_type, states].errors]
    assert refused == [states for states in LISTS if states in expected_refusals(model_type)]
    for states in refused:
        written = engine.written[model_type, states]
        assert written.errors == ("E305",)
        for ids in written.candidates:
            assert engine.states(f"{model_type} {states} by hand {ids}") != list(states), (model_type, states, ids)


def expected_refusals(model_type: str) -> tuple[Ids, ...]:
    if model_type in HAS_FINAL:
        return ()
    if model_type in FIRST_ID_DECIDES:
        return ((1, 2, 3), WITH_FINAL)
    return (WITH_FINAL,)


@pytest.mark.parametrize("model_type", sorted(set(RUN) - set(HAS_FINAL)))
def test_the_final_state_is_not_captured(engine: Engine, model_type: str) -> None:
    """The id that would mean it makes SGLang capture one state less, or stop."""
    ids = WITH_FINAL if model_type in FIRST_ID_DECIDES else tuple(state - 1 for state in WITH_FINAL)
    name = f"{model_type} {WITH_FINAL} by hand {ids}"
    states = engine.states(name)
    if states is None:
        assert engine.captures[name]["error"] in (
            "IndexError: index 8 is out of range", "RuntimeError: captured 2 of 3 aux hidden states",
        )  # fmt: skip
    else:
        assert states == list(WITH_FINAL[:-1])
    record("final state", "sglang", SGLANG, "refused", "most verifiers: SGLang captures one state less, or stops")


@pytest.mark.parametrize("model_type", HAS_FINAL)
def test_the_final_state_is_captured_before_the_final_norm(engine: Engine, model_type: str) -> None:
    assert engine.states(f"{model_type} {WITH_FINAL}") == list(WITH_FINAL)
    record(
        "final state of gpt_oss and gemma4", "sglang", SGLANG, "served", "states equal transformers' before the norm"
    )


def test_gpt_oss_takes_ids_with_the_final_state_as_they_are(engine: Engine) -> None:
    assert engine.written["gpt_oss", WITH_FINAL].ids == WITH_FINAL
    assert engine.written["gemma4_text", WITH_FINAL].ids == (1, 4, 7)


@pytest.mark.parametrize("model_type", RUN)
def test_the_default_list_is_left_to_the_engine_or_written_to_the_same_end(engine: Engine, model_type: str) -> None:
    assert engine.written[model_type, DEFAULT].ids in (None, (1, 3, 4))
    assert engine.states(f"{model_type} {DEFAULT}") == list(DEFAULT)


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "deepseek_v3"])
def test_one_state(engine: Engine, model_type: str) -> None:
    assert engine.states(f"{model_type} one state") == [4]


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_the_order_of_ids_says_nothing_and_duplicates_collapse(engine: Engine, model_type: str) -> None:
    assert engine.states(f"{model_type} out of order") == [0, 4, 7]
    assert engine.states(f"{model_type} a duplicate") == [2, 4]


def test_deepseek_stops_at_a_duplicate(engine: Engine) -> None:
    """It makes room for as many states as there are ids (aux_hidden_states.py:87 of 0.5.23)."""
    assert engine.captures["deepseek_v3 a duplicate"]["error"] == "RuntimeError: captured 2 of 3 aux hidden states"


def test_gemma3_states_lack_the_residual(engine: Engine) -> None:
    """SGLang 0.5.23 captures the output of a layer's last norm, before it is added to the residual stream.

    gemma3_causal.py:381-410 leaves the sum to the next layer's norm, and :657 and :672 capture without it.
    """
    for states in LISTS:
        assert engine.written[GEMMA3[0], states].errors == ("E305",), "so the plan refuses it"
        by_hand = tuple(state - 1 for state in states)
        found = engine.captures[f"{GEMMA3[0]} {states} by hand {by_hand}"]
        assert found["error"] is None
        assert found["states"] == [0 if state == 0 else None for state in states]
        assert found["branches"] == [None if state == 0 else state - 1 for state in states]
    record("aux layers of gemma3", "sglang", SGLANG, "refused", "the states lack the residual stream")
