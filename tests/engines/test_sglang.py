"""SGLang's own draft class says of every drafter that is converted for it: nothing lost, and the trained numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

import eagle3convert
from eagle3convert.planning import Plan

from .converted import NAMES, ROWS, TOLERANCE, Job, Ran, convert_allowed, run_drafters, verifier_config
from .engines import SGLANG
from .made_drafters import MADE
from .matrix import record

pytestmark = pytest.mark.engine
REFUSED = {
    "llama1_nbr", "llama2_nbr", "llama1_cli_default", "llama1_attnbias", "llama1_mlpbias", "llama1_1aux",
    "llama2_mixed", "qwen3_1", "qwen3_2", "qwen3_fullvocab", "llama1_4aux",
}  # fmt: skip
SERVED = sorted(set(NAMES) - REFUSED)
UNUSED = {"llama2": {"model.layers.1.input_layernorm.weight"}}
"""Parameters that SGLang builds and does not run (srt/models/llama_eagle3.py:103-105 of 0.5.23)."""

Served = tuple[dict[str, Ran], dict[str, Plan]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    place = tmp_path_factory.mktemp("sglang")
    jobs, plans, refused = convert_allowed(place, "sglang")
    assert set(refused) == REFUSED
    return run_drafters(place, jobs), plans


@pytest.mark.parametrize("name", SERVED)
def test_no_tensor_is_dropped_and_no_parameter_left_unfilled(name: str, served: Served) -> None:
    ran = served[0][name]
    assert ran.found["error"] is None
    assert ran.found["class"] == "LlamaForCausalLMEagle3"
    assert ran.lost == set()
    assert set(ran.found["unfilled"]) == UNUSED.get(name, set())


@pytest.mark.parametrize("name", SERVED)
def test_draft_ids_become_the_trained_target_ids(name: str, served: Served) -> None:
    targets = served[1][name].drafter.targets
    hot = served[0][name].found["hot_token_id"]
    assert hot == (list(targets) if targets is not None and "fullvocab" not in name else None)


@pytest.mark.parametrize("name", SERVED)
def test_the_logits_are_those_of_the_speculators_library(name: str, served: Served) -> None:
    ran = served[0][name]
    assert ran.found["fc_ran"] == [1, 0, 0]
    assert ran.distance <= TOLERANCE
    for row in ROWS.get(name, ()):
        record(row, "sglang", SGLANG, "served", "logits")


@pytest.mark.parametrize("feature", ["permuted_vocabulary", "narrow"])
def test_a_drafter_that_the_library_does_not_make_is_served_as_well(feature: str, tmp_path: Path) -> None:
    made = MADE[feature](tmp_path)
    done = eagle3convert.convert(
        made.folder, tmp_path / "out", made.source_format, "sglang", verifier_config=verifier_config(tmp_path)
    )
    ran = run_drafters(tmp_path, {feature: Job(done.path, made.states)})[feature]
    assert ran.lost == set()
    assert ran.found["unfilled"] == []
    assert ran.found["hot_token_id"] == list(done.plan.drafter.targets or ())
    assert ran.distance <= TOLERANCE
    record(feature, "sglang", SGLANG, "served", "logits")


def test_an_absolute_d2t_gives_other_target_ids(served: Served, tmp_path: Path) -> None:
    """What the conversion prevents: SGLang adds the index to whatever d2t holds, and says nothing."""
    from tests.drafters import list_tensor, read_tensors, write_safetensors

    name = "llama1"
    ran, plan = served[0][name], served[1][name]
    folder = tmp_path / "absolute"
    folder.mkdir()
    source = ran.logits.parent / name
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    targets = list(plan.drafter.targets or ())
    write_safetensors(folder / "model.safetensors", read_tensors(source) | {"d2t": list_tensor(targets)})
    found = run_drafters(tmp_path, {"absolute": Job(folder, ran.states)})["absolute"].found
    assert found["error"] is None
    assert found["hot_token_id"] == [target + i for i, target in enumerate(targets)]
