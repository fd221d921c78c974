"""Files as torch.save writes them, assembled opcode by opcode so that no torch is needed."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def number(value: int) -> bytes:
    encoded = value.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes([len(encoded)]) + encoded


def items(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + items(*arguments) + b"R"


def mapping(pairs: Mapping[str, bytes]) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in pairs.items()) + b"u"


def storage(key: str, numel: int, kind: str = "FloatStorage") -> bytes:
    return items(text("storage"), named("torch", kind), text(key), text("cpu"), number(numel)) + b"Q"


def tensor(
    key: str,
    shape: Sequence[int],
    *,
    kind: str = "FloatStorage",
    offset: int = 0,
    stride: Sequence[int] | None = None,
    numel: int | None = None,
) -> bytes:
    if stride is None:
        stride = [1] * len(shape)
        for at in range(len(shape) - 2, -1, -1):
            stride[at] = stride[at + 1] * shape[at + 1]
    if numel is None:
        numel = offset + (1 if not shape else shape[0] * (shape[1] if len(shape) > 1 else 1))
    return call(
        named("torch._utils", "_rebuild_tensor_v2"),
        storage(key, numel, kind),
        number(offset),
        items(*map(number, shape)),
        items(*map(number, stride)),
        b"\x89",
        call(named("collections", "OrderedDict")),
    )


def pickled(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def write_torch_zip(
    path: Path,
    pickle: bytes,
    storages: Mapping[str, bytes],
    *,
    extra: Mapping[str, bytes] | None = None,
    compression: int = zipfile.ZIP_STORED,
    root: str = "archive",
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"{root}/data.pkl", pickle)
        archive.writestr(f"{root}/byteorder", "little")
        for key, content in storages.items():
            archive.writestr(f"{root}/data/{key}", content)
        archive.writestr(f"{root}/version", "3\n")
        for name, content in (extra or {}).items():
            archive.writestr(name, content)
    return path


def write_large_zip(path: Path, pickle: bytes, storages: Sequence[tuple[str, int, bytes]]) -> Path:
    """A zip64 whose storages are (key, size, first bytes); the rest of each is a hole in the file."""
    directory = b""
    with path.open("wb") as file:
        for name, size, content in [
            ("a/data.pkl", len(pickle), pickle),
            *((f"a/data/{k}", n, c) for k, n, c in storages),
        ]:
            start = file.tell()
            encoded = name.encode()
            sizes = struct.pack("<HHQQ", 1, 16, size, size)
            file.write(struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, 0, 0, 0, 0, 2**32 - 1, 2**32 - 1, len(encoded), 20))
            file.write(encoded + sizes + content)
            file.seek(size - len(content), 1)
            more = struct.pack("<HHQQQ", 1, 24, size, size, start)
            directory += struct.pack(
                "<4s6H3I5H2I",
                *(b"PK\1\2", 45, 45, 0, 0, 0, 0, 0, 2**32 - 1, 2**32 - 1),
                *(len(encoded), len(more), 0, 0, 0, 0, 2**32 - 1),
            )
            directory += encoded + more
        start = file.tell()
        count = len(storages) + 1
        file.write(directory)
        file.write(struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), start))
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, start + len(directory), 1))
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2**16 - 1, 2**16 - 1, 2**32 - 1, 2**32 - 1, 0))
    return path
