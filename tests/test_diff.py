"""diff compares two drafters in canonical form, whatever formats they are in."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import eagle3convert

from .conftest import Command
from .drafters import BY_FREQUENCY, FORMATS, make_drafter, offsets, weight


@pytest.mark.parametrize(("a", "b"), list(combinations(FORMATS, 2)))
def test_one_drafter_in_two_formats_is_the_same_drafter(a: str, b: str, tmp_path: Path) -> None:
    for name in (a, b):
        make_drafter(name).write(tmp_path / name)
    assert eagle3convert.diff(tmp_path / a, tmp_path / b) == []


def test_the_command_says_that_nothing_differs(tmp_path: Path, command: Command) -> None:
    make_drafter("speculators").write(tmp_path / "a")
    make_drafter("sglang").write(tmp_path / "b", "sharded")
    done = command("diff", tmp_path / "a", tmp_path / "b")
    assert done.returncode == 0
    assert "the same drafter" in done.stdout
    told = json.loads(command("diff", tmp_path / "a", tmp_path / "b", "--json").stdout)
    assert (told["equal"], told["differences"]) == (True, [])


DIFFERENT: list[tuple[dict[str, Any], str]] = [
    ({"seed": 1}, "layers.0.mlp.up_proj.weight"),
    ({"dtype": "F16"}, "BF16"),
    ({"layers": 2}, "num_hidden_layers"),
    ({"aux": (1, 4, 9)}, "[1, 4, 9]"),
    ({"targets": BY_FREQUENCY}, "d2t"),
    ({"norm_output": True}, "norm_output"),
    ({"norm_before_residual": True}, "norm_before_residual"),
    ({"fc_norm": True}, "fc_norm.0.weight"),
    ({"window": 64}, "sliding_window"),
    ({"embed": False}, "embed_tokens.weight"),
    ({"rope": {"rope_type": "default", "rope_theta": 500000.0}}, "rope"),
    ({"head_dim": 8}, "head_dim"),
    ({"targets": None}, "draft_vocab_size"),
]


@pytest.mark.parametrize(("knobs", "says"), DIFFERENT, ids=lambda value: str(value))
def test_a_difference_is_named(knobs: dict[str, Any], says: str, tmp_path: Path, command: Command) -> None:
    make_drafter("speculators").write(tmp_path / "a")
    make_drafter("vllm", **knobs).write(tmp_path / "b")
    found = eagle3convert.diff(tmp_path / "a", tmp_path / "b")
    assert any(says in line for line in found), found
    done = command("diff", tmp_path / "a", tmp_path / "b")
    assert done.returncode == 1
    assert says in done.stdout
    told = json.loads(command("diff", tmp_path / "a", tmp_path / "b", "--json").stdout)
    assert (told["equal"], told["differences"]) == (False, found)


def test_one_weight_in_one_place_is_found(tmp_path: Path) -> None:
    drafter = make_drafter("speculators")
    held = drafter.tensors["norm.weight"]
    other = held._replace(data=held.data[:10] + bytes([held.data[10] ^ 1]) + held.data[11:])
    drafter.write(tmp_path / "a")
    drafter.with_tensors({"norm.weight": other}).write(tmp_path / "b")
    (line,) = eagle3convert.diff(tmp_path / "a", tmp_path / "b")
    assert "norm.weight" in line
    assert "5" in line, "the element from which on they differ"


def test_an_encoding_of_d2t_is_no_difference(tmp_path: Path) -> None:
    drafter = make_drafter("speculators")
    targets = [0, 1, 3, 4, 7, 11, 18, 23, 31, 39]
    assert offsets(targets)[4] == 3
    absolute = drafter.tensors["d2t"]._replace(data=b"".join(t.to_bytes(8, "little") for t in targets))
    drafter.write(tmp_path / "a")
    drafter.with_tensors({"d2t": absolute}).write(tmp_path / "b")
    assert eagle3convert.diff(tmp_path / "a", tmp_path / "b") == []


def test_a_tensor_of_one_side_only_is_named(tmp_path: Path) -> None:
    drafter = make_drafter("vllm")
    drafter.write(tmp_path / "a")
    drafter.with_tensors({"fc.bias": weight(3, (12,), "BF16")}).write(tmp_path / "b")
    found = eagle3convert.diff(tmp_path / "a", tmp_path / "b")
    assert any("fc.bias: only in" in line and str(tmp_path / "b") in line for line in found), found


def test_what_is_no_drafter_is_named(tmp_path: Path, command: Command) -> None:
    make_drafter("vllm").write(tmp_path / "a")
    (tmp_path / "b").mkdir()
    done = command("diff", tmp_path / "a", tmp_path / "b")
    assert done.returncode == 1
    assert str(tmp_path / "b") in done.stderr
