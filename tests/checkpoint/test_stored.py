from __future__ import annotations

import os
from pathlib import Path

import pytest

from eagle3convert.checkpoint.stored import LocalFile, MemoryFile, StoredTensor
from eagle3convert.errors import CheckpointError, Eagle3ConvertError, OutputError, UsageError


def test_a_local_file_reads_ranges_and_says_when_it_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(range(100)))
    file = LocalFile(path)
    assert file.size == 100
    assert file.read(10, 5) == bytes(range(10, 15))
    target = bytearray(4)
    assert file.readinto(96, memoryview(target)) == 4
    assert target == bytes(range(96, 100))
    with pytest.raises(CheckpointError, match=r"x\.bin: the file ends at byte 100, 3 bytes too early"):
        file.read(98, 5)
    file.close()
    file.close()
    assert file.read(0, 1) == b"\0"
    file.close()


def test_a_local_file_that_nothing_refers_to_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"x")
    file = LocalFile(path)
    fd = file.fileno()
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_missing_file_a_dead_link_and_a_folder_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="gone: the file does not exist"):
        LocalFile(tmp_path / "gone").read(0, 1)
    (tmp_path / "link").symlink_to("blobs/abc")
    with pytest.raises(CheckpointError, match="link: the link points to 'blobs/abc', which does not exist"):
        LocalFile(tmp_path / "link").read(0, 1)
    with pytest.raises(CheckpointError, match="cannot be read"):
        LocalFile(tmp_path).read(0, 1)


def test_a_memory_file_reads_ranges_without_a_descriptor() -> None:
    file = MemoryFile("m", bytearray(b"abcdef"))
    assert (file.size, file.fileno(), file.read(2, 3)) == (6, None, b"cde")
    with pytest.raises(CheckpointError, match="m: the file ends at byte 6, 2 bytes too early"):
        file.readinto(4, memoryview(bytearray(4)))
    file.close()


def test_a_tensor_knows_its_size_and_reads_parts() -> None:
    tensor = StoredTensor("fc.weight", "BF16", (2, 3), MemoryFile("m", bytes(range(20))), 4, 12)
    assert (tensor.itemsize, tensor.numel) == (2, 6)
    assert tensor.read() == bytes(range(4, 16))
    assert tensor.read(10) == bytes([14, 15])
    assert tensor.read(2, 3) == bytes([6, 7, 8])
    with pytest.raises(ValueError, match="bytes 10 to 13 of a tensor of 12"):
        tensor.read(10, 3)


@pytest.mark.parametrize(
    ("dtype", "nbytes", "message"),
    [
        ("BF16", 11, r"m: tensor 'w' is said to be BF16 of shape \[2, 3\], which is 12 bytes, but 11"),
        ("F4", 3, "m: tensor 'w' has dtype F4, whose elements are smaller than a byte"),
        ("F6_E2M3", 5, "F6_E2M3"),
        ("Q8", 6, "m: tensor 'w' has dtype 'Q8', which is none of BOOL"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused(dtype: str, nbytes: int, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        StoredTensor("w", dtype, (2, 3), MemoryFile("m", b""), 0, nbytes)


def test_errors_carry_the_exit_code_of_their_kind() -> None:
    assert (Eagle3ConvertError.exit_code, CheckpointError.exit_code, OutputError.exit_code) == (1, 1, 1)
    assert UsageError.exit_code == 2
