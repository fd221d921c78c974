"""What was written is proven, can be proven again, and keeps in its receipt what the way back needs."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eagle3convert
from eagle3convert import CheckpointError

from .conftest import Command
from .drafters import (
    Drafter,
    Tensor,
    make_drafter,
    read_config,
    read_receipt,
    read_tensors,
    write_safetensors,
    write_verifier,
)

CASES = Path(__file__).parent / "cases"


@pytest.fixture
def conversion(tmp_path: Path) -> tuple[Path, Path]:
    """A drafter of speculators and what it became for SGLang."""
    source, out = make_drafter("speculators").write(tmp_path / "in"), tmp_path / "out"
    verifier = write_verifier(tmp_path / "verifier")
    eagle3convert.convert(source, out, "speculators", "sglang", verifier_config=verifier, verifier="org/verifier")
    return source, out


# --- verify -----------------------------------------------------------------------------------------------------------


def test_a_conversion_is_verified_again(conversion: tuple[Path, Path], command: Command) -> None:
    done = command("verify", *conversion)
    assert done.returncode == 0, done.stderr
    assert "verified" in done.stdout
    assert json.loads(command("verify", *conversion, "--json").stdout)["passed"] is True


def flip_a_bit(out: Path) -> str:
    file = out / "model.safetensors"
    data = bytearray(file.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8 : 8 + size])["midlayer.mlp.up_proj.weight"]
    data[8 + size + entry["data_offsets"][0] + 7] ^= 1
    file.write_bytes(data)
    return "midlayer.mlp.up_proj.weight"


def flip_a_bit_of_the_map(out: Path) -> str:
    tensors = read_tensors(out)
    held = tensors["d2t"]
    write_safetensors(out / "model.safetensors", {**tensors, "d2t": held._replace(data=b"\1" + held.data[1:])})
    return "d2t"


def rename_a_tensor(out: Path) -> str:
    drafter = Drafter({}, read_tensors(out)).renamed({"midlayer.mlp.up_proj": "midlayer.mlp.upper_proj"})
    write_safetensors(out / "model.safetensors", drafter.tensors)
    return "midlayer.mlp.up_proj.weight"


def swap_two_tensors(out: Path) -> str:
    tensors = read_tensors(out)
    a, b = "midlayer.mlp.up_proj.weight", "midlayer.mlp.gate_proj.weight"
    write_safetensors(out / "model.safetensors", {**tensors, a: tensors[b], b: tensors[a]})
    return a


def lose_a_tensor(out: Path) -> str:
    tensors = read_tensors(out)
    write_safetensors(out / "model.safetensors", {n: t for n, t in tensors.items() if n != "norm.weight"})
    return "norm.weight"


def add_a_tensor(out: Path) -> str:
    extra = Tensor("BF16", (2,), b"\0\x3f\0\x3f")
    write_safetensors(out / "model.safetensors", {**read_tensors(out), "extra.weight": extra})
    return "extra.weight"


def change_a_dtype(out: Path) -> str:
    tensors = read_tensors(out)
    name = "midlayer.hidden_norm.weight"
    write_safetensors(out / "model.safetensors", {**tensors, name: tensors[name]._replace(dtype="F16")})
    return name


def edit_the_config(path: str, value: Any) -> Callable[[Path], str]:
    def edit(out: Path) -> str:
        changed = Drafter(read_config(out), {}).with_config({path: value})
        (out / "config.json").write_text(json.dumps(changed.config))
        return path.rpartition(".")[2]

    return edit


DAMAGES = [
    flip_a_bit, flip_a_bit_of_the_map, rename_a_tensor, swap_two_tensors, lose_a_tensor, add_a_tensor, change_a_dtype,
    edit_the_config("eagle_config.eagle_aux_hidden_state_layer_ids", [2, 8, 13]),
    edit_the_config("rms_norm_eps", 1e-06), edit_the_config("rope_theta", 500000.0),
    edit_the_config("norm_output", True), edit_the_config("num_hidden_layers", 2),
    edit_the_config("draft_vocab_size", 11), edit_the_config("architectures", ["LlamaForCausalLM"]),
    edit_the_config("my_own_note", "x"),
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__qualname__.replace(".<locals>", ""))
def test_a_changed_output_fails_its_verification_by_name(
    damage: Callable[[Path], str], conversion: tuple[Path, Path], command: Command
) -> None:
    name = damage(conversion[1])
    done = command("verify", *conversion)
    assert done.returncode == 1
    assert name in done.stderr, done.stderr
    assert "not verified" in done.stdout
    told = json.loads(command("verify", *conversion, "--json").stdout)
    assert told["passed"] is False
    assert any(name in defect for defect in told["defects"])


def test_another_source_is_not_the_one_that_was_converted(
    conversion: tuple[Path, Path], tmp_path: Path, command: Command
) -> None:
    other = make_drafter("speculators", seed=1).write(tmp_path / "other")
    done = command("verify", other, conversion[1])
    assert done.returncode == 1
    assert "midlayer.mlp.up_proj.weight" in done.stderr


def test_moved_folders_are_verified_where_they_are(
    conversion: tuple[Path, Path], tmp_path: Path, command: Command
) -> None:
    moved = [shutil.move(folder, tmp_path / f"moved-{folder.name}") for folder in conversion]
    assert command("verify", *moved).returncode == 0


@pytest.mark.parametrize("receipt", [None, "", "{", "[]", "{}", '{"receipt": 1}', '{"carried": 1, "assumptions": 2}'])
def test_a_folder_without_a_sound_receipt_is_named(
    receipt: str | None, conversion: tuple[Path, Path], command: Command
) -> None:
    file = conversion[1] / "eagle3convert.json"
    file.unlink()
    if receipt is not None:
        file.write_text(receipt)
    done = command("verify", *conversion)
    assert done.returncode == 1
    assert "eagle3convert.json" in done.stderr
    back = conversion[1].with_name("back")
    assert command("sglang", "speculators", conversion[1], back).returncode == 0, "a bad receipt is no receipt"


@pytest.mark.parametrize("field", ["carried", "verifier", "assumptions", "destination", "source", "written"])
def test_a_receipt_that_was_edited_ends_in_no_defect(
    field: str, conversion: tuple[Path, Path], command: Command
) -> None:
    file = conversion[1] / "eagle3convert.json"
    values: tuple[Any, ...] = (None, 7, "x", [], {})
    for value in values:
        file.write_text(json.dumps(read_receipt(conversion[1]) | {field: value}))
        back = conversion[1].with_name("back")
        assert command("auto", "speculators", conversion[1], back, "--force").returncode in (0, 1)
        assert command("verify", *conversion).returncode in (0, 1)
        assert command("inspect", conversion[1]).returncode in (0, 1)
        shutil.rmtree(back, ignore_errors=True)


def test_a_user_s_own_format_is_verified_and_left_again(tmp_path: Path, command: Command) -> None:
    drafter = make_drafter("speculators", norm_before_residual=True)
    source, out, own = drafter.write(tmp_path / "in"), tmp_path / "out", CASES / "my_sglang.toml"
    verifier = write_verifier(tmp_path / "verifier") / "config.json"
    done = command("speculators", "my-sglang", source, out, "--format-file", own, "--verifier-config", verifier)
    assert done.returncode == 0, done.stderr
    assert command("verify", source, out, "--format-file", own).returncode == 0
    assert command("my-sglang", "speculators", out, tmp_path / "back", "--format-file", own).returncode == 0
    assert read_tensors(tmp_path / "back") == drafter.tensors
    assert read_config(tmp_path / "back") == drafter.config
    without = command("my-sglang", "vllm", out, tmp_path / "vllm")
    assert without.returncode == 2
    assert "--format-file" in without.stderr


# --- the receipt ------------------------------------------------------------------------------------------------------


def test_the_receipt_says_how_the_output_was_made(conversion: tuple[Path, Path]) -> None:
    source, out = conversion
    receipt = read_receipt(out)
    assert receipt["eagle3convert"] == eagle3convert.__version__
    assert receipt["source"]["format"] == "speculators"
    assert receipt["source"]["path"] == str(source)
    assert receipt["source"]["files"] == [
        {"name": "model.safetensors", "bytes": (source / "model.safetensors").stat().st_size}
    ]
    assert (receipt["destination"]["format"], receipt["destination"]["lowest_release"]) == ("sglang", "0.5.5")
    assert receipt["launch"][:3] == ["python", "-m", "sglang.launch_server"]
    assert "org/verifier" in receipt["launch"]
    assert {row["name"]: row["source"] for row in receipt["tensors"]}["midlayer.self_attn.q_proj.weight"] == (
        "layers.0.self_attn.q_proj.weight"
    )
    assert receipt["verification"]["passed"] is True
    assert receipt["verification"]["compared_bytes"] == sum(len(t.data) for t in read_tensors(out).values())
    assert receipt["verifier"]["name"] == "org/verifier"
    assert receipt["verifier"]["num_hidden_layers"] == 16
    assert receipt["created"].startswith("20")


def test_the_receipt_keeps_what_was_stated(tmp_path: Path) -> None:
    source = make_drafter("speculators", norm_before_residual=None, aux=None).write(tmp_path / "in")
    stated = {"norm_before_residual": False}
    eagle3convert.convert(
        source, tmp_path / "out", "speculators", "sglang", assume=stated, aux_layers=(3, 9, 14),
        engine_version="0.5.20", verifier_config=write_verifier(tmp_path / "verifier"),
    )  # fmt: skip
    receipt = read_receipt(tmp_path / "out")
    assert receipt["assumptions"]["assume"] == stated
    assert receipt["assumptions"]["aux_layers"] == [3, 9, 14]
    assert receipt["destination"]["engine_version"] == "0.5.20"
    assert eagle3convert.verify(source, tmp_path / "out").passed


def test_a_stale_receipt_is_not_followed(conversion: tuple[Path, Path], tmp_path: Path, command: Command) -> None:
    source, out = conversion
    changes = {"rms_norm_eps": 1e-06, "rope_theta": 500000.0}
    edited = Drafter(read_config(out), {}).with_config(changes, ["rope_parameters"])
    (out / "config.json").write_text(json.dumps(edited.config))
    assert command("sglang", "speculators", out, tmp_path / "back").returncode == 0
    back = read_config(tmp_path / "back")
    assert back["transformer_layer_config"]["rms_norm_eps"] == 1e-06
    assert back["transformer_layer_config"]["rope_parameters"]["rope_theta"] == 500000.0
    methods = "speculators_config", "proposal_methods"
    assert back[methods[0]][methods[1]] != read_config(source)[methods[0]][methods[1]], "nothing is remembered"


def test_a_receipt_of_another_way_restores_nothing_wrong(
    conversion: tuple[Path, Path], tmp_path: Path, command: Command
) -> None:
    source, out = conversion
    assert command("auto", "vllm", out, tmp_path / "vllm").returncode == 0
    assert read_config(tmp_path / "vllm")["eagle_aux_hidden_state_layer_ids"] == [2, 8, 13]
    assert eagle3convert.diff(source, tmp_path / "vllm") == []


def test_a_drafter_trained_on_after_its_conversion_goes_back_with_its_new_weights(
    conversion: tuple[Path, Path], tmp_path: Path, command: Command
) -> None:
    out = conversion[1]
    tensors = read_tensors(out)
    trained = {**tensors, "norm.weight": tensors["midlayer.hidden_norm.weight"]}
    write_safetensors(out / "model.safetensors", trained)
    assert command("sglang", "speculators", out, tmp_path / "back").returncode == 0
    assert read_tensors(tmp_path / "back")["norm.weight"] == trained["norm.weight"]


def test_a_verification_without_its_receipt_is_a_typed_error(conversion: tuple[Path, Path]) -> None:
    (conversion[1] / "eagle3convert.json").unlink()
    with pytest.raises(CheckpointError, match=r"eagle3convert\.json"):
        eagle3convert.verify(*conversion)
