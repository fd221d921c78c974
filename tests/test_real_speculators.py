"""Drafters that the real speculators library wrote: converted, verified, and brought back as they were.

`fixtures/README.md` describes them; `engines/test_speculators.py` has the library compute the logits of what came back.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import eagle3convert
from eagle3convert import Refused

from .drafters import read_config, read_receipt, read_tensors, write_verifier

FIXTURES = Path(__file__).parent / "fixtures" / "speculators"
FINAL_STATE = frozenset({"aux layers"})
RESIDUAL = frozenset({"norm_before_residual"})
QWEN3 = frozenset({"qk_norm"})


class Outcome(NamedTuple):
    """What a fixture becomes: the features for which a destination refuses it (empty: it converts), the lowest SGLang
    release that serves it, and what its config says there."""

    sglang: frozenset[str] = frozenset()
    lowest: str = "0.5.5"  # 40 draft tokens are no multiple of 64
    ids: tuple[int, ...] = (1, 3, 4)
    says: tuple[tuple[str, Any], ...] = ()


FROM_0_5_12, FROM_0_5_17 = "0.5.12", "0.5.17"
OUTCOMES = {
    "llama1": Outcome(),
    "llama1_bf16": Outcome(says=(("torch_dtype", "bfloat16"),)),
    "llama1_sharded": Outcome(),
    "llama1_headdim": Outcome(says=(("head_dim", 16),)),
    "llama1_fullvocab": Outcome(lowest="0.4.9", says=(("draft_vocab_size", 96),)),
    "llama1_unsorted": Outcome(),
    "llama1_noids": Outcome(),
    "llama1_fcnorm": Outcome(lowest=FROM_0_5_12, says=(("fc_norm", True),)),
    "llama1_normfc": Outcome(lowest=FROM_0_5_17),
    "llama1_normout": Outcome(lowest=FROM_0_5_12, says=(("norm_output", True),)),
    "llama1_swa4": Outcome(lowest=FROM_0_5_12),
    "llama2": Outcome(lowest=FROM_0_5_12, says=(("num_hidden_layers", 2),)),
    "llama1_4aux_inner": Outcome(lowest=FROM_0_5_12, ids=(0, 2, 4, 5), says=(("num_aux_hidden_states", 4),)),
    "llama1_4aux": Outcome(FINAL_STATE),
    "llama1_1aux": Outcome(frozenset({"single_aux_layer"})),
    "llama1_mlpbias": Outcome(frozenset({"mlp_bias"})),
    "llama2_mixed": Outcome(frozenset({"mixed_attention"})),
    "llama1_nbr": Outcome(RESIDUAL),
    "llama2_nbr": Outcome(RESIDUAL),
    "llama1_cli_default": Outcome(RESIDUAL),
    "llama1_attnbias": Outcome(frozenset({"attention_bias"})),
    "qwen3_1": Outcome(QWEN3),
    "qwen3_2": Outcome(QWEN3),
    "qwen3_fullvocab": Outcome(QWEN3),
}
SERVED = sorted(name for name, outcome in OUTCOMES.items() if not outcome.sglang)
PLUGIN = sorted(name for name, outcome in OUTCOMES.items() if outcome.sglang != FINAL_STATE)
WAYS = [
    *((name, "vllm") for name in sorted(OUTCOMES)),
    *((name, "sglang") for name in SERVED),
    *((name, "sglang-plugin") for name in PLUGIN),
]


@pytest.fixture(scope="session")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The verifier of the fixtures, as far as a config tells it."""
    folder = tmp_path_factory.mktemp("verifier")
    return write_verifier(folder, num_hidden_layers=8, hidden_size=32, vocab_size=96, max_position_embeddings=512)


def without_receipt(folder: Path, copy: Path) -> Path:
    shutil.copytree(folder, copy)
    (copy / "eagle3convert.json").unlink()
    return copy


def test_the_table_names_every_fixture() -> None:
    assert sorted([*OUTCOMES, "peagle_llama1"]) == sorted(folder.name for folder in FIXTURES.iterdir())


@pytest.mark.parametrize("name", sorted([*OUTCOMES, "peagle_llama1"]))
def test_a_drafter_of_the_library_is_known_for_one(name: str) -> None:
    told = eagle3convert.inspect(FIXTURES / name).as_json()
    assert told["format"] == "speculators"
    assert next(c["format"] for c in told["candidates"] if c["ruled_out_by"] is None) == "speculators"


@pytest.mark.parametrize(("name", "destination"), WAYS)
def test_a_speculators_drafter_comes_back_bit_for_bit(
    name: str, destination: str, tmp_path: Path, verifier: Path
) -> None:
    source, there, back = FIXTURES / name, tmp_path / "there", tmp_path / "back"
    result = eagle3convert.convert(source, there, "auto", destination, verifier_config=verifier)
    assert result.verification.passed
    assert eagle3convert.verify(source, there).passed
    eagle3convert.convert(there, back, "auto", "speculators")
    assert read_tensors(back) == read_tensors(source)
    assert read_config(back) == read_config(source)
    assert eagle3convert.verify(there, back).passed


@pytest.mark.parametrize(("name", "destination"), WAYS)
def test_a_speculators_drafter_comes_back_as_the_same_drafter_without_its_receipt(
    name: str, destination: str, tmp_path: Path, verifier: Path
) -> None:
    source, there, back = FIXTURES / name, tmp_path / "there", tmp_path / "back"
    eagle3convert.convert(source, there, "speculators", destination, verifier_config=verifier)
    bare = without_receipt(there, tmp_path / "bare")
    eagle3convert.convert(bare, back, destination, "speculators", verifier="example-org/tiny", verifier_config=verifier)
    assert eagle3convert.diff(source, back) == []
    assert read_tensors(back) == read_tensors(source)
    config = read_config(back)
    assert config["norm_before_residual"] is read_config(source)["norm_before_residual"]
    assert config["speculators_model_type"] == "eagle3"


@pytest.mark.parametrize("name", SERVED)
def test_sglang_is_told_all_that_the_drafter_was_trained_with(name: str, tmp_path: Path, verifier: Path) -> None:
    source, out, outcome = FIXTURES / name, tmp_path / "out", OUTCOMES[name]
    result = eagle3convert.convert(source, out, "speculators", "sglang", verifier_config=verifier)
    config, original = read_config(out), read_config(source)
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == list(outcome.ids)
    assert config["rope_theta"] == original["transformer_layer_config"]["rope_parameters"]["rope_theta"]
    assert config["norm_before_residual"] is False
    for field in ("norm_output", "fc_norm"):
        assert config[field] is original[field]
    assert config["eagle_config"]["norm_before_fc"] is original["norm_before_fc"]
    assert {field: config[field] for field, _ in outcome.says} == dict(outcome.says)
    assert read_receipt(out)["destination"]["lowest_release"] == outcome.lowest
    names = set(read_tensors(out))
    assert not any(n.startswith("layers.0.") for n in names)
    assert ("layers.1.hidden_norm.weight" in names) == (name == "llama2")
    assert "layers.1.input_layernorm.weight" not in names
    command = result.plan.launch_command(str(out))
    assert ("--speculative-draft-window-size 3" in command) == (name == "llama1_swa4")


@pytest.mark.parametrize("name", sorted(name for name, outcome in OUTCOMES.items() if outcome.sglang))
def test_sglang_is_refused_a_drafter_that_it_would_run_otherwise(name: str, tmp_path: Path, verifier: Path) -> None:
    with pytest.raises(Refused) as refusal:
        eagle3convert.convert(FIXTURES / name, tmp_path / "out", "speculators", "sglang", verifier_config=verifier)
    reasons = refusal.value.reasons
    named = {getattr(r, "data", {}).get("feature", "aux layers") for r in reasons}
    assert named == OUTCOMES[name].sglang, "refused for exactly these reasons"
    others = "vllm" if OUTCOMES[name].sglang == FINAL_STATE else "sglang-plugin and vllm"
    assert f"\n  {others} can serve this drafter as it was trained." in str(refusal.value)
    assert ("install it beside SGLang" in str(refusal.value)) == (others != "vllm")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(OUTCOMES))
def test_vllm_is_told_all_that_the_drafter_was_trained_with(name: str, tmp_path: Path, verifier: Path) -> None:
    source, out = FIXTURES / name, tmp_path / "out"
    eagle3convert.convert(source, out, "speculators", "vllm", verifier_config=verifier)
    config, original = read_config(out), read_config(source)
    block = original["transformer_layer_config"]
    kind = {"llama": "Eagle3LlamaForCausalLM", "qwen3": "Eagle3Qwen3ForCausalLM"}[block["model_type"]]
    assert (config["architectures"], config["model_type"]) == ([kind], block["model_type"])
    for field in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        assert config[field] is original[field]
    ids = sorted(original["eagle_aux_hidden_state_layer_ids"] or [2, 4, 5])
    assert config["eagle_aux_hidden_state_layer_ids"] == ids
    assert config["num_aux_hidden_states"] == len(ids)
    slides = block["use_sliding_window"]
    assert config.get("sliding_window") == (block["sliding_window"] if slides else None)
    tensors = read_tensors(source)
    if "fullvocab" in name:
        assert "d2t" not in read_tensors(out)
    assert {n: t for n, t in read_tensors(out).items() if n != "t2d"} == {
        n: t for n, t in tensors.items() if n != "t2d"
    }


@pytest.mark.parametrize("destination", ["sglang", "sglang-plugin", "vllm", "specforge", "safeailab", "modelopt"])
def test_a_p_eagle_drafter_is_refused_by_name(destination: str, tmp_path: Path, verifier: Path) -> None:
    with pytest.raises(Refused, match="P-EAGLE") as refusal:
        eagle3convert.convert(
            FIXTURES / "peagle_llama1", tmp_path / "out", "auto", destination, verifier_config=verifier
        )
    assert "mask_hidden" in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_an_epoch_folder_of_the_trainer_is_converted_without_its_optimizer(tmp_path: Path) -> None:
    source = FIXTURES / "llama1_bf16"
    assert (source / "optimizer_state_dict.pt").exists()
    eagle3convert.convert(source, tmp_path / "out", "auto", "vllm")
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == [
        "config.json", "eagle3convert.json", "model.safetensors",
    ]  # fmt: skip


def test_a_best_checkpoint_link_of_the_trainer_is_followed(tmp_path: Path) -> None:
    (tmp_path / "3").symlink_to(FIXTURES / "llama1_bf16")
    (tmp_path / "checkpoint_best").symlink_to("3")
    eagle3convert.convert(tmp_path / "checkpoint_best", tmp_path / "out", "auto", "sglang")
    assert len(read_tensors(tmp_path / "out")) == len(read_tensors(FIXTURES / "llama1_bf16"))
