"""Which format a drafter is in: found with its evidence, never guessed where the guess would change the drafter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import eagle3convert
from eagle3convert import CheckpointError
from eagle3convert.checkpoint.source import open_checkpoint
from eagle3convert.formats import load_format
from eagle3convert.identify import candidates, choose_source, contradiction

from .conftest import Command
from .drafters import (
    BY_FREQUENCY,
    FORMATS,
    VERIFIER,
    Drafter,
    Knobs,
    Tensor,
    make_drafter,
    read_config,
    spell,
    weight,
    write_verifier,
)

VARIANTS: list[dict[str, Any]] = [
    {}, {"layers": 2}, {"aux": (3, 8, 13)}, {"aux": None}, {"targets": None}, {"targets": BY_FREQUENCY},
    {"embed": False}, {"fc_norm": True}, {"norm_before_fc": True}, {"norm_output": True}, {"dtype": "F16"},
    {"t2d": True}, {"t2d": False}, {"rope_spelling": "both"}, {"window": 64}, {"attention_bias": True},
    {"qk_norm": True},
]  # fmt: skip


def meaning(folder: Path, format: str, verifier: Path) -> Any:
    """What a format makes of a folder: sizes, behaviours, aux layers and vocab map."""
    drafter = eagle3convert.inspect(folder, format, verifier_config=verifier / "config.json").drafter
    fields = {k: v for k, v in drafter.fields.items() if not k.startswith(("neutral.", "verifier."))}
    return fields, drafter.targets, drafter.reading.aux.fc_order


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("knobs", VARIANTS, ids=str)
def test_auto_reads_a_drafter_as_its_own_format_does_or_asks(
    format: str, knobs: dict[str, Any], tmp_path: Path
) -> None:
    made = replace(Knobs(format=format), **knobs)
    folder, verifier = spell(made).write(tmp_path / "drafter"), write_verifier(tmp_path / "verifier")
    asked, chosen = format, format
    with open_checkpoint(folder) as checkpoint:
        try:
            chosen = choose_source(checkpoint).name
        except CheckpointError as error:
            asked = str(error)
    assert format in asked, "the right format is among those that it asks about"
    if chosen != format:
        assert meaning(folder, chosen, verifier) == meaning(folder, format, verifier), f"taken for {chosen}"


@pytest.mark.parametrize("format", ["speculators", "sglang", "vllm", "safeailab", "modelopt"])
def test_a_plain_drafter_of_a_format_is_known_for_one(format: str, tmp_path: Path) -> None:
    folder = make_drafter(format).write(tmp_path / "drafter")
    told = eagle3convert.inspect(folder).as_json()
    assert told["format"] == format
    chosen = next(c for c in told["candidates"] if c["format"] == format)
    assert chosen["evidence"]
    assert any("architectures" in line for line in chosen["evidence"])


def test_specforge_s_norm_output_is_not_taken_for_sglang_s(tmp_path: Path, command: Command) -> None:
    drafter = make_drafter("specforge", norm_output=True).write(tmp_path / "drafter")
    done = command("auto", "vllm", drafter, tmp_path / "out")
    assert "specforge" in done.stderr, "the two formats read the field differently: the user is told or asked"
    assert "norm_output" in done.stderr


@pytest.mark.parametrize("format", FORMATS)
def test_an_output_is_known_by_its_receipt(format: str, tmp_path: Path) -> None:
    drafter = make_drafter("speculators").write(tmp_path / "in")
    verifier = write_verifier(tmp_path / "verifier")
    eagle3convert.convert(drafter, tmp_path / "out", "speculators", format, verifier_config=verifier)
    told = eagle3convert.inspect(tmp_path / "out").as_json()
    assert (told["format"], told["receipt"]) == (format, "speculators")


def test_a_stale_receipt_decides_nothing(tmp_path: Path) -> None:
    drafter = make_drafter("speculators").write(tmp_path / "in")
    eagle3convert.convert(drafter, tmp_path / "out", "speculators", "sglang")
    make_drafter("vllm").write(tmp_path / "out")
    told = eagle3convert.inspect(tmp_path / "out").as_json()
    assert (told["format"], told["receipt"]) == ("vllm", None)


def test_every_candidate_says_what_speaks_for_and_against_it(tmp_path: Path) -> None:
    with open_checkpoint(make_drafter("modelopt").write(tmp_path / "drafter")) as checkpoint:
        found = candidates(checkpoint)
        assert next(c.schema.name for c in found) == "modelopt"
        assert {c.schema.name for c in found} == set(FORMATS)
        assert next(c for c in found if c.schema.name == "speculators").ruled_out is not None
        assert contradiction(checkpoint, load_format("sglang")) is None
        for candidate in found:
            assert json.dumps(candidate.as_json())


def a_verifier() -> Drafter:
    """A plain llama model, which is no drafter."""
    tensors: dict[str, Tensor] = {
        f"model.layers.{i}.{part}.weight": weight(i, (12, 12), "BF16")
        for i in range(2)
        for part in ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "input_layernorm")
    }
    return Drafter(dict(VERIFIER), {**tensors, "model.embed_tokens.weight": weight(9, (40, 12), "BF16")})


@pytest.mark.parametrize(
    "config",
    [{}, {"architectures": ["BertModel"]}, {"architectures": "LlamaForCausalLM"}, {"architectures": [3]}, VERIFIER],
    ids=str,
)
def test_what_is_no_drafter_is_refused(config: dict[str, Any], tmp_path: Path, command: Command) -> None:
    folder = Drafter(config, a_verifier().tensors).write(tmp_path / "model")
    done = command("auto", "sglang", folder, tmp_path / "out")
    assert done.returncode == 1
    assert str(folder) in done.stderr
    assert "EAGLE-3" in done.stderr or "missing" in done.stderr
    assert not (tmp_path / "out").exists()


def test_formats_that_tie_and_read_a_drafter_differently_are_named(tmp_path: Path, command: Command) -> None:
    # layers.0 names with nested ids and no other mark: SGLang by its field, Model-Optimizer by its names.
    drafter = make_drafter("modelopt", aux=(8, 12, 16)).with_config(
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [8, 12, 16]}}
    )
    folder = drafter.write(tmp_path / "drafter")
    verifier = write_verifier(tmp_path / "verifier")
    done = command("auto", "vllm", folder, tmp_path / "out", "--verifier", verifier)
    if done.returncode == 0:
        assert read_config(tmp_path / "out")["eagle_aux_hidden_state_layer_ids"] == [8, 12, 16]
    else:
        assert "modelopt" in done.stderr
