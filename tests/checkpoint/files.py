"""Small checkpoint files for the tests, written here byte by byte rather than by the code under test."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from eagle3convert.checkpoint.stored import MemoryFile, StoredTensor
from eagle3convert.errors import CheckpointError

Row = tuple[str, list[int], bytes]
"""dtype, shape and bytes of a tensor."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4665a5ea\nsize 850000000\n"


def raw_safetensors(header: Any, data: bytes = b"") -> bytes:
    """A safetensors file with any header, right or wrong; a str header is taken as it is."""
    text = header if isinstance(header, str) else json.dumps(header)
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def safetensors_bytes(rows: Mapping[str, Row], metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, (dtype, shape, content) in rows.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header)
    return raw_safetensors(text + " " * (-len(text) % 8), data)


def row(seed: int, count: int = 4, dtype: str = "BF16", width: int = 2) -> Row:
    """A tensor of ``count`` elements whose bytes depend on ``seed``."""
    return dtype, [count], bytes((seed * 37 + index * 11) % 251 for index in range(count * width))


def drafter_rows(first: int = 1) -> dict[str, Row]:
    return {
        "d2t": row(first, 8, "I64", 8),
        "fc.weight": row(first + 1, 12),
        "layers.0.self_attn.q_proj.weight": row(first + 2, 20),
        "lm_head.weight": row(first + 3, 6),
    }


def make_folder(path: Path, files: Mapping[str, bytes | str | Mapping[str, Row]], config: Any = None) -> Path:
    """A folder with a config.json and ``files``: bytes or text as they are, rows as a safetensors file."""
    path.mkdir(parents=True, exist_ok=True)
    if config is not False:
        (path / "config.json").write_text(json.dumps(config or {"architectures": ["LlamaForCausalLMEagle3"]}))
    for name, content in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            target.write_text(content)
        elif isinstance(content, bytes):
            target.write_bytes(content)
        else:
            target.write_bytes(safetensors_bytes(content))
    return path


def index_of(shards: Mapping[str, Mapping[str, Row]]) -> str:
    """The index of shards as exporters write it."""
    weight_map = {tensor: name for name, rows in shards.items() for tensor in rows}
    return json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})


def says_or_works(action: Callable[[], object], name: str) -> None:
    """Does it, and takes a CheckpointError that names the file for an answer, but no other exception."""
    said = name
    try:
        action()
    except CheckpointError as error:
        said = str(error)
    assert name in said


def in_memory(name: str, content: bytes, dtype: str = "U8", shape: tuple[int, ...] | None = None) -> StoredTensor:
    file = MemoryFile(f"memory of {name}", content)
    return StoredTensor(name, dtype, shape or (len(content),), file, 0, len(content))
