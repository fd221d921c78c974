"""Captured hidden states: what the verifier computed on some text, in any of the three layouts that are read.

plain         safetensors with `token_ids` [T] int64, optional `sequence_starts` [N] int64 (the rows that begin a
              sequence), `hidden_states.{k}` [T, H] float for every captured state k (0 = embedding output, k = after k
              decoder layers, n = after the last one and before the final norm) and optional `verifier_argmax` [T]
              int64, the verifier's greedy token after each position
speculators   safetensors with `token_ids` [T] and `hidden_states` [T, layers, H], one sequence; the last layer is the
              verifier's output before its final norm, the others are the drafter's aux states in ascending order
SpecForge     torch files with `input_ids` [T], `aux_hidden_state` [T, A * H], `hidden_state` [T, H] (the output after
              the final norm) and `loss_mask` [T], one sequence

The last two do not number their states: they are taken for the layers that the drafter declares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3convert.checkpoint.safetensors import read_header
from eagle3convert.checkpoint.stored import LocalFile
from eagle3convert.errors import CheckpointError, UsageError
from eagle3convert.reference.cache import Packed
from eagle3convert.reference.weights import read_tensor

NUMBERED = re.compile(r"^hidden_states\.(\d+)$")
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)


@dataclass(frozen=True)
class CapturedStates:
    """Text of T tokens with the verifier's hidden states, in one or more sequences.

    `states` maps a hidden_states index to [T, H]; in a capture without numbers the keys are the declared aux layers, or
    0, 1, 2 … where these are unknown.  `output` is the verifier's last state, `output_normed` whether its final norm
    has been applied.  `counted` [T] marks the tokens that a drafter is asked to name.
    """

    token_ids: Tensor
    packed: Packed
    states: Mapping[int, Tensor]
    numbered: bool
    argmax: Tensor | None = None
    counted: Tensor | None = None
    output: Tensor | None = None
    output_normed: bool = False
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def length(self) -> int:
        return len(self.token_ids)


def read_states(files: Sequence[str | Path], aux_layers: tuple[int, ...] | None, aux_count: int) -> CapturedStates:
    """Read captured states from one or more files and join them; `aux_layers` name the states of an unnumbered capture.

    Raises UsageError where no file is given, CheckpointError, naming file and tensor, for one that cannot be used.
    """
    if not files:
        raise UsageError("No captured states are given. Name the files of captured hidden states with --states FILE.")
    return _joined([_read(Path(file), aux_layers, aux_count) for file in files])


def _read(path: Path, aux_layers: tuple[int, ...] | None, aux_count: int) -> CapturedStates:
    tensors, kind = _tensors(path)
    if "aux_hidden_state" in tensors:
        captured = _specforge(path, tensors, aux_layers, aux_count)
    elif any(NUMBERED.match(name) for name in tensors):
        captured = _plain(path, tensors)
    elif "hidden_states" in tensors:
        captured = _speculators(path, tensors, aux_layers, aux_count)
    else:
        raise CheckpointError(
            f"{path}: this {kind} file holds {', '.join(sorted(tensors)[:6]) or 'nothing'}, and none of "
            f"hidden_states.K, hidden_states or aux_hidden_state. Capture the states again in a layout that is read."
        )
    for name, values in (("token ids", captured.token_ids), ("verifier_argmax", captured.argmax)):
        if values is not None and len(values) and int(values.min()) < 0:
            raise CheckpointError(f"{path}: {name} hold {int(values.min())}; a token id is not negative.")
    return captured


def _tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    if path.suffix == ".safetensors":
        file = LocalFile(path)
        try:
            return {name: read_tensor(stored) for name, stored in read_header(file)[0].items()}, "safetensors"
        finally:
            file.close()
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: the file does not exist.") from None
    except Exception as error:  # torch raises errors of many kinds for files that it does not read
        raise CheckpointError(
            f"{path}: torch does not read this file as plain tensors ({str(error).strip().splitlines()[0][:160]}). "
            f"Nothing in it was run. Captured states are .safetensors files or files of torch.save."
        ) from None
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path}: the file holds a {type(loaded).__name__}; a dictionary of tensors is wanted.")
    return {str(name): value for name, value in loaded.items() if isinstance(value, Tensor)}, "torch"


def _line(path: Path, tensors: Mapping[str, Tensor], name: str, length: int | None = None) -> Tensor:
    """An integer tensor [T] of a file, batch axes of one stripped."""
    if name not in tensors:
        raise CheckpointError(f"{path}: tensor '{name}' is missing; it holds {', '.join(sorted(tensors))}.")
    value = tensors[name]
    flat = value.reshape(-1)
    if value.dtype not in (*INTEGERS, torch.bool) or (value.dim() > 1 and value.shape[0] != 1):
        raise CheckpointError(f"{path}: tensor '{name}' is {value.dtype} {list(value.shape)}; integers [T] are wanted.")
    if length is not None and len(flat) != length:
        raise CheckpointError(f"{path}: tensor '{name}' has {len(flat)} entries, the text {length} tokens.")
    return flat.to(torch.int64)


def _float(path: Path, name: str, value: Tensor, length: int, axes: int) -> Tensor:
    """A float tensor [T, …] of so many axes, a batch axis of one stripped."""
    if value.dim() == axes + 1 and value.shape[0] == 1:
        value = value[0]
    if value.dim() != axes or value.shape[0] != length or not value.is_floating_point():
        wanted = "[T, layers, H]" if axes == 3 else "[T, H]"
        raise CheckpointError(
            f"{path}: tensor '{name}' is {value.dtype} {list(value.shape)}; floats {wanted} are wanted, T = {length}."
        )
    return value


def _plain(path: Path, tensors: Mapping[str, Tensor]) -> CapturedStates:
    ids = _line(path, tensors, "token_ids")
    count = len(ids)
    states = {int(m[1]): _float(path, n, t, count, 2) for n, t in tensors.items() if (m := NUMBERED.match(n))}
    starts = _line(path, tensors, "sequence_starts").tolist() if "sequence_starts" in tensors else [0]
    if starts[:1] != [0] or any(a >= b for a, b in zip(starts, [*starts[1:], count], strict=True)):
        raise CheckpointError(f"{path}: sequence_starts {starts[:6]} must begin with 0 and ascend below T = {count}.")
    argmax = _line(path, tensors, "verifier_argmax", count) if "verifier_argmax" in tensors else None
    ordered = dict(sorted(states.items()))
    return CapturedStates(
        ids, Packed(count, tuple(starts)), ordered, True, argmax, output=states[max(states)], files=(str(path),)
    )


def _speculators(
    path: Path, tensors: Mapping[str, Tensor], aux_layers: tuple[int, ...] | None, aux_count: int
) -> CapturedStates:
    ids = _line(path, tensors, "token_ids")
    stack = _float(path, "hidden_states", tensors["hidden_states"], len(ids), 3)
    keys = _keys(path, stack.shape[1] - 1, aux_layers, aux_count, "hidden_states, the verifier's output aside,")
    states = {key: stack[:, j] for j, key in enumerate(keys)}
    mask = _line(path, tensors, "loss_mask", len(ids)).bool() if "loss_mask" in tensors else None
    return CapturedStates(
        ids, Packed(len(ids)), states, False, counted=mask, output=stack[:, -1], files=(str(path),), notes=_UNNUMBERED
    )


def _specforge(
    path: Path, tensors: Mapping[str, Tensor], aux_layers: tuple[int, ...] | None, aux_count: int
) -> CapturedStates:
    ids = _line(path, tensors, "input_ids")
    wide = _float(path, "aux_hidden_state", tensors["aux_hidden_state"], len(ids), 2)
    output = tensors.get("hidden_state")
    output = _float(path, "hidden_state", output, len(ids), 2) if output is not None else None
    count = wide.shape[1] // output.shape[1] if output is not None else aux_count
    keys = _keys(path, count, aux_layers, aux_count, "aux_hidden_state")
    mask = _line(path, tensors, "loss_mask", len(ids)).bool() if "loss_mask" in tensors else None
    return CapturedStates(
        ids, Packed(len(ids)), dict(zip(keys, wide.chunk(count, dim=-1), strict=True)), False, None, mask, output, True,
        (str(path),), _UNNUMBERED,
    )  # fmt: skip


_UNNUMBERED = (
    "The captured states carry no layer numbers and are taken for the aux layers that the drafter declares, so a wrong "
    "list of layers cannot show here; a capture of numbered states (hidden_states.K) can show it.",
)


def _keys(path: Path, found: int, aux_layers: tuple[int, ...] | None, aux_count: int, what: str) -> tuple[int, ...]:
    if found != aux_count:
        raise CheckpointError(
            f"{path}: {what} holds {found} aux states, and the drafter's fc takes {aux_count}. Use the states that "
            f"this drafter was trained on, or a capture with numbered states (hidden_states.K)."
        )
    return aux_layers if aux_layers is not None and len(aux_layers) == aux_count else tuple(range(aux_count))


def _joined(parts: Sequence[CapturedStates]) -> CapturedStates:
    """The sequences of several files as one text; they must hold the same states."""
    first = parts[0]
    for part in parts[1:]:
        if part.numbered != first.numbered or part.states.keys() != first.states.keys():
            raise CheckpointError(
                f"{part.files[0]}: holds hidden states {sorted(part.states)}, and {first.files[0]} "
                f"{sorted(first.states)}. Give files that were captured alike."
            )
        here, there = (next(iter(p.states.values())).shape[1] for p in (part, first))
        if here != there:
            raise CheckpointError(f"{part.files[0]}: states of width {here}, and of {there} in {first.files[0]}.")
    if len(parts) == 1:
        return first
    starts, at = [], 0
    for part in parts:
        starts += [at + start for start in part.packed.starts]
        at += part.length

    def all_of(name: str) -> Tensor | None:
        found = [getattr(part, name) for part in parts]
        return torch.cat(found) if all(x is not None for x in found) else None

    return CapturedStates(
        torch.cat([p.token_ids for p in parts]), Packed(at, tuple(starts)),
        {k: torch.cat([p.states[k] for p in parts]) for k in first.states}, first.numbered, all_of("argmax"),
        all_of("counted"), all_of("output"), first.output_normed, tuple(f for p in parts for f in p.files), first.notes,
    )  # fmt: skip
