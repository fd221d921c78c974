"""Files of torch.save, without torch: everything here is assembled by hand."""

from __future__ import annotations

import builtins
import importlib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3convert.checkpoint.source import open_checkpoint
from eagle3convert.checkpoint.stored import LocalFile, StoredTensor
from eagle3convert.checkpoint.torch_pickle import read_torch_file
from eagle3convert.errors import CheckpointError

from . import torch_files as tf
from .files import LFS_POINTER, index_of, make_folder, row, says_or_works

DATA = bytes(range(64))
TWO = {"fc.weight": tf.tensor("0", [2, 3]), "d2t": tf.tensor("1", [2], kind="LongStorage")}
GOOD = tf.pickled(tf.mapping(TWO))


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def refuse(name: str, package: str | None = None) -> Any:
        if name == "torch":
            raise ImportError("no torch here")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", refuse)


def read(path: Path) -> tuple[dict[str, StoredTensor], list[str]]:
    file = LocalFile(path)
    try:
        return read_torch_file(file)
    finally:
        file.close()


def content(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    tensors, _ = read(path)
    result = {name: (t.dtype, t.shape, t.read()) for name, t in tensors.items()}
    for tensor in tensors.values():
        tensor.file.close()
    return result


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(path)
    for part in (str(path), *parts):
        assert part in str(caught.value), str(caught.value)


def test_tensors_are_found_by_their_offsets(tmp_path: Path) -> None:
    path = tf.write_torch_zip(tmp_path / "x.bin", GOOD, {"0": DATA[:24], "1": DATA[24:40]})
    assert content(path) == {"fc.weight": ("F32", (2, 3), DATA[:24]), "d2t": ("I64", (2,), DATA[24:40])}


def test_views_of_one_storage_have_their_own_ranges(tmp_path: Path) -> None:
    body = {
        "whole": tf.tensor("0", [6], numel=6),
        "tied": tf.tensor("0", [6], numel=6),
        "part": tf.tensor("0", [2], offset=3, numel=6),
        "empty": tf.tensor("0", [0, 4], offset=6, numel=6),
        "scalar": tf.tensor("0", [], offset=5, numel=6),
        "ones": tf.tensor("0", [1, 2], stride=[999, 1], numel=6),
    }
    path = tf.write_torch_zip(tmp_path / "x.bin", tf.pickled(tf.mapping(body)), {"0": DATA[:24]})
    found = {name: data for name, (_, _, data) in content(path).items()}
    assert found["whole"] == found["tied"] == DATA[:24]
    assert found["part"] == DATA[12:20]
    assert found["scalar"] == DATA[20:24]
    assert found["ones"] == DATA[:8]
    assert found["empty"] == b""


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "draft_state_dict"])
def test_a_wrapped_state_dict_is_unwrapped_and_said(tmp_path: Path, key: str) -> None:
    body = tf.mapping(
        {"epoch": tf.number(3), key: tf.mapping(TWO), "optimizer": tf.mapping({"s": tf.tensor("0", [6])})}
    )
    path = tf.write_torch_zip(tmp_path / "x.bin", tf.pickled(body), {"0": DATA[:24], "1": DATA[24:40]})
    tensors, notes = read(path)
    assert set(tensors) == set(TWO)
    assert f"under '{key}'" in notes[0]
    assert "'epoch', 'optimizer' beside it not read" in notes[0]


def test_an_ordered_dict_with_metadata_and_parameters(tmp_path: Path) -> None:
    parameter = tf.call(
        tf.named("torch._utils", "_rebuild_parameter"),
        TWO["fc.weight"],
        b"\x88",
        tf.call(tf.named("collections", "OrderedDict")),
    )
    ordered = tf.call(tf.named("collections", "OrderedDict")) + b"(" + tf.text("fc.weight") + parameter + b"u"
    ordered += tf.mapping({"_metadata": tf.mapping({"": tf.mapping({"version": tf.number(1)})})}) + b"b"
    path = tf.write_torch_zip(tmp_path / "x.bin", tf.pickled(ordered), {"0": DATA[:24]})
    assert content(path) == {"fc.weight": ("F32", (2, 3), DATA[:24])}


def test_values_that_are_no_tensors_are_a_note(tmp_path: Path) -> None:
    body = tf.mapping({**TWO, "step": tf.number(3), "none": b"N"})
    path = tf.write_torch_zip(tmp_path / "x.bin", tf.pickled(body), {"0": DATA[:24], "1": DATA[24:40]})
    _, notes = read(path)
    assert "'step', 'none' in the state dict: no tensors, not read" in notes[0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (tf.tensor("0", [6]), "holds a single tensor, not a state dict"),
        (tf.number(3), "holds a int, not a state dict"),
        (tf.mapping({"epoch": tf.number(3)}), "holds no tensors by name; its keys are 'epoch'"),
        (tf.mapping({}), "holds no tensors by name; its keys are none"),
        (
            tf.mapping({"model": tf.mapping(TWO), "state_dict": tf.mapping(TWO)}),
            "both under 'state_dict' and under 'model'",
        ),
        (tf.mapping({**TWO, "more": tf.mapping(TWO)}), "'more' holds tensors inside a dict"),
        (b"}" + tf.number(7) + tf.tensor("0", [6]) + b"s", "the key 7, which is no name"),
        (
            tf.mapping({"w": tf.tensor("9", [6])}),
            "tensor 'w' lies in the storage '9', which is not in the file",
        ),
        (
            tf.mapping({"w": tf.tensor("0", [7])}),
            "tensor 'w' lies in a storage of 28 bytes, of which the file holds 24",
        ),
        (
            tf.mapping({"w": tf.tensor("0", [7], numel=6)}),
            "tensor 'w' ends at byte 28 of a storage of 24 bytes",
        ),
        (tf.mapping({"w": tf.tensor("0", [2], offset=5, numel=6)}), "ends at byte 28"),
        (tf.mapping({"w": tf.tensor("0", [-1], numel=6)}), "tensor 'w' is described by something else"),
        (
            tf.mapping({"w": tf.tensor("0", [2], offset=-1, numel=6)}),
            "tensor 'w' is described by something else",
        ),
        (tf.mapping({"w": tf.tensor("0", [2, 3], stride=[1])}), "tensor 'w' has 2 dimensions and 1 strides"),
        (tf.mapping({"w": tf.tensor("0", [3], kind="UntypedStorage", numel=3)}), "tensor 'w' has no dtype"),
        (b"N", "holds a NoneType, not a state dict"),
    ],
)
def test_each_defect_of_a_state_dict_is_a_sentence(tmp_path: Path, body: bytes, message: str) -> None:
    refused(tf.write_torch_zip(tmp_path / "x.bin", tf.pickled(body), {"0": DATA[:24], "1": DATA[:16]}), message)


@pytest.mark.parametrize(
    ("pickle", "message"),
    [
        (GOOD[:-20], "its pickle cannot be read"),
        (b"\x80\x02\xff.", "its pickle cannot be read"),
        (b"", "its pickle cannot be read"),
        (tf.pickled(b"(" * 50), "its pickle cannot be read"),
        (tf.pickled(b"}r\xff\xff\xff\x7f"), "memo number 2147483647"),
        (tf.pickled(tf.number(1) + b"Q"), "describes a storage as 1"),
        (tf.pickled(tf.call(tf.named("torch", "FloatStorage"))), "its pickle cannot be read"),
        (tf.pickled(tf.call(tf.named("torch._utils", "_rebuild_tensor_v2"))), "its pickle cannot be read"),
    ],
)
def test_each_defect_of_a_pickle_is_a_sentence(tmp_path: Path, pickle: bytes, message: str) -> None:
    refused(tf.write_torch_zip(tmp_path / "x.bin", pickle, {}), message)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("__builtin__", "exec"),
        ("subprocess", "Popen"),
    ],
)
def test_a_hostile_pickle_is_refused_by_name_and_nothing_runs(tmp_path: Path, module: str, name: str) -> None:
    mark = tmp_path / "ran"
    body = tf.mapping({**TWO, "x": tf.call(tf.named(module, name), tf.text(f"touch {mark}"))})
    path = tf.write_torch_zip(tmp_path / "x.bin", tf.pickled(body), {"0": DATA[:24], "1": DATA[:16]})
    refused(path, f"its pickle asks for {module}.{name}", "Nothing was run")
    assert not mark.exists()


def test_a_hostile_pickle_in_a_folder_names_its_file(tmp_path: Path) -> None:
    make_folder(tmp_path, {})
    hostile = tf.pickled(tf.call(tf.named("os", "system"), tf.text("true")))
    tf.write_torch_zip(tmp_path / "pytorch_model.bin", hostile, {})
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: its pickle asks for os\.system"):
        open_checkpoint(tmp_path)


def test_a_pickle_cannot_change_what_outlives_it(tmp_path: Path) -> None:
    function = tf.named("torch._utils", "_rebuild_tensor_v2")
    changes = b"N" + tf.mapping({"__defaults__": tf.items(tf.number(1))}) + b"\x86b"
    ordered = tf.named("collections", "OrderedDict") + b"N" + tf.mapping({"items": tf.number(1)}) + b"\x86b0"
    first = tf.write_torch_zip(
        tmp_path / "x.bin", tf.pickled(ordered + function + changes + b"0" + tf.mapping(TWO)), {}
    )
    with pytest.raises(CheckpointError):
        read(first)
    second = tf.write_torch_zip(tmp_path / "y.bin", GOOD, {"0": DATA[:24], "1": DATA[:16]})
    assert len(content(second)) == 2
    assert builtins.dict.__name__ == "dict"


@pytest.mark.parametrize("state", ["items", "values", "get"])
def test_a_dict_that_is_given_attributes_stays_a_dict(tmp_path: Path, state: str) -> None:
    ordered = tf.call(tf.named("collections", "OrderedDict")) + b"(" + tf.text("d2t") + TWO["d2t"] + b"u"
    ordered += tf.mapping({state: tf.number(1)}) + b"b"
    path = tf.write_torch_zip(tmp_path / "x.bin", tf.pickled(ordered), {"1": DATA[:16]})
    assert list(content(path)) == ["d2t"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            tf.mapping({"w": tf.tensor("0", [2, 3], stride=[1, 2])}),
            "tensor 'w' is not contiguous (shape [2, 3], strides [1, 2])",
        ),
        (
            tf.call(tf.named("torch._tensor", "_rebuild_from_type_v2")),
            "its pickle asks for torch._tensor._rebuild_from_type_v2",
        ),
        (tf.call(tf.named("collections", "Counter")), "its pickle asks for collections.Counter"),
    ],
)
def test_what_only_torch_can_read_asks_for_torch(tmp_path: Path, body: bytes, reason: str) -> None:
    path = tf.write_torch_zip(tmp_path / "x.bin", tf.pickled(body), {"0": DATA[:24]})
    refused(path, reason, "pip install 'eagle3convert[torch]'")


def test_the_format_before_torch_1_6_asks_for_torch(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.")
    refused(tmp_path / "x.bin", "before torch 1.6", "pip install 'eagle3convert[torch]'")


def test_a_big_endian_file_asks_for_torch(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", GOOD)
        archive.writestr("a/byteorder", "big")
    refused(path, "not little-endian")


class TestZip:
    def test_a_pointer_and_other_things(self, tmp_path: Path) -> None:
        for text, message in [
            (LFS_POINTER, "Git LFS pointer"),
            (b"", "no file of torch.save"),
            (b"GGUF", "no file of"),
        ]:
            (tmp_path / "x.bin").write_bytes(text)
            refused(tmp_path / "x.bin", message)

    def test_one_that_is_cut_off(self, tmp_path: Path) -> None:
        path = tf.write_torch_zip(tmp_path / "x.bin", GOOD, {"0": DATA[:24], "1": DATA[:16]})
        path.write_bytes(path.read_bytes()[:-100])
        refused(path, "the file is cut off")

    def test_one_that_is_compressed(self, tmp_path: Path) -> None:
        path = tf.write_torch_zip(tmp_path / "x.bin", GOOD, {}, compression=zipfile.ZIP_DEFLATED)
        refused(path, "is compressed")

    def test_one_of_something_else(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "x.bin", "w") as archive:
            archive.writestr("a/readme", "x")
        refused(tmp_path / "x.bin", "a zip without data.pkl")

    def test_a_program(self, tmp_path: Path) -> None:
        path = tf.write_torch_zip(tmp_path / "x.bin", GOOD, {}, extra={"archive/constants.pkl": b""})
        refused(path, "TorchScript program")

    @pytest.mark.parametrize("name", ["loose", "other/data/0", "archive/"])
    def test_entries_in_other_places(self, tmp_path: Path, name: str) -> None:
        refused(
            tf.write_torch_zip(tmp_path / "x.bin", GOOD, {}, extra={name: b"x"}),
            "is not where torch.save puts one",
        )

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_entries_there_twice(self, tmp_path: Path) -> None:
        path = tf.write_torch_zip(tmp_path / "x.bin", GOOD, {"0": b""}, extra={"archive/data/0": b"x"})
        refused(path, "there twice")

    def test_entries_that_overlap(self, tmp_path: Path) -> None:
        path = tf.write_torch_zip(tmp_path / "x.bin", GOOD, {"0": DATA[:24], "1": DATA[:24]})
        raw = bytearray(path.read_bytes())
        one = raw.rfind(b"archive/data/1") - 46
        zero = raw.rfind(b"archive/data/0") - 46
        raw[one + 42 : one + 46] = raw[zero + 42 : zero + 46]
        path.write_bytes(raw)
        refused(path, "overlap")

    def test_a_directory_that_names_an_entry_otherwise(self, tmp_path: Path) -> None:
        path = tf.write_torch_zip(tmp_path / "x.bin", GOOD, {"0": DATA[:24], "1": DATA[:16]})
        raw = bytearray(path.read_bytes())
        at = raw.find(b"archive/data/1")
        raw[at : at + 14] = b"archive/data/7"
        path.write_bytes(raw)
        refused(path, "the directory says 'archive/data/1' where the entry itself says b'archive/data/7'")

    def test_one_larger_than_four_gigabytes(self, tmp_path: Path) -> None:
        large = (1 << 32) + 400
        body = {"big": tf.tensor("0", [large], kind="CharStorage"), "after": tf.tensor("1", [6])}
        path = tf.write_large_zip(
            tmp_path / "x.bin", tf.pickled(tf.mapping(body)), [("0", large, b"begin"), ("1", 24, DATA[:24])]
        )
        tensors, _ = read(path)
        assert tensors["big"].nbytes == large
        assert tensors["big"].read(0, 5) == b"begin"
        assert tensors["after"].start > 1 << 32
        assert tensors["after"].read() == DATA[:24]
        tensors["after"].file.close()
        path.unlink()


@pytest.fixture(scope="module")
def good_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "x.bin"
    return tf.write_torch_zip(path, GOOD, {"0": DATA[:24], "1": DATA[:16]}).read_bytes()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_never_raises_anything_else(
    tmp_path_factory: pytest.TempPathFactory, good_bytes: bytes, data: st.DataObject
) -> None:
    raw = bytearray(good_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.bin"
    path.write_bytes(raw)
    says_or_works(lambda: content(path), str(path))


class TestFolder:
    def make(self, path: Path, *names: str) -> Path:
        make_folder(path, {})
        for name in names:
            tf.write_torch_zip(path / name, GOOD, {"0": DATA[:24], "1": DATA[:16]})
        return path

    def test_one_file(self, tmp_path: Path) -> None:
        with open_checkpoint(self.make(tmp_path, "pytorch_model.bin", "d2t.pt")) as checkpoint:
            assert checkpoint.container == "torch zip"
            assert checkpoint.files == (tmp_path / "pytorch_model.bin",)
            assert "d2t.pt: not read, pytorch_model.bin holds the weights." in checkpoint.notes

    @pytest.mark.parametrize("name", ["drafter.pt", "x.bin", "y.pth"])
    def test_one_file_of_another_name(self, tmp_path: Path, name: str) -> None:
        make_folder(tmp_path, {"training_args.bin": b"x", "optimizer.pt": b"y"})
        with open_checkpoint(self.make(tmp_path, name)) as checkpoint:
            assert len(checkpoint.tensors) == 2
            assert "training_args.bin" in checkpoint.notes[-1]

    def test_two_files(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"a\.bin and b\.pt are two files of weights"):
            open_checkpoint(self.make(tmp_path, "a.bin", "b.pt"))

    def test_shards(self, tmp_path: Path) -> None:
        one, two = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
        make_folder(tmp_path, {"pytorch_model.bin.index.json": index_of({one: {"a": row(1)}, two: {"b": row(2)}})})
        for name, tensor in ((one, "a"), (two, "b")):
            tf.write_torch_zip(tmp_path / name, tf.pickled(tf.mapping({tensor: tf.tensor("0", [6])})), {"0": DATA[:24]})
        with open_checkpoint(tmp_path) as checkpoint:
            assert list(checkpoint.tensors) == ["a", "b"]
        (tmp_path / "pytorch_model.bin.index.json").unlink()
        (tmp_path / two).unlink()
        with pytest.raises(CheckpointError, match=r"one of 2 shards, but pytorch_model\.bin\.index\.json"):
            open_checkpoint(tmp_path)
