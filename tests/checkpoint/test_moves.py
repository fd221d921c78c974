from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3convert.checkpoint import compare, moves
from eagle3convert.checkpoint.compare import Comparer, first_difference
from eagle3convert.checkpoint.moves import BUFFER_BYTES, Copier, SourceTooShortError, copy_range
from eagle3convert.checkpoint.stored import LocalFile, MemoryFile, StoredTensor
from eagle3convert.errors import CheckpointError

from .files import in_memory

SHM = Path("/dev/shm")
CONTENT = os.urandom(3 * BUFFER_BYTES + 12345)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def content_of(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


@pytest.mark.parametrize(
    ("start", "position", "length"), [(0, 0, len(CONTENT)), (5, 0, 9), (4101, 5, 700_000), (7, 3, 0)]
)
def test_a_range_arrives_where_it_should(source: int, target: int, start: int, position: int, length: int) -> None:
    copy_range(source, start, target, position, length)
    expected = bytes(position) + CONTENT[start : start + length] if length else b""
    assert content_of(target) == expected


def test_a_range_crosses_file_systems(source: int) -> None:
    if not SHM.is_dir() or SHM.stat().st_dev == os.fstat(source).st_dev:
        pytest.skip("no second file system")
    path = SHM / f"eagle3convert-test-{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        copy_range(source, 11, fd, 4, len(CONTENT) - 11)
        assert content_of(fd) == bytes(4) + CONTENT[11:]
        back = os.open(path, os.O_RDONLY)
        os.close(back)
    finally:
        os.close(fd)
        path.unlink()


def refusing(code: int) -> Callable[..., int]:
    def refuse(*arguments: Any) -> int:
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize(
    "code", [errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.ETXTBSY]
)
@pytest.mark.parametrize("also_sendfile", [False, True])
def test_a_method_that_the_system_refuses_is_followed_by_the_next(
    source: int, target: int, monkeypatch: pytest.MonkeyPatch, code: int, also_sendfile: bool
) -> None:
    monkeypatch.setattr(os, "copy_file_range", refusing(code))
    if also_sendfile:
        monkeypatch.setattr(os, "sendfile", refusing(code))
    moved: list[int] = []
    Copier(moved.append).copy_range(source, 1, target, 2, len(CONTENT) - 1)
    assert content_of(target) == bytes(2) + CONTENT[1:]
    assert sum(moved) == len(CONTENT) - 1


def test_systems_without_the_calls_copy_through_the_buffer(
    source: int, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "copy_file_range")
    monkeypatch.delattr(os, "sendfile")
    copy_range(source, 0, target, 0, len(CONTENT))
    assert content_of(target) == CONTENT


def test_short_copies_and_short_writes_are_continued(source: int, target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real_copy, real_write = os.copy_file_range, os.pwrite
    monkeypatch.setattr(os, "copy_file_range", lambda a, b, n, x, y: real_copy(a, b, min(n, 50_001), x, y))
    copy_range(source, 0, target, 0, len(CONTENT))
    assert content_of(target) == CONTENT
    os.ftruncate(target, 0)
    monkeypatch.setattr(os, "copy_file_range", refusing(errno.EXDEV))
    monkeypatch.setattr(os, "sendfile", refusing(errno.EINVAL))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_write(fd, data[:10_007], at))
    copy_range(source, 0, target, 0, len(CONTENT))
    assert content_of(target) == CONTENT


def test_a_copy_that_answers_nothing_is_tried_another_way(
    source: int, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "copy_file_range", lambda *arguments: 0)
    copy_range(source, 0, target, 0, len(CONTENT))
    assert content_of(target) == CONTENT


def test_other_failures_are_not_hidden(source: int, target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", refusing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        copy_range(source, 0, target, 0, 10)


def test_a_source_that_ends_early_says_where(source: int, target: int) -> None:
    with pytest.raises(SourceTooShortError) as caught:
        copy_range(source, 10, target, 0, len(CONTENT))
    assert caught.value.args[0] == len(CONTENT)


def test_the_part_before_a_boundary_goes_alone_where_pages_match(
    source: int, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int, int]] = []
    real = os.copy_file_range

    def spy(a: int, b: int, n: int, x: int, y: int) -> int:
        calls.append((x, y, n))
        return real(a, b, n, x, y)

    monkeypatch.setattr(os, "copy_file_range", spy)
    copy_range(source, 1096, target, 4096 + 1096, 100_000)
    head = 65536 - 5192
    assert calls == [(1096, 5192, head), (1096 + head, 65536, 100_000 - head)]
    calls.clear()
    copy_range(source, 1096, target, 8, 100_000)
    assert calls == [(1096, 8, 100_000)]


def test_a_source_in_memory_is_copied(target: int) -> None:
    moved: list[int] = []
    Copier(moved.append).copy_from(MemoryFile("m", CONTENT), 3, target, 1, len(CONTENT) - 3)
    assert content_of(target) == b"\0" + CONTENT[3:]
    assert sum(moved) == len(CONTENT) - 3


BIG = os.urandom(2 * compare.WINDOW_BYTES + 70_000)


def on_disk(path: Path, content: bytes, lead: int) -> StoredTensor:
    path.write_bytes(bytes(lead) + content + b"after")
    return StoredTensor(path.name, "U8", (len(content),), LocalFile(path), lead, len(content))


@pytest.mark.parametrize("lead", [0, 3, 4096])
def test_equal_tensors_have_no_difference_wherever_they_lie(tmp_path: Path, lead: int) -> None:
    a, b = on_disk(tmp_path / "a", BIG, lead), on_disk(tmp_path / "b", BIG, 8)
    assert first_difference(a, b) is None
    assert first_difference(a, in_memory("c", BIG)) is None
    a.file.close()
    b.file.close()


@pytest.mark.parametrize(
    "at",
    [
        0,
        1,
        compare.SMALL_BYTES,
        compare.WINDOW_BYTES - 1,
        compare.WINDOW_BYTES,
        2 * compare.WINDOW_BYTES + 5,
        len(BIG) - 1,
    ],
)
def test_one_flipped_bit_is_found_where_it_is(tmp_path: Path, at: int) -> None:
    changed = bytearray(BIG)
    changed[at] ^= 4
    a, b = on_disk(tmp_path / "a", BIG, 24), on_disk(tmp_path / "b", bytes(changed), 3)
    comparer = Comparer()
    assert comparer.first_difference(a, b) == at
    assert comparer.first_difference(b, a) == at
    assert comparer.first_difference(in_memory("m", bytes(changed)), a) == at
    a.file.close()
    b.file.close()


@given(st.binary(min_size=1, max_size=40), st.binary(min_size=1, max_size=40))
def test_the_difference_is_the_first_one(left: bytes, right: bytes) -> None:
    common = min(len(left), len(right))
    at = next((i for i in range(common) if left[i] != right[i]), None)
    expected = at if at is not None else (None if left == right else common)
    assert first_difference(in_memory("a", left), in_memory("b", right)) == expected


def test_a_file_that_shrank_is_a_sentence_and_no_signal(tmp_path: Path) -> None:
    a, b = on_disk(tmp_path / "a", BIG, 0), on_disk(tmp_path / "b", BIG, 0)
    assert first_difference(a, b) is None
    os.truncate(tmp_path / "b", compare.WINDOW_BYTES + 10)
    with pytest.raises(CheckpointError, match="b: the file ends at byte"):
        first_difference(a, b)
    a.file.close()
    b.file.close()


def test_without_mapping_the_bytes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = BIG[:-1] + bytes([BIG[-1] ^ 1])
    a, b = on_disk(tmp_path / "a", BIG, 0), on_disk(tmp_path / "b", changed, 0)
    comparer = Comparer()
    monkeypatch.setattr(comparer._libc, "mmap", lambda *arguments: ctypes.c_void_p(-1).value)
    assert comparer.first_difference(a, b) == len(BIG) - 1
    a.file.close()
    b.file.close()


def test_the_buffer_is_smaller_than_a_step() -> None:
    assert moves.BUFFER_BYTES < moves.STEP_BYTES
