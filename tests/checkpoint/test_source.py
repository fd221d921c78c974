from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3convert.checkpoint.source import Checkpoint, open_checkpoint
from eagle3convert.errors import CheckpointError

from .files import LFS_POINTER, drafter_rows, in_memory, index_of, make_folder, row, safetensors_bytes

INDEX = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SHARDS = {ONE: {"b.weight": row(1), "a.weight": row(2)}, TWO: {"c.weight": row(3)}}


def refused(path: Path, *parts: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    for part in parts:
        assert part in message, message
    assert str(path.name) in message
    return message


def test_a_folder_with_one_file_is_opened_by_its_header(tmp_path: Path) -> None:
    make_folder(tmp_path, {"model.safetensors": safetensors_bytes(drafter_rows(), {"format": "pt"})}, {"a": 1})
    with open_checkpoint(str(tmp_path)) as checkpoint:
        assert checkpoint.container == "safetensors"
        assert checkpoint.path == tmp_path
        assert checkpoint.config == {"a": 1}
        assert checkpoint.metadata == {"format": "pt"}
        assert checkpoint.files == (tmp_path / "model.safetensors",)
        assert checkpoint.notes == ()
        assert list(checkpoint.tensors) == list(drafter_rows())
        for name, (_, _, content) in drafter_rows().items():
            assert checkpoint.tensors[name].read() == content


def test_the_only_safetensors_file_may_have_any_name(tmp_path: Path) -> None:
    make_folder(tmp_path, {"eagle_head.safetensors": drafter_rows()})
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.files == (tmp_path / "eagle_head.safetensors",)


def test_shards_are_read_in_the_order_of_names_and_data(tmp_path: Path) -> None:
    make_folder(tmp_path, {**SHARDS, INDEX: index_of(SHARDS)})
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.container == "sharded safetensors"
        assert list(checkpoint.tensors) == ["b.weight", "a.weight", "c.weight"]
        assert checkpoint.files == (tmp_path / ONE, tmp_path / TWO)
        assert checkpoint.tensors["c.weight"].read() == row(3)[2]


def test_an_index_of_another_name_is_followed(tmp_path: Path) -> None:
    make_folder(tmp_path, {**SHARDS, "diffusion_model.safetensors.index.json": index_of(SHARDS)})
    with open_checkpoint(tmp_path) as checkpoint:
        assert len(checkpoint.tensors) == 3
    (tmp_path / "other.safetensors.index.json").write_text(index_of(SHARDS))
    refused(tmp_path, "diffusion_model.safetensors.index.json and other.safetensors.index.json")


def test_an_index_may_name_the_single_file(tmp_path: Path) -> None:
    shards = {"model.safetensors": drafter_rows()}
    make_folder(tmp_path, {**shards, INDEX: index_of(shards)})
    with open_checkpoint(tmp_path) as checkpoint:
        assert len(checkpoint.tensors) == 4


def test_descriptors_are_closed(tmp_path: Path) -> None:
    make_folder(tmp_path / "good", {**SHARDS, INDEX: index_of(SHARDS)})
    make_folder(tmp_path / "bad", {**SHARDS, INDEX: index_of(SHARDS), "x.safetensors": {"d2t": row(1)}})
    make_folder(tmp_path / "stray", {"model.safetensors": drafter_rows(), "x.safetensors": {"d2t": row(1)}})
    before = len(os.listdir("/proc/self/fd"))
    with open_checkpoint(tmp_path / "good"):
        assert len(os.listdir("/proc/self/fd")) == before + 2
    refused(tmp_path / "bad", "x.safetensors")
    refused(tmp_path / "stray", "x.safetensors")
    assert len(os.listdir("/proc/self/fd")) == before


class TestIndex:
    def test_a_shard_that_is_not_there(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {ONE: SHARDS[ONE], INDEX: index_of(SHARDS)})
        refused(tmp_path, TWO, "names this shard", "'c.weight'", INDEX)
        (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(drafter_rows()))
        refused(tmp_path, TWO, "delete the index")

    def test_a_tensor_that_the_shard_lacks(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {ONE: SHARDS[ONE], TWO: {}, INDEX: index_of(SHARDS)})
        refused(tmp_path, TWO, "'c.weight' is in this shard, and it is not")

    def test_a_tensor_that_the_index_does_not_name(self, tmp_path: Path) -> None:
        shards = {ONE: SHARDS[ONE], TWO: {**SHARDS[TWO], "d.weight": row(4)}}
        make_folder(tmp_path, {**shards, INDEX: index_of(SHARDS)})
        refused(tmp_path, TWO, "'d.weight'", "does not say so")

    def test_a_tensor_in_two_shards(self, tmp_path: Path) -> None:
        shards = {ONE: SHARDS[ONE], TWO: {**SHARDS[TWO], "a.weight": row(2)}}
        make_folder(tmp_path, {**shards, INDEX: index_of(SHARDS)})
        refused(tmp_path, TWO, "'a.weight'")

    def test_a_shard_that_no_index_names(self, tmp_path: Path) -> None:
        extra = "model-00003-of-00003.safetensors"
        make_folder(tmp_path, {**SHARDS, extra: {"plain": row(1)}, INDEX: index_of(SHARDS)})
        refused(tmp_path, extra, INDEX, "stray")

    def test_a_whole_file_beside_the_shards(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {**SHARDS, "model.safetensors": {"a.weight": row(2)}, INDEX: index_of(SHARDS)})
        refused(tmp_path, "model.safetensors", INDEX, "both hold tensor 'a.weight'")

    def test_a_file_of_other_things_beside_the_shards_is_a_note(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {**SHARDS, "states.safetensors": {"states": row(2)}, INDEX: index_of(SHARDS)})
        with open_checkpoint(tmp_path) as checkpoint:
            assert "states.safetensors" in checkpoint.notes[0]

    @pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/../../x", "", "..", "a\\b", 3, None])
    def test_a_file_outside_the_folder(self, tmp_path: Path, name: object) -> None:
        make_folder(tmp_path, {INDEX: json.dumps({"weight_map": {"a.weight": name}})})
        refused(tmp_path, INDEX, "'a.weight'", repr(name))

    def test_a_shard_in_a_subfolder_is_inside(self, tmp_path: Path) -> None:
        shards = {"sub/x.safetensors": SHARDS[ONE]}
        make_folder(tmp_path, {**shards, INDEX: index_of(shards)})
        with open_checkpoint(tmp_path) as checkpoint:
            assert list(checkpoint.tensors) == ["b.weight", "a.weight"]

    @pytest.mark.parametrize("text", ["{}", '{"weight_map": {}}', '{"weight_map": []}'])
    def test_no_weight_map(self, tmp_path: Path, text: str) -> None:
        make_folder(tmp_path, {ONE: SHARDS[ONE], INDEX: text})
        refused(tmp_path, INDEX, "weight_map")

    def test_a_pointer_in_place_of_a_shard(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {ONE: SHARDS[ONE], TWO: LFS_POINTER, INDEX: index_of(SHARDS)})
        refused(tmp_path, TWO, "Git LFS pointer")

    def test_shards_without_an_index(self, tmp_path: Path) -> None:
        make_folder(tmp_path, SHARDS)
        refused(tmp_path, ONE, TWO, INDEX, "not there")
        (tmp_path / TWO).unlink()
        refused(tmp_path, ONE, "one of 2 shards", INDEX)

    def test_one_shard_of_one_needs_no_index(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {"model-00001-of-00001.safetensors": drafter_rows()})
        with open_checkpoint(tmp_path) as checkpoint:
            assert len(checkpoint.tensors) == 4


class TestStrayFiles:
    def test_a_file_without_weights_is_a_note(self, tmp_path: Path) -> None:
        make_folder(
            tmp_path,
            {
                "model.safetensors": drafter_rows(),
                "captured_states.safetensors": {"states": row(1), "token_ids": row(2)},
            },
        )
        with open_checkpoint(tmp_path) as checkpoint:
            assert len(checkpoint.tensors) == 4
            assert "captured_states.safetensors: not read" in checkpoint.notes[0]

    @pytest.mark.parametrize(
        ("tensor", "why"),
        [
            ("layers.0.attention.wq.weight", "it holds 'layers.0.attention.wq.weight'"),
            ("t2d", "it holds 't2d'"),
            ("a.bias", "it holds 'a.bias'"),
            ("a.weight_scale", "it holds 'a.weight_scale'"),
            ("fc.weight", "both hold tensor 'fc.weight'"),
        ],
    )
    def test_a_second_file_of_weights(self, tmp_path: Path, tensor: str, why: str) -> None:
        make_folder(tmp_path, {"model.safetensors": drafter_rows(), "consolidated.safetensors": {tensor: row(1)}})
        refused(tmp_path, "consolidated.safetensors", "beside model.safetensors", why)

    def test_a_second_file_that_cannot_be_read(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {"model.safetensors": drafter_rows(), "consolidated.safetensors": LFS_POINTER})
        refused(tmp_path, "consolidated.safetensors", "Git LFS pointer")

    def test_two_files_without_an_index(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {"a.safetensors": drafter_rows(), "b.safetensors": {"x.weight": row(1)}})
        refused(tmp_path, "a.safetensors and b.safetensors", "no index")

    def test_two_files_of_which_one_holds_weights(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {"head.safetensors": drafter_rows(), "oracle.safetensors": {"states": row(1)}})
        with open_checkpoint(tmp_path) as checkpoint:
            assert checkpoint.files[0].name == "head.safetensors"
            assert "oracle.safetensors" in checkpoint.notes[0]

    def test_a_bin_beside_safetensors_is_a_note(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {"model.safetensors": drafter_rows(), "pytorch_model.bin": b"junk"})
        with open_checkpoint(tmp_path) as checkpoint:
            assert "pytorch_model.bin: not read" in checkpoint.notes[0]

    def test_files_of_trainers_are_a_note(self, tmp_path: Path) -> None:
        names = [
            "optimizer.pt",
            "optimizer_state_dict.pt",
            "scheduler.pt",
            "scheduler_state_dict.pt",
            "training_args.bin",
            "training_state.pt",
            "rng_state.pth",
            "rng_state_0.pth",
            "adapter_model.safetensors",
        ]
        make_folder(tmp_path, {"model.safetensors": drafter_rows(), **dict.fromkeys(names, b"junk")})
        with open_checkpoint(tmp_path) as checkpoint:
            (note,) = checkpoint.notes
            assert all(name in note for name in names)


class TestConfig:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (b"{", "not valid JSON"),
            (b"[]", "a JSON array"),
            (b'{"a": 1, "a": 2}', "the key 'a' is given twice"),
            (b'{"a": NaN}', "holds NaN"),
            (LFS_POINTER, "Git LFS pointer"),
            (b"", "empty"),
        ],
    )
    def test_each_defect(self, tmp_path: Path, text: bytes, message: str) -> None:
        make_folder(tmp_path, {"model.safetensors": drafter_rows(), "config.json": text})
        refused(tmp_path, "config.json", message)

    def test_mistrals_layout(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {"params.json": "{}", "consolidated.safetensors": drafter_rows()}, config=False)
        refused(tmp_path, "Mistral's params.json layout")

    def test_a_lora(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {"adapter_config.json": "{}", "adapter_model.safetensors": b""}, config=False)
        refused(tmp_path, "LoRA adapter")

    def test_a_training_state_names_the_folder_beside(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {"training_state.pt": b"", "optimizer.pt": b""}, config=False)
        refused(tmp_path, "a trainer's state", "training_state.pt")
        make_folder(tmp_path / "epoch_2", {"model.safetensors": drafter_rows()})
        make_folder(tmp_path / "epoch_10", {"model.safetensors": drafter_rows()})
        refused(tmp_path, "a trainer's state", f"{tmp_path / 'epoch_2'}, has one", "also epoch_10")

    def test_the_best_of_a_run_comes_first_and_links_are_followed(self, tmp_path: Path) -> None:
        for name in ("1", "3"):
            make_folder(tmp_path / name, {"model.safetensors": drafter_rows()})
        (tmp_path / "checkpoint_best").symlink_to("3")
        message = refused(tmp_path, "no config.json")
        assert f"{tmp_path / 'checkpoint_best'}, has one" in message
        with open_checkpoint(tmp_path / "checkpoint_best") as checkpoint:
            assert len(checkpoint.tensors) == 4

    def test_a_folder_two_levels_down(self, tmp_path: Path) -> None:
        make_folder(tmp_path / "run" / "model", {"model.safetensors": drafter_rows()})
        refused(tmp_path, f"{tmp_path / 'run' / 'model'}, has one")

    def test_weights_alone(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {"model.safetensors": drafter_rows(), "optimizer.bin": b""}, config=False)
        refused(tmp_path, "Put the config.json that the drafter was trained with beside them")

    @pytest.mark.parametrize("config", [False, None])
    def test_a_state_of_deepspeed(self, tmp_path: Path, config: object) -> None:
        make_folder(tmp_path, {"zero_to_fp32.py": "", "latest": "", "global_step9/x.pt": b""}, config=config)
        refused(tmp_path, "DeepSpeed training state", "zero_to_fp32.py")

    def test_something_else(self, tmp_path: Path) -> None:
        refused(tmp_path, "the folder is empty")
        (tmp_path / "README.md").write_text("x")
        refused(tmp_path, "no config.json in this folder (it holds README.md)")


class TestPaths:
    def test_nothing_there(self, tmp_path: Path) -> None:
        refused(tmp_path / "gone", "there is no such folder")

    def test_a_dead_link(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("gone")
        refused(tmp_path / "link", "the link points to 'gone'")

    def test_a_file_in_place_of_its_folder(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {"model.safetensors": drafter_rows()})
        refused(tmp_path / "model.safetensors", "this is a file", f"give the folder: {tmp_path}")

    def test_the_layout_of_a_hub_cache(self, tmp_path: Path) -> None:
        blobs = make_folder(tmp_path / "blobs", {"abc": drafter_rows(), "def": "{}"}, config=False)
        snapshot = tmp_path / "snapshots" / "1"
        snapshot.mkdir(parents=True)
        (snapshot / "model.safetensors").symlink_to(blobs / "abc")
        (snapshot / "config.json").symlink_to("../../blobs/def")
        with open_checkpoint(snapshot) as checkpoint:
            assert len(checkpoint.tensors) == 4
        (blobs / "abc").unlink()
        refused(snapshot, "model.safetensors", "download is incomplete")


class TestNoWeights:
    def test_config_alone(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {})
        refused(tmp_path, "no weights beside config.json")

    def test_only_an_adapter(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {"adapter_model.safetensors": b""})
        refused(tmp_path, "LoRA adapter")

    def test_only_a_training_state(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {"training_state.pt": b""})
        refused(tmp_path, "a trainer's state (training_state.pt)")

    def test_gguf(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {"drafter.gguf": b""})
        refused(tmp_path, "drafter.gguf", "GGUF is not read")

    def test_weights_one_level_down(self, tmp_path: Path) -> None:
        make_folder(tmp_path, {"model/model.safetensors": drafter_rows()})
        refused(tmp_path, f"some in {tmp_path / 'model'}")


def test_a_checkpoint_can_be_made_from_memory() -> None:
    tensor = in_memory("fc.weight", b"1234")
    with Checkpoint(Path("x"), {}, {"fc.weight": tensor}, {}, (), ()) as checkpoint:
        assert checkpoint.container == "memory"


@pytest.mark.parametrize("module", ["source", "writer", "moves"])
def test_nothing_heavy_is_imported(module: str) -> None:
    code = (
        f"import sys, eagle3convert.checkpoint.{module}; "
        "print([m for m in ('numpy', 'torch', 'pydantic', 'safetensors', 'zipfile', 'pickle', 'shutil') "
        "if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
