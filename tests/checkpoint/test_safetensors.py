from __future__ import annotations

import json
import math
import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3convert.checkpoint.safetensors import PAGE, encode_header, read_header
from eagle3convert.checkpoint.stored import DTYPE_BYTES, LocalFile, MemoryFile
from eagle3convert.errors import CheckpointError

from .files import LFS_POINTER, raw_safetensors, row, safetensors_bytes, says_or_works


def read(content: bytes) -> Any:
    return read_header(MemoryFile("dir/model.safetensors", content))


def entry(begin: int = 0, end: int = 8, dtype: Any = "BF16", shape: Any = (4,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_come_in_the_order_of_their_data_with_absolute_offsets() -> None:
    header = {
        "b": entry(8, 16),
        "__metadata__": {"format": "pt"},
        "a": entry(0, 8),
        "empty": entry(8, 8, shape=[0, 3]),
    }
    content = raw_safetensors(header, bytes(range(16)))
    tensors, metadata = read(content)
    assert list(tensors) == ["a", "empty", "b"]
    assert metadata == {"format": "pt"}
    assert tensors["b"].read() == bytes(range(8, 16))
    assert content[tensors["b"].start :] == bytes(range(8, 16))
    assert tensors["empty"].shape == (0, 3)


def test_a_file_without_tensors_and_scalars_are_read() -> None:
    assert read(raw_safetensors({})) == ({}, {})
    tensors, _ = read(raw_safetensors({"s": entry(0, 4, "F32", [])}, b"1234"))
    assert tensors["s"].numel == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LFS_POINTER, "Git LFS pointer"),
        (b"<html><body>404", "web page"),
        (b"PK\x03\x04" + bytes(60), "zip file such as torch.save writes"),
        (b"", "0 bytes long, too short"),
        (b"\x02\0\0\0\0\0\0\0{", "9 bytes long, too short"),
        (struct.pack("<Q", 1 << 40) + b"{}", "a header of 1099511627776 bytes"),
        (
            struct.pack("<Q", 500) + b'{"a":',
            "the header is cut off: it should end at byte 508, the file ends at byte 13",
        ),
        (struct.pack("<Q", 4) + b" {} ", "does not start with '{'"),
        (raw_safetensors('{"a": '), "the header: not valid JSON"),
        (raw_safetensors('{"a": {}, "a": {}}'), "the key 'a' is given twice"),
        (raw_safetensors({"a": [1]}), "entry for tensor 'a'"),
        (raw_safetensors({"a": {**entry(), "extra": 1}}, bytes(8)), "entry for tensor 'a'"),
        (raw_safetensors({"a": entry(dtype=3)}, bytes(8)), "the dtype of tensor 'a' is 3"),
        (raw_safetensors({"a": entry(dtype="BF17")}, bytes(8)), "tensor 'a' has dtype 'BF17'"),
        (raw_safetensors({"a": entry(dtype="F4", shape=[16])}, bytes(8)), "tensor 'a' has dtype F4"),
        (raw_safetensors({"a": entry(shape=[-4])}, bytes(8)), r"shape of tensor 'a' is \[-4\]"),
        (raw_safetensors({"a": entry(shape=[True])}, bytes(8)), "shape of tensor 'a'"),
        (raw_safetensors({"a": entry(shape="4")}, bytes(8)), "shape of tensor 'a'"),
        (raw_safetensors({"a": entry(8, 0)}, bytes(8)), r"data_offsets of tensor 'a' are \[8, 0\]"),
        (raw_safetensors({"a": entry(0, 1.5)}, bytes(8)), "data_offsets of tensor 'a'"),  # type: ignore[arg-type]
        (
            raw_safetensors({"a": entry(shape=[5])}, bytes(8)),
            r"tensor 'a' .* \[5\], which is 10 bytes, but 8",
        ),
        (
            raw_safetensors({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
            "'b' begins at data byte 4, inside tensor 'a'",
        ),
        (
            raw_safetensors({"a": entry(0, 8), "b": entry(10, 18)}, bytes(18)),
            "2 bytes between tensor 'a' and tensor 'b'",
        ),
        (raw_safetensors({"a": entry(2, 10)}, bytes(10)), "2 bytes between the header and tensor 'a'"),
        (
            raw_safetensors({"a": entry(), "b": entry(8, 16)}, bytes(12)),
            "cut off: .* tensor 'b' is the first",
        ),
        (raw_safetensors({"a": entry()}, bytes(9)), "1 bytes after the last tensor"),
        (raw_safetensors({"__metadata__": {"a": 1}}), "__metadata__"),
        (raw_safetensors({"__metadata__": []}), "__metadata__"),
    ],
)
def test_each_defect_is_a_sentence_that_names_the_file(content: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"(?s)^dir/model\.safetensors: .*{message}"):
        read(content)


def test_offsets_beyond_any_file_are_no_overflow() -> None:
    huge = 1 << 70
    with pytest.raises(CheckpointError, match="cut off"):
        read(raw_safetensors({"a": entry(0, huge, "U8", [huge])}))


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(lambda n: n != "__metadata__")
tensor = st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), st.lists(st.integers(0, 5), max_size=3))


@given(
    st.dictionaries(names, tensor, max_size=8),
    st.dictionaries(names, st.text(st.characters(exclude_categories=["Cs"])), max_size=3),
    st.none() | st.integers(0, PAGE - 1),
)
def test_what_is_encoded_is_read_back(
    wanted: dict[str, tuple[str, list[int]]], metadata: dict[str, str], align_to: int | None
) -> None:
    rows = [(name, d, tuple(shape), math.prod(shape) * DTYPE_BYTES[d]) for name, (d, shape) in wanted.items()]
    header = encode_header(rows, metadata, align_to)
    assert len(header) % 8 == 0
    if align_to is not None and align_to % 8 == 0:
        assert len(header) % PAGE == align_to
    tensors, found = read(header + bytes(sum(nbytes for *_, nbytes in rows)))
    assert found == metadata
    assert {name: (t.dtype, list(t.shape)) for name, t in tensors.items()} == wanted
    starts = [tensors[name].start for name, *_ in rows]
    assert starts == sorted(starts)
    assert starts == [] or starts[0] == len(header)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise_anything_else(content: bytes) -> None:
    for raw in (content, struct.pack("<Q", len(content)) + content, raw_safetensors({"a": entry()}, content)):
        says_or_works(partial(read, raw), "dir/model.safetensors")


@given(st.data())
def test_a_damaged_header_never_raises_anything_else(data: st.DataObject) -> None:
    content = bytearray(safetensors_bytes({"fc.weight": row(1), "d2t": row(2, 3, "I64", 8)}, {"format": "pt"}))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    says_or_works(lambda: read(bytes(content)), "dir/model.safetensors")


def test_the_reference_library_reads_an_encoded_header(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    header = encode_header([("a", "BF16", (2, 2), 8), ("\u00fc", "BOOL", (3,), 3)], {"format": "pt"}, 1024)
    path = tmp_path / "m.safetensors"
    path.write_bytes(header + bytes(11))
    with safetensors.safe_open(path, framework="numpy") as file:
        assert sorted(file.keys()) == ["a", "\u00fc"]
        assert file.metadata() == {"format": "pt"}
        assert file.get_slice("a").get_shape() == [2, 2]


def test_two_tensors_of_one_name_are_a_bug_of_the_caller() -> None:
    for name in ("a", "__metadata__"):
        with pytest.raises(ValueError, match=name):
            encode_header([("a", "U8", (1,), 1), (name, "U8", (1,), 1)], {}, None)


def test_ten_thousand_tensors_are_read_from_disk_in_order(tmp_path: Path) -> None:
    rows = [(f"layers.{i}.weight", "BF16", (1,), 2) for i in range(10_000)]
    path = tmp_path / "m.safetensors"
    path.write_bytes(encode_header(rows, {}, None) + bytes(20_000))
    file = LocalFile(path)
    tensors, _ = read_header(file)
    file.close()
    assert list(tensors) == [name for name, *_ in rows]
    assert json.loads(path.read_bytes()[8 : tensors["layers.0.weight"].start])["layers.9999.weight"]
