"""inspect says what a drafter is and how each fact is known, also of a drafter that cannot be converted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import eagle3convert
from eagle3convert.canonical import FEATURES

from .conftest import Command
from .drafters import BY_FREQUENCY, list_tensor, make_drafter, write_verifier

FIXTURES = Path(__file__).parent / "fixtures" / "speculators"


@pytest.mark.parametrize("folder", sorted(FIXTURES.iterdir()), ids=lambda f: f.name)
def test_a_drafter_of_the_library_is_described(folder: Path) -> None:
    inspection = eagle3convert.inspect(folder)
    told, block = inspection.as_json(), json.loads((folder / "config.json").read_text())["transformer_layer_config"]
    assert told["format"] == "speculators"
    for name in ("hidden_size", "intermediate_size", "num_attention_heads", "head_dim", "vocab_size"):
        assert told["sizes"][name]["value"] == block[name]
    assert told["decoder"] == ("qwen3" if "qwen3" in folder.name else "llama")
    assert set(told["features"]) == set(FEATURES)
    assert told["features"]["norm_before_residual"]["origin"] == "stated"
    text = "\n".join(inspection.lines())
    assert str(folder) in text
    assert "norm_before_residual" in text
    json.dumps(told)


def test_aux_layers_are_given_in_both_numberings(tmp_path: Path, command: Command) -> None:
    drafter = make_drafter("sglang", aux=(2, 8, 13)).write(tmp_path / "drafter")
    told = json.loads(command("inspect", drafter, "--json").stdout)
    aux = told["aux_layers"]
    assert (aux["stated"], aux["hidden_states"], aux["layer_output"]) == ([1, 7, 12], [2, 8, 13], [1, 7, 12])
    text = command("inspect", drafter).stdout
    assert "[2, 8, 13]" in text
    assert "[1, 7, 12]" in text


def test_ids_that_depend_on_the_verifier_are_not_known_without_it(tmp_path: Path, command: Command) -> None:
    drafter = make_drafter("sglang", aux=(4, 9, 14)).write(tmp_path / "drafter")
    unknown = json.loads(command("inspect", drafter, "--json").stdout)["aux_layers"]
    assert unknown["hidden_states"] is None
    assert unknown["origin"] == "unknown"
    kimi = write_verifier(tmp_path / "kimi", model_type="kimi_k2", architectures=["DeepseekV3ForCausalLM"])
    known = json.loads(command("inspect", drafter, "--json", "--verifier-config", kimi / "config.json").stdout)
    assert known["aux_layers"]["hidden_states"] == [3, 8, 13]


@pytest.mark.parametrize(
    ("knobs", "changes", "wanted"),
    [
        ({}, {}, {"encoding": "offset", "decided_by": "t2d", "first_targets": [0, 1, 3, 4, 7, 11, 18, 23]}),
        ({"t2d": False}, {}, {"encoding": "offset", "decided_by": "range", "t2d": False}),
        ({"targets": BY_FREQUENCY}, {}, {"encoding": "offset", "first_targets": [7, 3, 31, 0, 18, 1, 39, 4]}),
        ({}, {"d2t": [0, 1, 3, 4, 7, 11, 18, 23, 31, 39]}, {"encoding": "absolute", "decided_by": "t2d"}),
        ({}, {"d2t": [5] * 10}, {"encoding": None, "d2t": True}),
        ({"targets": None}, {}, {"encoding": None, "d2t": False, "draft_vocab_size": 40}),
        ({"t2d": False}, {"d2t": list(range(1, 20, 2))}, {"encoding": "offset", "decided_by": "format"}),
    ],
)
def test_the_vocab_map_is_read_and_judged(
    knobs: dict[str, Any], changes: dict[str, list[int]], wanted: dict[str, Any], tmp_path: Path
) -> None:
    drafter = make_drafter("speculators", **knobs)
    drafter = drafter.with_tensors({name: list_tensor(values) for name, values in changes.items()})
    told = eagle3convert.inspect(drafter.write(tmp_path / "drafter")).as_json()["vocab_map"]
    assert {name: told[name] for name in wanted} == wanted


def test_an_unknown_fact_stays_unknown(tmp_path: Path, command: Command) -> None:
    drafter = make_drafter("speculators", norm_before_residual=None).write(tmp_path / "drafter")
    told = json.loads(command("inspect", drafter, "--json").stdout)
    assert told["features"]["norm_before_residual"] == {
        "value": None, "origin": "unknown", "where": "norm_before_residual",
    }  # fmt: skip
    assert "norm_before_residual unknown" in command("inspect", drafter).stdout


def test_how_each_fact_is_known_is_said(tmp_path: Path) -> None:
    drafter = make_drafter("sglang", fc_norm=True).with_config({"num_hidden_layers": 16}, ["head_dim"])
    verifier = write_verifier(tmp_path / "verifier")
    folder = drafter.write(tmp_path / "drafter")
    told = eagle3convert.inspect(folder, verifier_config=verifier / "config.json").as_json()
    assert told["sizes"]["hidden_size"] == {"value": 12, "origin": "stated", "where": "hidden_size"}
    assert told["sizes"]["head_dim"]["origin"] == "tensors"
    layers = told["sizes"]["num_hidden_layers"]
    assert (layers["value"], layers["origin"]) == (1, "disputed")
    assert told["features"]["fc_norm"]["origin"] == "stated"
    assert told["features"]["qk_norm"] == {"value": False, "origin": "tensors", "where": ""}
    assert told["features"]["norm_before_residual"]["origin"] in ("format", "default")
    assert told["verifier"]["model_types"] == ["llama"]


def test_a_drafter_that_is_refused_everywhere_is_described_all_the_same(tmp_path: Path, command: Command) -> None:
    done = command("inspect", FIXTURES / "peagle_llama1")
    assert done.returncode == 0
    assert "mask_hidden" in done.stdout
    told = json.loads(command("inspect", FIXTURES / "peagle_llama1", "--json").stdout)
    assert told["unexpected"] == ["mask_hidden"]
    assert any(f["severity"] == "error" for f in told["findings"])
    eagle_1 = make_drafter("sglang").with_tensors({}, ["fc.weight", "d2t", "lm_head.weight"])
    assert command("inspect", eagle_1.write(tmp_path / "eagle1")).returncode == 0


def test_another_format_can_be_asked_for(tmp_path: Path, command: Command) -> None:
    drafter = make_drafter("sglang", norm_output=True).write(tmp_path / "drafter")
    told = json.loads(command("inspect", drafter, "--format", "specforge", "--json").stdout)
    assert told["format"] == "specforge"
    assert told["features"]["norm_output"]["origin"] == "disputed"
    assert command("inspect", drafter, "--format", "gguf").returncode == 2


@pytest.mark.parametrize("container", ["single", "sharded", "bin"])
def test_the_container_and_its_files_are_named(container: str, tmp_path: Path) -> None:
    if container == "bin":
        pytest.importorskip("torch")
    told = eagle3convert.inspect(make_drafter("safeailab").write(tmp_path / "drafter", container)).as_json()
    kinds = {"single": "safetensors", "sharded": "sharded safetensors", "bin": "torch zip"}
    assert told["container"] == kinds[container]
    assert all((tmp_path / "drafter" / file["name"]).stat().st_size == file["bytes"] for file in told["files"])
    assert told["parameters"] > 2000
    assert told["dtype"] == "bfloat16"
    assert len(told["tensors"]) == 16
