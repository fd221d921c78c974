from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3convert.checkpoint import writer
from eagle3convert.checkpoint.moves import first_difference
from eagle3convert.checkpoint.safetensors import read_header
from eagle3convert.checkpoint.source import open_checkpoint
from eagle3convert.checkpoint.stored import DTYPE_BYTES, LocalFile, StoredTensor
from eagle3convert.checkpoint.writer import (
    OutputTensor,
    aligned_order,
    plan_shards,
    write_safetensors,
    write_weights,
)
from eagle3convert.errors import CheckpointError, OutputError

from .files import drafter_rows, in_memory, make_folder, row


def kept(tensor: StoredTensor, name: str | None = None) -> OutputTensor:
    return OutputTensor(name or tensor.name, tensor.dtype, tensor.shape, tensor)


def produced(name: str, dtype: str, shape: tuple[int, ...], parts: Sequence[bytes]) -> OutputTensor:
    return OutputTensor(name, dtype, shape, chunks=lambda: iter(parts))


def read_back(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    file = LocalFile(path)
    tensors, _ = read_header(file)
    result = {name: (t.dtype, t.shape, t.read()) for name, t in tensors.items()}
    file.close()
    return result


def test_tensors_are_renamed_and_produced_and_the_order_is_kept(tmp_path: Path) -> None:
    make_folder(tmp_path / "in", {"model.safetensors": drafter_rows()})
    moved: list[int] = []
    out = tmp_path / "out.safetensors"
    with open_checkpoint(tmp_path / "in") as source:
        d2t, fc, q, head = source.tensors.values()
        tensors = [
            produced("d2t", "I64", (8,), [bytes(30), bytes(34)]),
            kept(fc),
            kept(q, "midlayer.self_attn.q_proj.weight"),
            kept(head),
            kept(in_memory("extra", b"abcd", "F32", (1,))),
        ]
        write_safetensors(out, tensors, {"format": "pt"}, progress=moved.append)
        found = read_back(out)
        assert list(found) == [
            "d2t",
            "fc.weight",
            "midlayer.self_attn.q_proj.weight",
            "lm_head.weight",
            "extra",
        ]
        assert found["d2t"] == ("I64", (8,), bytes(64))
        assert found["midlayer.self_attn.q_proj.weight"] == (q.dtype, q.shape, q.read())
        assert found["extra"][2] == b"abcd"
        assert sum(moved) == sum(tensor.nbytes for tensor in tensors)
        assert d2t.nbytes == 64


def test_the_data_keep_their_place_within_pages(tmp_path: Path) -> None:
    rows = {"a.weight": row(1, 4000), "b.weight": row(2, 9000)}
    make_folder(tmp_path / "in", {"model.safetensors": rows})
    out = tmp_path / "out.safetensors"
    with open_checkpoint(tmp_path / "in") as source:
        a, b = source.tensors.values()
        write_safetensors(out, [produced("new", "F32", (2,), [bytes(8)]), kept(a), kept(b)], {})
        file = LocalFile(out)
        written, _ = read_header(file)
        assert written["a.weight"].start % 4096 == a.start % 4096
        assert first_difference(a, written["a.weight"]) is None
        file.close()


def test_neighbours_are_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {f"w{i}.weight": row(i, 10_000) for i in range(20)}
    make_folder(tmp_path / "in", {"model.safetensors": rows})
    calls: list[int] = []
    real = os.copy_file_range

    def spy(a: int, b: int, n: int, x: int, y: int) -> int:
        calls.append(n)
        return real(a, b, n, x, y)

    monkeypatch.setattr(os, "copy_file_range", spy)
    with open_checkpoint(tmp_path / "in") as source:
        write_safetensors(tmp_path / "one", [kept(t) for t in source.tensors.values()], {})
        # The first call ends at a boundary, from which on whole pages are moved.
        assert len(calls) <= 2
        assert sum(calls) == 400_000
        calls.clear()
        write_safetensors(tmp_path / "two", [kept(t) for t in reversed(source.tensors.values())], {})
        assert len(calls) >= 20


def test_an_order_that_would_leave_elements_unaligned_is_changed() -> None:
    mask = produced("t2d", "BOOL", (3,), [bytes(3)])
    wide = produced("d2t", "I64", (1,), [bytes(8)])
    half = produced("fc.weight", "BF16", (3,), [bytes(6)])
    assert aligned_order([wide, half, mask]) == [wide, half, mask]
    assert aligned_order([mask, half, wide]) == [wide, half, mask]
    assert aligned_order([half, half, half, wide]) == [wide, half, half, half]


def test_the_reference_library_maps_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    torch_reader = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    tensors = [
        produced("t2d", "BOOL", (3,), [b"\1\0\1"]),
        produced("fc.weight", "BF16", (2, 2), [bytes(range(8))]),
        produced("d2t", "I64", (2,), [bytes(15) + b"\1"]),
        produced("empty", "F32", (0, 4), []),
        produced("scalar", "F32", (), [bytes(4)]),
    ]
    write_safetensors(path, tensors, {"format": "pt"})
    loaded = torch_reader.load_file(path)
    assert {name: tuple(t.shape) for name, t in loaded.items()} == {t.name: t.shape for t in tensors}
    assert loaded["t2d"].tolist() == [True, False, True]
    assert loaded["d2t"].tolist() == [0, 1 << 56]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), st.integers(0, 300), st.booleans()), max_size=8))
def test_whatever_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("round")
    content = [os.urandom(count * DTYPE_BYTES[dtype]) for dtype, count, _ in rows]
    (folder / "source").write_bytes(b"".join(content))
    file = LocalFile(folder / "source")
    tensors, position = [], 0
    for i, ((dtype, count, in_file), data) in enumerate(zip(rows, content, strict=True)):
        if in_file:
            tensors.append(kept(StoredTensor(f"t{i}", dtype, (count,), file, position, len(data))))
        else:
            tensors.append(produced(f"t{i}", dtype, (count,), [data[:7], data[7:]]))
        position += len(data)
    write_safetensors(folder / "out", tensors, {}, durable=False)
    file.close()
    found = read_back(folder / "out")
    assert {name: (dtype, data) for name, (dtype, _, data) in found.items()} == {
        f"t{i}": (dtype, data) for i, ((dtype, _, _), data) in enumerate(zip(rows, content, strict=True))
    }
    for name, tensor in read_header(LocalFile(folder / "out"))[0].items():
        assert tensor.start % tensor.itemsize == 0, name


@pytest.mark.parametrize("parts", [[bytes(7)], [bytes(4), bytes(5)], [], [bytes(100)]])
def test_chunks_of_the_wrong_length_are_a_bug_and_leave_no_file(tmp_path: Path, parts: list[bytes]) -> None:
    with pytest.raises(ValueError, match="tensor 'x' was produced"):
        write_safetensors(tmp_path / "out", [produced("x", "U8", (8,), parts)], {})
    assert not (tmp_path / "out").exists()


def test_a_chunk_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield bytes(4)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_safetensors(tmp_path / "out", [OutputTensor("x", "U8", (8,), None, chunks)], {})
    assert not (tmp_path / "out").exists()


def test_an_output_tensor_needs_bytes_that_fit() -> None:
    with pytest.raises(ValueError, match="neither a source nor chunks"):
        OutputTensor("x", "U8", (8,))
    with pytest.raises(ValueError, match="tensor 'x' has 8 bytes, its source 'y' 4"):
        OutputTensor("x", "U8", (8,), in_memory("y", bytes(4)))
    with pytest.raises(ValueError, match="cannot be written as 'F4'"):
        OutputTensor("x", "F4", (8,), in_memory("y", bytes(4)))


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    make_folder(tmp_path, {"model.safetensors": drafter_rows()})
    before = (tmp_path / "model.safetensors").read_bytes()
    with (
        open_checkpoint(tmp_path) as source,
        pytest.raises(OutputError, match=r"model\.safetensors: exists already"),
    ):
        write_safetensors(tmp_path / "model.safetensors", [kept(t) for t in source.tensors.values()], {})
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_source_that_shrank_is_a_sentence(tmp_path: Path) -> None:
    make_folder(tmp_path, {"model.safetensors": {"a.weight": row(1, 5000)}})
    with open_checkpoint(tmp_path) as source:
        os.truncate(tmp_path / "model.safetensors", 3000)
        with pytest.raises(CheckpointError, match=r"model\.safetensors: the file ends at byte 3000"):
            write_safetensors(tmp_path / "out", [kept(t) for t in source.tensors.values()], {})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_mode_is_that_of_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_weights(tmp_path, [produced("x", "U8", (1,), [b"1"]), produced("y", "U8", (1,), [b"1"])], {}, 1)
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize(
    ("code", "word"), [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "quota"), (errno.EFBIG, "larger")]
)
def test_no_room_is_a_sentence_with_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, word: str
) -> None:
    def full(fd: int, total: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(writer, "_reserve", full)
    sizes = r"\(\d+ bytes are needed, \d+ bytes are free\)"
    with pytest.raises(OutputError, match=rf"out: cannot be written: .*{word}.* {sizes}"):
        write_safetensors(tmp_path / "out", [produced("x", "U8", (8,), [bytes(8)])], {})
    assert not (tmp_path / "out").exists()


def test_a_file_size_limit_is_met_before_a_byte_moves(tmp_path: Path) -> None:
    code = f"""
import resource
from pathlib import Path
from eagle3convert.checkpoint.writer import OutputTensor, write_safetensors
from eagle3convert.errors import OutputError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
def chunks():
    print("moved", end=" ")
    yield bytes(200_000)
try:
    tensor = OutputTensor("x", "U8", (200_000,), None, chunks)
    write_safetensors(Path({str(tmp_path / "out")!r}), [tensor], {{}})
except OutputError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "out: cannot be written: the file would be larger" in result.stdout
    assert "moved" not in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_cannot_reserve_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no device at hand")
    fd = os.open("/dev/full", os.O_RDWR)
    writer._reserve(fd, 100)
    os.close(fd)
    monkeypatch.setattr(writer, "_reserve", lambda fd, total: None)
    write_safetensors(tmp_path / "out", [produced("x", "U8", (8,), [bytes(8)])], {})
    assert read_back(tmp_path / "out") == {"x": ("U8", (8,), bytes(8))}


def test_shards_are_filled_in_order_and_a_large_tensor_has_its_own() -> None:
    sizes = [4, 4, 20, 3, 3, 3]
    tensors = [produced(f"t{i}", "U8", (n,), [bytes(n)]) for i, n in enumerate(sizes)]
    assert [(name, [t.name for t in group]) for name, group in plan_shards(tensors, 8)] == [
        ("model-00001-of-00004.safetensors", ["t0", "t1"]),
        ("model-00002-of-00004.safetensors", ["t2"]),
        ("model-00003-of-00004.safetensors", ["t3", "t4"]),
        ("model-00004-of-00004.safetensors", ["t5"]),
    ]
    assert plan_shards(tensors, None) == [("model.safetensors", tensors)]
    assert plan_shards(tensors, 37) == [("model.safetensors", tensors)]
    assert plan_shards([], 8) == [("model.safetensors", [])]


def test_what_is_written_in_shards_is_opened_again(tmp_path: Path) -> None:
    make_folder(tmp_path / "in", {"model.safetensors": drafter_rows()})
    out = make_folder(tmp_path / "out", {})
    with open_checkpoint(tmp_path / "in") as source:
        tensors = [kept(t) for t in source.tensors.values()]
        paths = write_weights(out, tensors, {"format": "pt"}, max_shard_size=64)
        assert [path.name for path in paths][-1] == "model.safetensors.index.json"
        assert len(paths) == 4
        with open_checkpoint(out) as written:
            assert written.container == "sharded safetensors"
            assert written.metadata == {"format": "pt"}
            assert list(written.tensors) == list(source.tensors)
            for name, tensor in source.tensors.items():
                assert first_difference(tensor, written.tensors[name]) is None
        index = json.loads(paths[-1].read_text())
        assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors)


def test_memory_stays_flat_however_large_the_file(tmp_path: Path) -> None:
    size = 400 * 1024 * 1024
    with (tmp_path / "source").open("wb") as sparse:
        sparse.truncate(size)
    code = f"""
import resource
from pathlib import Path
from eagle3convert.checkpoint.moves import first_difference
from eagle3convert.checkpoint.safetensors import read_header
from eagle3convert.checkpoint.stored import LocalFile, StoredTensor
from eagle3convert.checkpoint.writer import OutputTensor, write_safetensors
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source = StoredTensor("x", "U8", ({size},), LocalFile(Path({str(tmp_path / "source")!r})), 0, {size})
out = Path({str(tmp_path / "out")!r})
write_safetensors(out, [OutputTensor("x", "U8", ({size},), source)], {{}}, durable=False)
written = read_header(LocalFile(out))[0]["x"]
assert first_difference(source, written) is None
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 16 * 1024, "KiB above what the imports take"


FULL_DISK = """
mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1"
"""

WRITE_TOO_MUCH = """
import sys
from pathlib import Path
from eagle3convert.checkpoint import writer
from eagle3convert.checkpoint.writer import OutputFolder, OutputTensor, write_weights
from eagle3convert.errors import OutputError
place = Path(sys.argv[1])
for reserve in (writer._reserve, lambda fd, total: None):
    writer._reserve = reserve
    moved = []
    tensor = OutputTensor("x", "U8", (4_000_000,), None, lambda: (bytes(100_000) for _ in range(40)))
    try:
        with OutputFolder(place / "out") as tmp:
            write_weights(tmp, [tensor], {}, progress=moved.append)
    except OutputError as error:
        print("before" if not moved else "after", error, [path.name for path in place.iterdir()], sep="|")
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    enter = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    try:
        able = subprocess.run([*enter, f"mount -t tmpfs tmpfs {tmp_path}"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare")
    if able.returncode != 0:
        pytest.skip("no file system of our own can be made here")
    command = [*enter, FULL_DISK, "sh", str(tmp_path), sys.executable, WRITE_TOO_MUCH]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    reserved, filled = result.stdout.strip().split("\n")
    assert reserved.startswith("before|")
    assert filled.startswith("after|")
    for line in (reserved, filled):
        assert "model.safetensors: cannot be written: the disk is full (" in line
        assert line.endswith("|[]")
