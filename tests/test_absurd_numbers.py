"""Numbers that no drafter has are sentences, in no more time and memory than others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3convert import Refused, convert, inspect
from eagle3convert.doctor import examine
from tests.drafters import make_drafter

HUGE = 10**12


@pytest.mark.parametrize(
    "field", ["num_hidden_layers", "vocab_size", "draft_vocab_size", "intermediate_size", "hidden_size", "head_dim"]
)
@pytest.mark.parametrize("source", ["sglang", "modelopt", "vllm"])
def test_an_absurd_size_is_refused_by_its_field(field: str, source: str, tmp_path: Path) -> None:
    folder = make_drafter(source).write(tmp_path / "drafter")
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {field: HUGE}), encoding="utf-8")
    with pytest.raises(Refused, match=field):
        convert(folder, tmp_path / "out", source, "speculators")
    assert examine(folder, "sglang", format_name=source).errors
    assert inspect(folder, source).lines()


def test_an_absurd_number_of_aux_states_is_refused(tmp_path: Path) -> None:
    folder = make_drafter("vllm").write(tmp_path / "drafter")
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop("eagle_aux_hidden_state_layer_ids")
    (folder / "config.json").write_text(json.dumps(config | {"num_aux_hidden_states": HUGE}), encoding="utf-8")
    with pytest.raises(Refused, match=r"fc\.weight"):
        convert(folder, tmp_path / "out", "vllm", "sglang")


def test_an_absurd_layer_in_a_name_is_a_stray_tensor(tmp_path: Path) -> None:
    drafter = make_drafter("sglang")
    tensors = dict(drafter.tensors)
    tensors[f"layers.{HUGE}.mlp.up_proj.weight"] = tensors["midlayer.mlp.up_proj.weight"]
    folder = type(drafter)(drafter.config, tensors).write(tmp_path / "drafter")
    with pytest.raises(Refused, match=str(HUGE)):
        convert(folder, tmp_path / "out", "sglang", "vllm")
