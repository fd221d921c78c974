"""No tensor of a drafter can go, change its name or its shape without an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3convert.doctor import examine

from ..drafters import Drafter, Tensor, make_drafter, write_verifier

FULL = {
    "sglang": make_drafter("sglang", layers=2, norm_before_fc=True, fc_norm=True, t2d=True),
    "vllm": make_drafter("vllm", layers=2, norm_before_fc=True, fc_norm=True, attention_bias=True, mlp_bias=True),
    "qwen3": make_drafter("vllm", qk_norm=True),
    "speculators": make_drafter("speculators", layers=2, norm_before_fc=True, fc_norm=True, qk_norm=True),
}
ENGINE = {"sglang": "sglang", "vllm": "vllm", "qwen3": "vllm", "speculators": "vllm"}
OPTIONAL = {"embed_tokens.weight", "t2d"}  # engines take the verifier's embedding and do not read t2d
EVERY = [pytest.param(kind, name, id=f"{kind}-{name}") for kind, drafter in FULL.items() for name in drafter.tensors]


def errors(drafter: Drafter, kind: str, place: Path) -> str:
    """The errors of a drafter as text; empty where there is none."""
    folder = drafter.write(place / "drafter")
    config = write_verifier(place / "verifier") / "config.json"
    return "\n".join(
        map(str, examine(folder, ENGINE[kind], format_name=folder_format(kind), verifier_config=config).errors)
    )


def folder_format(kind: str) -> str:
    return {"qwen3": "vllm"}.get(kind, kind)


@pytest.mark.parametrize("kind", FULL)
def test_the_whole_drafter_has_no_error(kind: str, tmp_path: Path) -> None:
    assert errors(FULL[kind], kind, tmp_path) == ""


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_tensor_that_is_not_there(kind: str, name: str, tmp_path: Path) -> None:
    said = errors(FULL[kind].with_tensors({}, [name]), kind, tmp_path)
    if name in OPTIONAL:
        assert said == ""
    else:
        assert name in said or name.replace("midlayer.", "layers.0.") in said


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_tensor_of_another_name(kind: str, name: str, tmp_path: Path) -> None:
    wrong = name.replace("weight", "wieght") if "weight" in name else f"{name}_"
    said = errors(FULL[kind].renamed({name: wrong}), kind, tmp_path)
    assert wrong in said


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_tensor_of_another_shape(kind: str, name: str, tmp_path: Path) -> None:
    found = FULL[kind].tensors[name]
    row = len(found.data) // found.shape[0]
    longer = Tensor(found.dtype, (found.shape[0] + 1, *found.shape[1:]), found.data + found.data[:row])
    said = errors(FULL[kind].with_tensors({name: longer}), kind, tmp_path)
    assert name in said
    assert str(found.shape[0] + 1) in said
