"""Files of torch.save read without torch, and without running anything that a pickle asks for."""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from typing import Any, Final, NamedTuple, NoReturn

from eagle3convert.checkpoint.state_dict import pick_state_dict
from eagle3convert.checkpoint.stored import DTYPE_BYTES, LocalFile, StoredTensor, foreign_start
from eagle3convert.checkpoint.torch_fallback import load_with_torch
from eagle3convert.checkpoint.torch_zip import Entry, read_entries
from eagle3convert.errors import CheckpointError

MAX_PICKLE_BYTES: Final = 100_000_000

_STORAGES: Final = {
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "DoubleStorage": "F64",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "ComplexFloatStorage": "C64",
}

TORCH_DTYPES: Final = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float64": "F64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
"""The safetensors names of torch's dtypes."""


class NeedsTorchError(Exception):
    """Why a file that may be good cannot be read without torch; the text follows the file's name."""


class _Dtype(NamedTuple):
    name: str


class _StorageType(NamedTuple):
    """``dtype`` is None for untyped storages, whose length is in bytes."""

    dtype: str | None


class _Storage(NamedTuple):
    dtype: str | None
    key: str
    numel: int


class _Tensor(NamedTuple):
    """What a pickle says about a tensor; nothing of it is checked before ``_locate``."""

    storage: Any
    offset: Any
    shape: Any
    stride: Any
    dtype: str | None


class _InertUnpickler(pickle.Unpickler):
    """Reads a state dict's pickle into descriptions; every global it knows is a stand-in that does nothing.

    The stand-ins are tuples without attributes that could be set, and functions and a class made anew for
    each file, so that a pickle cannot change anything that outlives the reading of it.
    """

    def __init__(self, data: bytes, file: str) -> None:
        super().__init__(io.BytesIO(data))
        self._file = file
        self._known = _stand_ins()

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}.{name}"
        known = self._known.get(path)
        if known is not None:
            return known
        if module.partition(".")[0] in ("torch", "collections"):
            raise NeedsTorchError(f"its pickle asks for {path}")
        raise CheckpointError(
            f"{self._file}: its pickle asks for {path}, which is no part of a state dict: loading it elsewhere could "
            "run a program hidden in it. Nothing was run. Get the drafter as safetensors, from a source you trust."
        )

    def persistent_load(self, pid: Any) -> _Storage:
        match pid:
            case ("storage", _StorageType(dtype=dtype), str(key), str(), int(numel)):
                return _Storage(dtype, key, numel)
        raise CheckpointError(f"{self._file}: its pickle describes a storage as {str(pid)[:100]}, which is not known.")


def _stand_ins() -> dict[str, Any]:
    """The globals that a state dict's pickle may name, by their full names."""

    class Ordered(dict[Any, Any]):
        """A dict that drops the attributes a pickle gives it (torch adds ``_metadata``)."""

        def __setstate__(self, state: Any) -> None:
            pass

    def tensor_v2(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> _Tensor:
        return _Tensor(storage, offset, shape, stride, None)

    def tensor_v3(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> _Tensor:
        dtype = next((item for item in rest if isinstance(item, _Dtype)), None)
        return _Tensor(storage, offset, shape, stride, None if dtype is None else dtype.name)

    def parameter(data: Any, *rest: Any) -> Any:
        return data

    def size(items: Any = ()) -> tuple[Any, ...]:
        return tuple(items)

    known: dict[str, Any] = {
        "collections.OrderedDict": Ordered,
        "torch._utils._rebuild_tensor_v2": tensor_v2,
        "torch._utils._rebuild_tensor_v3": tensor_v3,
        "torch._utils._rebuild_parameter": parameter,
        "torch.Size": size,
        "torch.storage.UntypedStorage": _StorageType(None),
        "torch.UntypedStorage": _StorageType(None),
    }
    known.update({f"torch.{name}": _StorageType(dtype) for name, dtype in _STORAGES.items()})
    known.update({f"torch.{name}": _Dtype(dtype) for name, dtype in TORCH_DTYPES.items()})
    return known


def read_torch_file(file: LocalFile) -> tuple[dict[str, StoredTensor], list[str]]:
    """The tensors of a file of torch.save in the order of their data, and sentences about the rest.

    What cannot be read by offsets alone (the format before torch 1.6, tensors that are not contiguous,
    globals that only torch knows) is handed to torch, which runs nothing either; without torch it is a
    CheckpointError that says so. Raises CheckpointError for damaged and hostile files.
    """
    size = file.size
    start = file.read(0, min(size, 64))
    foreign = foreign_start(file.name, start)
    if foreign is not None:
        raise CheckpointError(foreign)
    try:
        if start.startswith(b"PK"):
            return _read_zip(file)
        if not start.startswith(b"\x80"):
            raise CheckpointError(f"{file.name}: is no file of torch.save ({size} bytes). Fetch or save it again.")
        raise NeedsTorchError("it is in the format that torch.save wrote before torch 1.6")
    except NeedsTorchError as reason:
        return load_with_torch(file, str(reason), mmap=start.startswith(b"PK"), dtypes=TORCH_DTYPES)


def _read_zip(file: LocalFile) -> tuple[dict[str, StoredTensor], list[str]]:
    entries = read_entries(file)
    order = entries.get("byteorder")
    if order is not None and file.read(order.start, order.size).strip() != b"little":
        raise NeedsTorchError("its numbers are not little-endian")
    descriptions, notes = _describe(file, entries["data.pkl"])
    tensors = [_locate(name, item, file, entries) for name, item in descriptions.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.nbytes))
    return {tensor.name: tensor for tensor in tensors}, notes


def _describe(file: LocalFile, entry: Entry) -> tuple[dict[str, _Tensor], list[str]]:
    """What the pickle of a state dict says about its tensors, and sentences about what else it holds."""
    if entry.size > MAX_PICKLE_BYTES:
        raise CheckpointError(f"{file.name}: its pickle is {entry.size} bytes long, too long for a state dict.")
    data = file.read(entry.start, entry.size)
    try:
        _check_memo(data)
        return pick_state_dict(_InertUnpickler(data, file.name).load(), _Tensor, file.name)
    except (CheckpointError, NeedsTorchError):
        raise
    except Exception as error:  # a damaged pickle may raise anything at all
        raise CheckpointError(
            f"{file.name}: its pickle cannot be read ({type(error).__name__}: {str(error)[:200]}). The file is "
            "damaged; fetch or save it again."
        ) from error


def _check_memo(data: bytes) -> None:
    """Refuses a pickle whose memo numbers exceed its length: the reader would reserve that many places."""
    for code, argument, _ in pickletools.genops(data):
        if code.name.endswith("PUT") and isinstance(argument, int) and argument > len(data):
            raise pickle.UnpicklingError(f"memo number {argument} in a pickle of {len(data)} bytes")


def _locate(name: str, tensor: _Tensor, file: LocalFile, entries: dict[str, Entry]) -> StoredTensor:
    """The bytes that a described tensor lies in."""

    def refuse(what: str) -> NoReturn:
        raise CheckpointError(
            f"{file.name}: tensor '{name}' {what}. The file is damaged or was not made by torch.save; save it again."
        )

    storage, offset, shape, stride = tensor.storage, tensor.offset, tensor.shape, tensor.stride
    if not isinstance(storage, _Storage) or not _counts((offset,)) or not _counts(shape) or not _counts(stride):
        refuse("is described by something else than a storage, an offset, a shape and strides")
    if len(shape) != len(stride):
        refuse(f"has {len(shape)} dimensions and {len(stride)} strides")
    dtype = tensor.dtype or storage.dtype
    if dtype is None:
        refuse("has no dtype")
    entry = entries.get(f"data/{storage.key}")
    if entry is None:
        refuse(f"lies in the storage {storage.key!r}, which is not in the file")
    itemsize = DTYPE_BYTES[dtype]
    room = storage.numel * (1 if storage.dtype is None else DTYPE_BYTES[storage.dtype])
    if room > entry.size:
        refuse(f"lies in a storage of {room} bytes, of which the file holds {entry.size}")
    numel = math.prod(shape)
    start = offset * itemsize if numel else 0
    if start + numel * itemsize > room:
        refuse(f"ends at byte {start + numel * itemsize} of a storage of {room} bytes")
    if not _contiguous(shape, stride):
        raise NeedsTorchError(f"tensor '{name}' is not contiguous (shape {list(shape)}, strides {list(stride)})")
    return StoredTensor(name, dtype, tuple(shape), file, entry.start + start, numel * itemsize)


def _counts(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(type(item) is int and item >= 0 for item in value)


def _contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether the elements follow each other row by row; the stride of a dimension of one element is free."""
    if 0 in shape:
        return True
    wanted = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != wanted:
            return False
        wanted *= size
    return True
