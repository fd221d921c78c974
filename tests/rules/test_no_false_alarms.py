"""Drafters that work get neither errors nor warnings: real ones, converted ones, and configs from the wild."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3convert.conversion import convert, plan
from eagle3convert.doctor import Examination, examine
from eagle3convert.receipt import RECEIPT_FILE

from ..drafters import FORMATS, make_drafter, spell, write_verifier
from ..test_round_trips import FAMILIES, knobs
from .building import bases

FIXTURES = Path(__file__).parents[1] / "fixtures" / "speculators"
DRAFTERS = sorted(folder.name for folder in FIXTURES.iterdir() if (folder / "config.json").is_file())
EAGLE3 = [name for name in DRAFTERS if not name.startswith("peagle")]
ENGINES = ("sglang", "sglang-plugin", "vllm")
# What an engine is told on its command line, or does in some of its configurations only.
FLAGS = {"sglang": {"W409"}, "sglang-plugin": set[str](), "vllm": {"W411"}}
# What is wrong with a folder of speculators as it stands, for vLLM.
AS_THEY_STAND = {
    "llama1_4aux": {"E312"},
    "llama1_4aux_inner": {"E312"},
    "llama1_noids": {"W302"},
    "llama1_1aux": {"E312"},
    "llama2_mixed": {"W411"},
}
# Drafters that an engine cannot express, whatever they are converted to.
FINAL_STATE = {"llama1_4aux"}
NOT_FOR = {
    "sglang": FINAL_STATE | {
        "llama1_nbr", "llama2_nbr", "llama1_cli_default",  # norm_before_residual
        "llama1_attnbias", "llama1_mlpbias", "llama1_1aux", "llama2_mixed", "qwen3_1", "qwen3_2", "qwen3_fullvocab",
    },
    "sglang-plugin": FINAL_STATE,
    "vllm": set[str](),
}  # fmt: skip
PUBLISHED = json.loads((Path(__file__).parent / "wild_configs.json").read_text(encoding="utf-8"))
WILD = {entry["name"]: entry for entry in PUBLISHED["drafters"]}


def serious(found: Examination) -> set[str]:
    return {f.code for f in found.findings if f.severity != "note"}


def said(found: Examination) -> str:
    return "\n".join([found.verdict(), *map(str, found.findings)])


@pytest.fixture(scope="module")
def verifiers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The config.json of the verifiers that the fixtures were made for, by the beginning of the fixture's name."""
    place, made = tmp_path_factory.mktemp("verifiers"), {}
    for family, architecture in (("llama", "LlamaForCausalLM"), ("qwen3", "Qwen3ForCausalLM")):
        made[family] = place / f"{family}.json"
        facts = {"num_hidden_layers": 8, "hidden_size": 32, "vocab_size": 96}
        made[family].write_text(json.dumps({"architectures": [architecture], "model_type": family} | facts))
    return made


def verifier_of(name: str, verifiers: dict[str, Path]) -> Path:
    return verifiers["qwen3" if name.startswith("qwen3") else "llama"]


@pytest.mark.parametrize("name", EAGLE3)
def test_speculators_folders_as_they_stand_for_vllm(name: str, verifiers: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(FIXTURES / name, tmp_path / name)
    (folder / "oracle.safetensors").unlink()  # vLLM would read it as weights: E526
    found = examine(folder, "vllm", verifier_config=verifier_of(name, verifiers))
    assert serious(found) == AS_THEY_STAND.get(name, set()), said(found)


@pytest.mark.parametrize("name", EAGLE3)
def test_speculators_folders_without_an_engine(name: str) -> None:
    found = examine(FIXTURES / name)
    assert serious(found) == ({"W302"} if name == "llama1_noids" else set()), said(found)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", EAGLE3)
def test_converted_drafters(name: str, engine: str, verifiers: dict[str, Path], tmp_path: Path) -> None:
    verifier = verifier_of(name, verifiers)
    if name in NOT_FOR[engine]:
        assert plan(FIXTURES / name, "auto", engine, verifier_config=verifier).errors
        return
    out = tmp_path / "out"
    convert(FIXTURES / name, out, "auto", engine, verifier_config=verifier)

    with_receipt = examine(out, engine, verifier_config=verifier)
    (out / RECEIPT_FILE).unlink()
    without = examine(out, engine, verifier_config=verifier)

    assert serious(with_receipt) <= FLAGS[engine], said(with_receipt)
    assert serious(without) <= FLAGS[engine], said(without)
    assert without.outcome() == "draft as trained"
    assert serious(with_receipt) == serious(without)


@pytest.mark.parametrize("engine", ENGINES)
def test_p_eagle_is_not_judged_as_eagle_3(engine: str, verifiers: dict[str, Path]) -> None:
    found = examine(FIXTURES / "peagle_llama1", engine, verifier_config=verifiers["llama"])
    assert {"E105", "E510"} & serious(found), said(found)
    assert found.outcome() == "not examined"


@pytest.mark.parametrize("name", WILD)
def test_configs_in_the_wild(name: str, tmp_path: Path) -> None:
    entry: dict[str, Any] = WILD[name]
    config = entry["config"]
    drafter = make_drafter(entry["tensors"], **{**_knobs(config), **entry.get("knobs", {})})
    folder = drafter.with_config({}, list(drafter.config)).with_config(config).write(tmp_path / "drafter")
    verifier = tmp_path / "verifier.json"
    verifier.write_text(json.dumps(bases()["verifier"] | entry["verifier"]))

    found = examine(folder, entry["for"], verifier_config=verifier)

    assert {f.code for f in found.errors} == set(entry["errors"]), said(found)
    assert serious(found) - set(entry.get("may", ())) == {*entry["errors"], *entry["warnings"]}, said(found)


def _knobs(config: dict[str, Any]) -> dict[str, Any]:
    """What decides the tensors of a drafter with this config."""
    full = config.get("draft_vocab_size", config["vocab_size"]) == config["vocab_size"]
    named = str(config.get("torch_dtype", config.get("dtype", "bfloat16")))
    return {
        "hidden": config["hidden_size"],
        "intermediate": config["intermediate_size"],
        "heads": config["num_attention_heads"],
        "kv_heads": config["num_key_value_heads"],
        "head_dim": config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]),
        "vocab": config["vocab_size"],
        "dtype": {"bfloat16": "BF16", "float16": "F16"}[named],
    } | ({"targets": None} if full else {})


# W206: a map that makes sense under both encodings stays one, whoever writes it.
DOUBTFUL = {"W206"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("source", FORMATS)
@given(data=st.data())
@settings(max_examples=15)
def test_whatever_converts_is_clean(source: str, engine: str, data: st.DataObject) -> None:
    """Any drafter of any format that a conversion takes is one that the doctor finds nothing wrong with afterwards."""
    drafter, family = spell(data.draw(knobs(source))), data.draw(st.sampled_from(FAMILIES))
    with tempfile.TemporaryDirectory() as place:
        folder = drafter.write(Path(place) / "drafter")
        stated: dict[str, Any] = {"verifier_config": write_verifier(Path(place) / "verifier", **family) / "config.json"}
        if plan(folder, source, engine, **stated).errors:
            return
        out = Path(place) / "out"
        convert(folder, out, source, engine, durable=False, **stated)
        (out / RECEIPT_FILE).unlink()

        found = examine(out, engine, **stated)

        assert serious(found) <= FLAGS[engine] | DOUBTFUL, said(found)
