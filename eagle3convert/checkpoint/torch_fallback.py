"""Torch files that only torch can read, loaded by torch in the mode in which it runs nothing."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Mapping
from typing import Any, Final

from eagle3convert.checkpoint.state_dict import pick_state_dict
from eagle3convert.checkpoint.stored import LocalFile, MemoryFile, StoredTensor
from eagle3convert.errors import CheckpointError

_SAFE_SINCE: Final = (2, 6)
"""Before this release ``weights_only=True`` could be made to run code."""


def load_with_torch(
    file: LocalFile, reason: str, *, mmap: bool, dtypes: Mapping[str, str]
) -> tuple[dict[str, StoredTensor], list[str]]:
    """The tensors of ``file`` as torch loads them with ``weights_only=True``, and sentences about the rest.

    ``reason`` says why torch is needed and follows the file's name in messages; ``dtypes`` are the
    safetensors names of torch's dtypes. Raises CheckpointError where torch is not installed, too old, or
    refuses the file.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise CheckpointError(
            f"{file.name}: {reason}; such a file is read by torch, which is not installed. Install it with: pip "
            "install 'eagle3convert[torch]'"
        ) from error
    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if release < _SAFE_SINCE:
        raise CheckpointError(
            f"{file.name}: {reason}; torch {torch.__version__} can be made to run code by such a file. Install torch "
            "2.6 or newer with: pip install -U 'eagle3convert[torch]'"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = torch.load(file.path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # torch raises errors of many kinds for files that it does not read
        raise CheckpointError(
            f"{file.name}: {reason}, and torch does not read it either ({_brief(error)}). Nothing was run. Save the "
            "drafter's state dict again, best as safetensors."
        ) from error
    loaded, notes = pick_state_dict(value, torch.Tensor, file.name)
    notes.insert(0, f"{file.name}: {reason}; it was read through torch.")
    return {name: _stored(name, tensor, file, dtypes, torch) for name, tensor in loaded.items()}, notes


def _stored(name: str, tensor: Any, file: LocalFile, dtypes: Mapping[str, str], torch: Any) -> StoredTensor:
    dtype = dtypes.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None or tensor.layout != torch.strided or tensor.is_quantized:
        raise CheckpointError(
            f"{file.name}: tensor '{name}' is {tensor.dtype}, {tensor.layout}, which safetensors cannot hold. Save it "
            "as a plain dense tensor."
        )
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    # The view keeps the tensor, and with it the mapped file, alive.
    buffer = memoryview(flat.numpy()) if flat.numel() else memoryview(b"")
    return StoredTensor(name, dtype, tuple(tensor.shape), MemoryFile(file.name, buffer), 0, len(buffer))


def _brief(error: Exception) -> str:
    """The line of torch's message that names what was refused, without its advice to load it anyway."""
    text = str(error)
    match = re.search(r"(?:GLOBAL|[Uu]nsupported (?:global|class|operand))[^\n.]*[\w.]*", text)
    return (match.group(0) if match else text.strip().split("\n")[0])[:200] or type(error).__name__
