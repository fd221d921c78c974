"""Every verifier family of SGLang's format file: its class makes the trained states of the ids that are written.

The class's own `set_eagle3_layers_to_capture` runs alone, so that this reaches all families; that layers_to_capture
counts as hidden_states do is shown by `test_sglang_captures.py`, with whole forward passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from eagle3convert.aux_layers import AuxRule, broken_in, rule_at
from eagle3convert.conventions import Ids, default_states
from eagle3convert.formats import load_format
from eagle3convert.schema import Family
from tests.engines.aux_ids import Written, written_ids
from tests.engines.captures import NO_VERIFIERS
from tests.engines.engines import SGLANG, run_host

pytestmark = pytest.mark.engine

SCHEMA = load_format("sglang")
FAMILIES: dict[str, Family] = {name: f for f in SCHEMA.aux_layers.families for name in f.architectures}
RULES: dict[str, AuxRule] = {name: rule_at(SCHEMA, family, SGLANG) for name, family in FAMILIES.items()}
BROKEN = {name for name, family in FAMILIES.items() if broken_in(family, SGLANG)}
"""Whose ids are set right and whose states are not those (`test_gemma3_states_lack_the_residual`): refused whole."""
PROVEN = sorted(set(FAMILIES) - BROKEN)
LAYERS = 61
LISTS: tuple[Ids, ...] = (
    (2, 30, 58), (3, 31, 59), (0, 3, 31), (2, 31, 59), (1, 30, 58), (0, 1), (0, 2, 58), (3, 4, 5, 6, 7), (24, 30, 61),
    (1, 2, 61), (2, 30, 61),
)  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """What the setters did, by architecture and ids; and what the conversions wrote."""

    setters: dict[str, dict[str, Any]]
    written: dict[tuple[str, Ids], Written]
    classes: dict[str, list[str]]

    def states(self, architecture: str, ids: Ids | None) -> tuple[int, ...] | None:
        """The states that a forward pass then captures, ascending; None where setting the ids raises."""
        found = self.setters[f"{architecture} {ids}"]
        if found["error"] is not None:
            assert found["error"].startswith("IndexError"), f"{architecture} {ids}: {found['stage']}: {found['error']}"
            return None
        within = LAYERS if found["final"] else LAYERS - 1
        return tuple(sorted({state for state in found["states"] if 0 <= state <= within}))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    space = tmp_path_factory.mktemp("setters")
    written = {
        (name, states): written_ids(space, states, family.model_types[0], name, LAYERS)
        for name, family in FAMILIES.items()
        for states in LISTS
    }
    wanted: dict[tuple[str, Ids | None], None] = {(name, None): None for name in FAMILIES}
    for (name, _), found in written.items():
        wanted |= dict.fromkeys((name, ids) for ids in (found.candidates if found.errors else (found.ids,)))
    setters = [
        {"name": f"{name} {ids}", "architecture": name, "layers": LAYERS, "ids": None if ids is None else list(ids)}
        for name, ids in wanted
    ]
    job = {"setters": setters, "classes": True}
    results = run_host(f"sglang-{SGLANG}", "sglang_verifiers.py", job, space / "results.json")
    assert results["release"] == SGLANG
    return Engine(results["setters"], written, results["classes"])


def test_every_family_is_proven(engine: Engine) -> None:
    lost = {name for name in FAMILIES if engine.setters[f"{name} None"]["stage"] == "import"}
    assert not lost, {name: engine.setters[f"{name} None"]["error"] for name in lost}


def test_a_family_whose_states_are_others_is_refused(engine: Engine) -> None:
    assert {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"} == BROKEN
    assert {engine.written[name, states].errors for name in BROKEN for states in LISTS} == {("E305",)}


def test_no_verifier_class_of_sglang_is_left_out(engine: Engine) -> None:
    assert engine.classes["unread"] == []
    assert set(engine.classes["there"]) == set(FAMILIES) | NO_VERIFIERS


@pytest.mark.parametrize("architecture", PROVEN)
def test_the_written_ids_mean_the_trained_states(engine: Engine, architecture: str) -> None:
    served = [states for states in LISTS if not engine.written[architecture, states].errors]
    assert len(served) >= 6
    for states in served:
        ids = engine.written[architecture, states].ids
        assert engine.states(architecture, ids) == states, f"{architecture}: {states} written as {ids}"


@pytest.mark.parametrize("architecture", PROVEN)
def test_a_refused_list_can_be_had_with_no_ids(engine: Engine, architecture: str) -> None:
    for states in LISTS:
        written = engine.written[architecture, states]
        if written.errors:
            assert written.errors == ("E305",)
            for ids in written.candidates:
                assert engine.states(architecture, ids) != states, f"{architecture}: {states} can be had with {ids}"


@pytest.mark.parametrize("architecture", sorted(FAMILIES))
def test_the_default_list_is_the_one_of_the_family(engine: Engine, architecture: str) -> None:
    default = default_states(RULES[architecture].default, LAYERS)
    assert engine.states(architecture, None) == default
    assert engine.setters[f"{architecture} None"]["states"] == list(default)


@pytest.mark.parametrize("architecture", PROVEN)
def test_the_forward_pass_asks_for_the_final_state_where_the_table_says_so(engine: Engine, architecture: str) -> None:
    """Found in the source of the class that runs the layers; three of them are run in `test_sglang_captures.py`."""
    assert engine.setters[f"{architecture} None"]["final"] == RULES[architecture].final
    assert (not engine.written[architecture, (24, 30, 61)].errors) == RULES[architecture].final


def test_one_list_of_ids_is_two_drafters(engine: Engine) -> None:
    """Ids [2, 30, 58] of a verifier with 61 layers: what the trainer meant, and what kimi_k25 is fed with.

    A drafter of the embedding output and the outputs of layers 2 and 30, states [0, 3, 31], is written for kimi_k25 as
    these states themselves (deepseek_v2.py:3470 of SGLang 0.5.23), and for llama each less one.
    """
    llama, kimi = "LlamaForCausalLM", "KimiK25ForConditionalGeneration"
    assert engine.written[llama, (3, 31, 59)].ids == (2, 30, 58)
    assert engine.states(llama, (2, 30, 58)) == (3, 31, 59)
    assert engine.written[kimi, (3, 31, 59)].ids == (3, 31, 59)
    assert engine.states(kimi, (3, 31, 59)) == (3, 31, 59)
    assert engine.written[kimi, (0, 3, 31)].ids == (0, 3, 31)
    assert engine.states(kimi, (0, 3, 31)) == (0, 3, 31)
    assert engine.written[llama, (0, 3, 31)].ids == (-1, 2, 30)
    assert engine.states(llama, (-1, 2, 30)) == (0, 3, 31)


def test_first_id_one_decides_for_deepseek(engine: Engine) -> None:
    deepseek = "DeepseekV3ForCausalLM"
    assert engine.written[deepseek, (2, 31, 59)].ids == (1, 30, 58)
    assert engine.states(deepseek, (1, 30, 58)) == (2, 31, 59)
    assert engine.written[deepseek, (1, 30, 58)].errors == ("E305",)
