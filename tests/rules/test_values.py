"""The scan of values finds what is there, wherever it is; the rules that need headers only read little."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eagle3convert.values as values_module
from eagle3convert.checkpoint.stored import LocalFile, MemoryFile, StoredTensor
from eagle3convert.doctor import examine
from eagle3convert.values import count, scan

from ..drafters import Knobs, canonical_shapes, make_drafter, spelled_name, write_verifier
from .building import with_elements

NAN, INF = float("nan"), float("inf")
ELEMENTS = 432  # of fc


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("at", [0, 31, 32, 215, ELEMENTS - 1])
@pytest.mark.parametrize(("value", "named"), [(NAN, "1 NaN and 0 infinite"), (-INF, "0 NaN and 1 infinite")])
def test_one_value_is_found_anywhere(
    dtype: str, at: int, value: float, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values_module, "BLOCK", 64)
    drafter = make_drafter("sglang", dtype=dtype)
    spoilt = with_elements(drafter.tensors["fc.weight"], {at: value})
    folder = drafter.with_tensors({"fc.weight": spoilt}).write(tmp_path / "drafter")

    found = examine(folder, "sglang", verifier_config=write_verifier(tmp_path / "verifier") / "config.json")

    assert [f.code for f in found.errors] == ["E605"]
    assert found.errors[0].subject == "fc.weight"
    assert named in found.errors[0].message
    assert str(ELEMENTS) in found.errors[0].message


@given(data=st.binary(min_size=4, max_size=64), dtype=st.sampled_from(["BF16", "F16", "F32"]))
def test_counts_are_those_of_numpy(data: bytes, dtype: str) -> None:
    data = data[: len(data) // 4 * 4]
    numbers: Any
    if dtype == "BF16":
        numbers = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    else:
        numbers = np.frombuffer(data, {"F16": "<f2", "F32": "<f4"}[dtype])
    tiny = np.finfo(numbers.dtype).smallest_normal
    found = count(data, dtype)
    assert found.elements == numbers.size
    assert found.nan == np.count_nonzero(np.isnan(numbers))
    assert found.infinite == np.count_nonzero(np.isinf(numbers))
    assert found.zero == np.count_nonzero(numbers == 0)
    assert found.subnormal == np.count_nonzero((np.abs(numbers) < tiny) & (numbers != 0))


def test_progress_is_told_every_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_module, "BLOCK", 48)
    data = bytes(range(200)) * 2
    tensor = StoredTensor("fc.weight", "BF16", (10, 20), MemoryFile("memory", data), 0, 400)
    told: list[int] = []
    stats = scan([tensor], told.append)["fc.weight"]
    assert sum(told) == 400
    assert stats == count(data, "BF16")


LARGE = Knobs(
    format="sglang", hidden=4096, intermediate=14336, heads=32, kv_heads=8, head_dim=128, vocab=151936,
    targets=tuple(range(32000)), dtype="BF16",
)  # fmt: skip


def write_sparse(folder: Path) -> int:
    """A drafter of an 8B model as a file with holes; gives its size.  Every tensor begins with a number, d2t is 0."""
    folder.mkdir()
    config = make_drafter("sglang").config | {
        "hidden_size": LARGE.hidden, "intermediate_size": LARGE.intermediate, "num_attention_heads": LARGE.heads,
        "num_key_value_heads": LARGE.kv_heads, "head_dim": LARGE.head_dim, "vocab_size": LARGE.vocab,
        "draft_vocab_size": 32000,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    header: dict[str, Any] = {}
    at = 0
    shapes = {spelled_name("sglang", name): ("BF16", shape) for name, shape in canonical_shapes(LARGE).items()}
    shapes |= {"d2t": ("I64", (32000,)), "t2d": ("BOOL", (LARGE.vocab,))}
    for name, (dtype, shape) in shapes.items():
        size = int(np.prod(shape)) * {"BF16": 2, "I64": 8, "BOOL": 1}[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
        for row in header.values():
            file.seek(8 + len(text) + row["data_offsets"][0])
            file.write({"BF16": b"\x80\x3f" * 8, "I64": b"", "BOOL": b"\1" * 32000}[row["dtype"]])
    return at


def test_rules_without_values_read_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = write_sparse(tmp_path / "drafter")
    assert size > 2_000_000_000
    read: Counter[str] = Counter()
    plain, into = LocalFile.read, LocalFile.readinto

    def counted(self: LocalFile, start: int, length: int) -> bytes:
        read[self.path.name] += length
        return plain(self, start, length)

    def counted_into(self: LocalFile, start: int, target: memoryview) -> int:
        read[self.path.name] += len(target)
        return into(self, start, target)

    monkeypatch.setattr(LocalFile, "read", counted)
    monkeypatch.setattr(LocalFile, "readinto", counted_into)

    found = examine(tmp_path / "drafter", "sglang", values=False)

    assert found.errors == ()
    assert read["model.safetensors"] < 2_000_000, "more than headers, the vocab map and samples was read"
