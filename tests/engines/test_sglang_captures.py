"""SGLang's own verifiers capture just the states that a drafter was trained on, for the ids that are written."""

from __future__ import annotations

import pytest

from eagle3convert.conventions import Ids
from tests.engines.aux_ids import written_ids
from tests.engines.captures import (
    DEFAULT,
    LAYERS,
    LISTS,
    RUN,
    WITH_EMBEDDING,
    WITH_FINAL,
    Engine,
    by_hand,
    capture,
    tell,
)
from tests.engines.engines import SGLANG
from tests.engines.matrix import record

pytestmark = pytest.mark.engine

GEMMA3 = "gemma3_text"
SOUND = tuple(name for name in RUN if name != GEMMA3)
FIRST_ID_DECIDES = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")
"""Ids that begin with 1 mean the outputs of layers, all others states (deepseek_v2.py:3458-3473 of 0.5.23)."""
HAS_FINAL = ("gpt_oss", "gemma4_text")
ORDER: dict[str, Ids] = {"out of order": (6, -1, 3), "a duplicate": (3, 3, 1)}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    space = tmp_path_factory.mktemp("captures")
    more: list[tuple[str, str, Ids | None]] = []
    for model_type in ("llama", "qwen3", "deepseek_v3"):
        one = written_ids(space, (4,), model_type, RUN[model_type][0], LAYERS)
        more.append((model_type, "one state", one.encoded))
        more += [(model_type, name, ids) for name, ids in ORDER.items()]
    return capture(space, SGLANG, more=more)


@pytest.mark.parametrize("model_type", SOUND)
def test_the_written_ids_make_sglang_capture_just_these_states(engine: Engine, model_type: str) -> None:
    served = [states for states in LISTS if not engine.written[model_type, states].errors]
    assert DEFAULT in served
    assert WITH_EMBEDDING in served
    for states in served:
        ids = engine.written[model_type, states].ids
        assert engine.states(f"{model_type} {states}") == list(states), f"{model_type}: {states} written as {ids}"
        tell(SGLANG, model_type, states, "served")
    record("aux layers with embedding", "sglang", SGLANG, "served", "states equal transformers' in SGLang's verifiers")


@pytest.mark.parametrize("model_type", SOUND)
def test_a_refused_list_can_be_had_with_no_ids(engine: Engine, model_type: str) -> None:
    refused = [states for states in LISTS if engine.written[model_type, states].errors]
    assert refused == [states for states in LISTS if states in expected_refusals(model_type)]
    for states in refused:
        written = engine.written[model_type, states]
        assert written.errors == ("E305",)
        for ids in written.candidates:
            assert engine.states(f"{model_type} {by_hand(states, ids)}") != list(states), (model_type, states, ids)


def expected_refusals(model_type: str) -> tuple[Ids, ...]:
    if model_type in HAS_FINAL:
        return ()
    if model_type in FIRST_ID_DECIDES:
        return ((1, 2, 3), WITH_FINAL)
    return (WITH_FINAL,)


@pytest.mark.parametrize("model_type", sorted(set(SOUND) - set(HAS_FINAL)))
def test_the_final_state_is_not_captured(engine: Engine, model_type: str) -> None:
    """The id that would mean it makes SGLang capture one state less, or stop."""
    ids = WITH_FINAL if model_type in FIRST_ID_DECIDES else tuple(state - 1 for state in WITH_FINAL)
    name = f"{model_type} {by_hand(WITH_FINAL, ids)}"
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


@pytest.mark.parametrize("model_type", SOUND)
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
        assert engine.written[GEMMA3, states].errors == ("E305",), "so the plan refuses it"
        found = engine.captures[f"{GEMMA3} {by_hand(states, tuple(state - 1 for state in states))}"]
        assert found["error"] is None
        assert found["states"] == [0 if state == 0 else None for state in states]
        assert found["branches"] == [None if state == 0 else state - 1 for state in states]
        tell(SGLANG, GEMMA3, states, "refused")
