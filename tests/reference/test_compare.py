"""Conversions proven by numbers, and the conversions that numbers refute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor  # noqa: E402

from eagle3convert.checkpoint.source import open_checkpoint  # noqa: E402
from eagle3convert.conversion import convert, plan  # noqa: E402
from eagle3convert.drafter import Drafter  # noqa: E402
from eagle3convert.errors import CheckpointError  # noqa: E402
from eagle3convert.formats import format_names, load_format  # noqa: E402
from eagle3convert.reading import Reading, Statements  # noqa: E402
from eagle3convert.reference.as_served import as_read, as_served, reading_of  # noqa: E402
from eagle3convert.reference.compare import compare_plan, numeric_comparison, verify_numeric  # noqa: E402
from eagle3convert.reference.interpretation import as_trained  # noqa: E402
from eagle3convert.verifier import VerifierFacts  # noqa: E402

from .planted import DEMO, FIXTURES, plant  # noqa: E402

STATED: dict[str, Any] = {"assume": {"verifier.model_type": "llama", "verifier.num_hidden_layers": 8}}
FACTS = VerifierFacts(model_types=("llama",), num_hidden_layers=8)
DRAFTERS = sorted(p.parent for p in FIXTURES.glob("*/oracle.safetensors"))


@pytest.mark.parametrize("destination", format_names())
@pytest.mark.parametrize("folder", [*DRAFTERS, DEMO], ids=lambda p: p.name)
def test_every_conversion_that_is_allowed_computes_the_same(folder: Path, destination: str, tmp_path: Path) -> None:
    planned = plan(folder, "speculators", destination, **STATED)
    if planned.errors:
        return  # what the numbers of a refused conversion would be, the tests below say
    out = tmp_path / "out"
    result = convert(folder, out, "speculators", destination, durable=False, **STATED)
    report = compare_plan(result.plan, out)
    assert report
    assert report.equal
    assert report.differences == (0.0, 0.0, 0.0)
    assert report.agreement == (1.0, 1.0, 1.0)
    assert report.lines()[-1] == "numeric: bit-equal"
    again = verify_numeric(folder, out)
    assert again.as_json() == report.as_json()


@pytest.mark.parametrize("name", ["llama1", "llama1_unsorted", "llama2", "llama1_fcnorm"])
def test_there_and_back_computes_the_same(name: str, tmp_path: Path) -> None:
    convert(FIXTURES / name, tmp_path / "there", "speculators", "sglang", durable=False, **STATED)
    convert(tmp_path / "there", tmp_path / "back", "sglang", "speculators", durable=False)
    assert verify_numeric(tmp_path / "there", tmp_path / "back").differences == (0.0, 0.0, 0.0)


def test_blocks_of_fc_that_were_moved_compute_the_same(tmp_path: Path) -> None:
    """fc trained in the listed order: the columns move with their states."""
    stated: dict[str, Any] = {"assume": {**STATED["assume"], "fc_order": "as_listed"}}
    result = convert(FIXTURES / "llama1_unsorted", tmp_path / "out", "speculators", "vllm", durable=False, **stated)
    assert result.plan.drafter.permutation
    assert compare_plan(result.plan, tmp_path / "out").equal


def test_a_cast_is_told_from_an_error(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = convert(FIXTURES / "llama1", out, "speculators", "vllm", durable=False, dtype="bfloat16", **STATED)
    report = compare_plan(result.plan, out)
    assert report.equal
    assert report.cast is not None
    assert 1e-4 < report.cast < 1
    assert any("the cast by itself" in line for line in report.lines())
    assert verify_numeric(FIXTURES / "llama1", out).equal


# --- what numbers refute ----------------------------------------------------------------------------------------------


def forced(folder: Path, schema: str) -> Any:
    """The source as trained against the same drafter forced through a format's reader."""
    with open_checkpoint(folder) as checkpoint:
        drafter = Drafter(Reading(checkpoint, load_format("speculators"), Statements(verifier=FACTS)))
        return numeric_comparison(as_trained(drafter), as_served(drafter, load_format(schema)))


@pytest.mark.parametrize(
    ("name", "ignored"),
    [
        ("llama1_nbr", "norm_before_residual true"),
        ("llama2_nbr", "norm_before_residual true"),
        ("llama1_cli_default", "norm_before_residual true"),
        ("llama1_attnbias", "attention_bias true"),
        ("qwen3_1", "qk_norm true"),
    ],
)
def test_sglang_would_serve_another_drafter(name: str, ignored: str) -> None:
    report = forced(FIXTURES / name, "sglang")
    assert not report
    assert min(report.differences) > 0.1
    assert min(report.agreement) < 0.9
    assert any(line.startswith(ignored) for line in report.ignored)
    assert report.lines()[-1].startswith("numeric: NOT EQUAL")
    assert forced(FIXTURES / name, "vllm").differences == (0.0, 0.0, 0.0)


def test_sglang_would_leave_out_the_window_of_the_trainer_formats() -> None:
    assert forced(FIXTURES / "llama1_swa4", "specforge").differences[0] > 0.1
    assert forced(FIXTURES / "llama1_swa4", "sglang").equal  # with the flag that the plan prints


def damaged(tmp_path: Path, config: dict[str, Any] | None = None, tensors: Any = None, to: str = "sglang") -> Path:
    """An SGLang drafter with something changed after it was written."""
    out = tmp_path / "out"
    convert(FIXTURES / "llama1_4aux_inner", out, "speculators", to, durable=False, **STATED)
    stored = load_file(out / "model.safetensors")
    if tensors is not None:
        tensors(stored)
        save_file(stored, out / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((out / "config.json").read_text(encoding="utf-8"))
    written |= config or {}
    (out / "config.json").write_text(json.dumps(written), encoding="utf-8")
    return out


def test_wrong_aux_layers_are_seen(tmp_path: Path) -> None:
    ids = {"eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0, 2, 4, 6]}}
    report = verify_numeric(FIXTURES / "llama1_4aux_inner", damaged(tmp_path, ids))
    assert not report.equal
    assert report.differences[0] > 0.1


def test_a_wrong_vocab_map_is_seen(tmp_path: Path) -> None:
    def absolute(stored: dict[str, Tensor]) -> None:
        stored["d2t"] += torch.arange(len(stored["d2t"]))

    report = verify_numeric(FIXTURES / "llama1_4aux_inner", damaged(tmp_path, tensors=absolute))
    assert report.differences == (0.0, 0.0, 0.0)  # the logits are right, the tokens are not
    assert max(report.agreement) < 0.2
    assert not report.equal


def test_lost_and_unknown_tensors_are_seen(tmp_path: Path) -> None:
    def renamed(stored: dict[str, Tensor]) -> None:
        stored["decoder.self_attn.q_proj.weight"] = stored.pop("midlayer.self_attn.q_proj.weight")

    report = verify_numeric(FIXTURES / "llama1_4aux_inner", damaged(tmp_path, tensors=renamed))
    assert not report.equal
    assert any("layers.0.self_attn.q_proj.weight is wanted and not there" in note for note in report.notes)


def test_an_engine_that_does_not_start_is_said_so(tmp_path: Path) -> None:
    report = verify_numeric(FIXTURES / "llama1_4aux_inner", damaged(tmp_path, {"target_hidden_size": None}))
    assert not report.equal
    assert report.stops.startswith("SGLang does not start: target_hidden_size is null")
    assert report.differences == (0.0, 0.0, 0.0)

    def bogus(stored: dict[str, Tensor]) -> None:
        stored["verifier_norm.weight"] = torch.ones(32)

    (tmp_path / "again").mkdir()
    out = damaged(tmp_path / "again", tensors=bogus, to="vllm")
    assert "no parameter for verifier_norm.weight" in verify_numeric(FIXTURES / "llama1_4aux_inner", out).stops


def test_an_old_release_does_not_load_the_new_names(tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(FIXTURES / "llama1", out, "speculators", "vllm", durable=False, **STATED)
    with open_checkpoint(out) as checkpoint:
        schema = load_format("sglang")
        new = as_read(reading_of(checkpoint, schema, FACTS))
        old = as_read(reading_of(checkpoint, schema, FACTS, "0.5.9"), "0.5.9")
        assert not new.interpretation.missing
        assert "layers.0.self_attn.q_proj.weight" in old.interpretation.missing


def test_a_single_aux_layer_goes_past_fc_where_the_format_has_none(tmp_path: Path) -> None:
    def single(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = [5]
        tensors["fc.weight"] = tensors["fc.weight"][:, :32].contiguous()

    folder = plant(tmp_path / "single", single, source=FIXTURES / "llama1")
    assert forced(folder, "vllm").equal
    report = forced(folder, "sglang")
    assert not report.equal
    assert any(line.startswith("fc:") for line in report.ignored)


def test_what_an_engine_cannot_capture_is_said() -> None:
    with open_checkpoint(FIXTURES / "llama1_4aux") as checkpoint:
        drafter = Drafter(Reading(checkpoint, load_format("speculators"), Statements(verifier=FACTS)))
        assert "cannot capture" in as_served(drafter, load_format("sglang")).stops
        assert not as_served(drafter, load_format("vllm")).stops


def test_without_a_receipt_nothing_is_compared(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no receipt"):
        verify_numeric(FIXTURES / "llama1", FIXTURES / "llama1")


def test_default_layers_of_an_unknown_verifier_are_said_not_to_be_compared(tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(FIXTURES / "llama1_noids", out, "speculators", "vllm", durable=False)
    report = verify_numeric(FIXTURES / "llama1_noids", out)
    assert report.equal
    assert any("numbers are not compared" in note for note in report.notes)


def test_drafters_without_embedding_or_head_borrow_the_same(tmp_path: Path) -> None:
    def bare(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        del tensors["embed_tokens.weight"]

    folder = plant(tmp_path / "bare", bare, source=FIXTURES / "llama1")
    convert(folder, tmp_path / "out", "speculators", "vllm", durable=False, **STATED)
    assert verify_numeric(folder, tmp_path / "out").equal
