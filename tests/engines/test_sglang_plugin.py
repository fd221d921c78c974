"""The model package for SGLang serves every drafter that speculators trains, and refuses what is not whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eagle3convert
from eagle3convert.planning import Plan

from ..drafters import Tensor, list_tensor, read_tensors, write_safetensors
from .converted import (
    APART,
    FIXTURES,
    NAMES,
    PLUGIN,
    ROWS,
    TOLERANCE,
    Job,
    Ran,
    convert_allowed,
    run_drafters,
    verifier_config,
)
from .engines import SGLANG
from .made_drafters import MADE
from .matrix import record

pytestmark = pytest.mark.engine
FINAL_STATE = "llama1_4aux"
"""Trained on the state after the last layer, which SGLang's llama verifier does not capture; gpt_oss's does."""
Served = tuple[dict[str, Ran], dict[str, Plan], Path]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    place = tmp_path_factory.mktemp("plugin")
    jobs, plans, refused = convert_allowed(place, "sglang-plugin")
    assert set(refused) == {FINAL_STATE}
    more = convert_allowed(place, "sglang-plugin", [FINAL_STATE], "gpt_oss")
    jobs, plans = jobs | more[0], plans | more[1]
    return run_drafters(place, jobs, environment=PLUGIN), plans, place


@pytest.mark.parametrize("name", NAMES)
def test_every_drafter_of_the_library_gives_the_librarys_logits(name: str, served: Served) -> None:
    ran, plan = served[0][name], served[1][name]
    assert ran.found["error"] is None
    assert ran.found["class"] == "SpeculatorsForCausalLMEagle3"
    assert ran.lost == set()
    assert ran.found["unfilled"] == []
    assert ran.found["fc_ran"] == [1, 0, 0]
    targets = plan.drafter.targets
    hot = ran.found["hot_token_id"]
    assert hot == (list(targets) if targets is not None and "fullvocab" not in name else None)
    assert ran.distance <= TOLERANCE
    for row in ROWS.get(name, ()):
        record(row, "sglang-plugin", SGLANG, "served", "logits")


@pytest.mark.parametrize("feature", ["fc_bias", "permuted_vocabulary", "narrow"])
def test_a_drafter_that_the_library_does_not_make_is_served_as_well(feature: str, tmp_path: Path) -> None:
    made = MADE[feature](tmp_path)
    done = eagle3convert.convert(
        made.folder, tmp_path / "out", made.source_format, "sglang-plugin", verifier_config=verifier_config(tmp_path)
    )
    ran = run_drafters(tmp_path, {feature: Job(done.path, made.states)}, environment=PLUGIN)[feature]
    assert ran.found["error"] is None
    assert ran.found["hot_token_id"] == list(done.plan.drafter.targets or ())
    assert ran.distance <= TOLERANCE
    record(feature, "sglang-plugin", SGLANG, "served", "logits")


def test_the_trainers_defaults_are_served_with_their_window(served: Served) -> None:
    config = json.loads((served[2] / "llama1_cli_default" / "config.json").read_text(encoding="utf-8"))
    assert (config["norm_before_residual"], config["norm_before_fc"], config["norm_output"]) == (True, True, True)
    assert served[0]["llama1_cli_default"].found["windows"] == [2047], "SGLang's size does not count the query"


def test_the_launch_command_names_the_package(served: Served) -> None:
    words = served[1]["llama1_cli_default"].launch
    assert words[:2] == ("env", "SGLANG_EXTERNAL_MODEL_PACKAGE=eagle3convert.engines.sglang")


# --- what it refuses to load ------------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any], dict[str, Tensor]], None]


def absolute(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    offsets = _values(tensors["d2t"])
    tensors["d2t"] = list_tensor([i + offset for i, offset in enumerate(offsets)])


def other_ids(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["d2t"] = list_tensor([0] * tensors["d2t"].shape[0])


def renamed(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    for name in [n for n in tensors if n.startswith("layers.0.")]:
        tensors[name.replace("layers.0.", "midlayer.")] = tensors.pop(name)


def without(*names: str) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        for name in names:
            del tensors[name]

    return change


def also(name: str, like: str) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensors[like]

    return change


def says(field: str, value: Any) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config[field] = value
        if value is None:
            del config[field]

    return change


def _values(tensor: Tensor) -> list[int]:
    return [int.from_bytes(tensor.data[at : at + 8], "little", signed=True) for at in range(0, len(tensor.data), 8)]


K_PROJ = "layers.0.self_attn.k_proj.weight"
FAULTS: dict[str, tuple[str, Change, str]] = {
    "d2t_absolute": ("llama1", absolute, "d2t"),
    "d2t_of_zeros": ("llama1", other_ids, "d2t and t2d select different target ids"),
    "d2t_missing": ("llama1", without("d2t"), "d2t is missing"),
    "keys_of_sglang": ("llama1", renamed, "midlayer.self_attn.k_proj.weight"),
    "unknown_key": ("llama1", also("layers.0.bogus.weight", "norm.weight"), "layers.0.bogus.weight"),
    "verifiers_norm": ("llama1", also("verifier_norm.weight", "norm.weight"), "verifier_norm.weight"),
    "norms_of_heads": ("llama1", also("layers.0.self_attn.q_norm.weight", "norm.weight"), "q_norm"),
    "no_hidden_norm": ("llama1", without("layers.0.hidden_norm.weight"), "model.layers.0.hidden_norm.weight"),
    "no_k_proj": ("llama1", without(K_PROJ), "model.layers.0.self_attn.qkv_proj.weight"),
    "no_fc": ("llama1", without("fc.weight"), "model.fc.weight"),
    "no_lm_head": ("llama1", without("lm_head.weight"), "lm_head.weight"),
    "no_second_norm": ("llama2", without("layers.1.input_layernorm.weight"), "model.layers.1.input_layernorm.weight"),
    "biases_unsaid": ("llama1_attnbias", says("attention_bias", False), "self_attn.q_proj.bias"),
    "norm_unsaid": ("llama1_normfc", says("norm_before_fc", False), "input_norm.weight"),
    "norms_said": ("llama1", says("fc_norm", True), "model.fc_norm.0.weight"),
    "order_unsaid": ("llama1", says("norm_before_residual", None), "norm_before_residual is None"),
}


@pytest.fixture(scope="module")
def refused(served: Served, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    place, jobs = tmp_path_factory.mktemp("refused"), {}
    for fault, (name, change, _) in FAULTS.items():
        folder, whole = place / fault, served[2] / name
        folder.mkdir()
        config, tensors = json.loads((whole / "config.json").read_text(encoding="utf-8")), read_tensors(whole)
        change(config, tensors)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        write_safetensors(folder / "model.safetensors", tensors)
        jobs[fault] = Job(folder, FIXTURES / name / "oracle.safetensors")
    return run_drafters(place, jobs, environment=PLUGIN)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_drafter_that_is_not_whole_is_refused_by_name(fault: str, refused: dict[str, Ran]) -> None:
    found = refused[fault].found
    assert found["stage"] in ("construction", "load_weights")
    assert found["error"].startswith("ValueError: ")
    assert FAULTS[fault][2] in found["error"]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_doctor_says_that_it_will_not_start(fault: str, served: Served, refused: dict[str, Ran]) -> None:
    folder = refused[fault].logits.parent / fault
    report = eagle3convert.diagnose(folder, "sglang-plugin", verifier_config=served[2] / "llama.json")
    assert report.outcome() == "fail to start", report.verdict()


# --- the zeros are real -----------------------------------------------------------------------------------------------

FLIPS: dict[str, tuple[str, Change]] = {
    "residual": ("llama1_nbr", says("norm_before_residual", False)),
    "output": ("llama1_normout", says("norm_output", False)),
    "window": ("llama1_swa4", says("sliding_window", 5)),
    "full": ("llama1_swa4", says("layer_types", ["full_attention"])),
    "which": ("llama2_mixed", says("layer_types", ["full_attention", "sliding_attention"])),
    "theta": ("llama1", says("rope_parameters", {"rope_type": "default", "rope_theta": 100.0})),
}


def test_every_flag_counts(served: Served, tmp_path: Path) -> None:
    jobs = {}
    for flip, (name, change) in FLIPS.items():
        shutil.copytree(served[2] / name, tmp_path / flip)
        file = tmp_path / flip / "config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        change(config, {})
        file.write_text(json.dumps(config), encoding="utf-8")
        jobs[flip] = Job(tmp_path / flip, FIXTURES / name / "oracle.safetensors")
    ran = run_drafters(tmp_path, jobs, environment=PLUGIN)
    assert {flip: one.found["error"] for flip, one in ran.items()} == dict.fromkeys(FLIPS)
    assert {flip for flip, one in ran.items() if one.distance < APART} == set()


def test_without_the_package_sglang_refuses_to_load_it(served: Served, tmp_path: Path) -> None:
    job = Job(served[2] / "llama1", FIXTURES / "llama1" / "oracle.safetensors")
    found = run_drafters(tmp_path, {"llama1": job})["llama1"].found
    assert found["error"] == "ValueError: SpeculatorsForCausalLMEagle3 is no draft class of this SGLang"
