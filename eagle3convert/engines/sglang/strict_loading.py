"""Loading of a drafter's tensors into SGLang's parameters, with nothing dropped and nothing left unfilled."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

# SGLang keeps these projections side by side in one parameter: its part of the name, and which part of it they fill.
PACKED: dict[str, tuple[str, str | int]] = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
VOCAB_TENSORS = ("d2t", "t2d")


def place_of(name: str) -> tuple[str, str | int | None]:
    """(SGLang's parameter, which part of it) for a tensor's name in the drafter's file."""
    *path, module, leaf = ("", *name.split("."))
    packed, part = PACKED.get(module, (module, None))
    inner = ".".join([*path[1:], packed, leaf])
    return (inner if inner.startswith("lm_head.") else f"model.{inner}"), part


def load_strictly(
    model: nn.Module, weights: Iterable[tuple[str, Tensor]], optional: frozenset[str], whole: bool = True
) -> tuple[frozenset[str], dict[str, Tensor]]:
    """Load every tensor; the parameters that were filled, and d2t and t2d, which fill none.

    `optional` names parameters that may stay unfilled, because SGLang shares the verifier's.  With `whole` false the
    tensors may be some of the drafter's (an update of running weights).  Raises ValueError, naming every one, where a
    tensor has no place, or where a parameter, or a part of one, is left unfilled.
    """
    from sglang.srt.model_loader.weight_utils import default_weight_loader

    parameters = dict(model.named_parameters())
    wanted: dict[str, set[str | int | None]] = {}
    for name in parameters:
        wanted[name] = {part for packed, part in PACKED.values() if f".{packed}." in name} or {None}
    vocab: dict[str, Tensor] = {}
    filled: set[str] = set()
    dropped = []
    for name, tensor in weights:
        if name in VOCAB_TENSORS:
            vocab[name] = tensor
            continue
        place, part = place_of(name)
        if place not in parameters:
            dropped.append(name)
            continue
        parameter = parameters[place]
        loader = getattr(parameter, "weight_loader", default_weight_loader)
        loader(parameter, tensor, *(() if part is None else (part,)))
        wanted[place].discard(part)
        filled.add(place)
    if dropped:
        raise ValueError(
            f"{', '.join(dropped)}: no such tensor in this draft model, so what it holds would be lost. Convert the "
            f"drafter with `eagle3convert auto sglang-plugin IN OUT`; `eagle3convert doctor IN` says what is wrong."
        )
    left = [name for name, parts in wanted.items() if parts and name not in optional]
    if whole and left:
        raise ValueError(
            f"{', '.join(left)}: not filled, or not whole, from the drafter's files, so it would draft with random "
            f"weights. `eagle3convert doctor IN` says which tensors are missing."
        )
    return frozenset(filled), vocab


def target_ids(d2t: Tensor, t2d: Tensor | None, vocab_size: int) -> Tensor:
    """The target id of each draft id, int64 [draft_vocab_size]; ValueError where the map cannot be right.

    `d2t` holds offsets.  Draft ids need not be in ascending order of their target ids: some trainers sort them by
    frequency, so only the set is compared with `t2d`.
    """
    ids = d2t.long() + torch.arange(d2t.shape[0], device=d2t.device)
    outside = (ids < 0) | (ids >= vocab_size)
    if bool(outside.any()):
        first = int(outside.nonzero()[0])
        raise ValueError(
            f"d2t[{first}] = {int(d2t[first])}: draft id {first} would be target id {int(ids[first])} of {vocab_size}. "
            f"d2t must hold offsets (target = draft + d2t[draft]); these look like absolute ids. "
            f"eagle3convert recodes them."
        )
    if len(ids.unique()) != len(ids):
        raise ValueError("d2t: two draft ids are one target id; d2t must hold offsets (target = draft + d2t[draft]).")
    if t2d is not None and not torch.equal(ids.sort().values, t2d.to(ids.device).bool().nonzero().flatten()):
        raise ValueError("d2t and t2d select different target ids, so one of them is wrong; `eagle3convert doctor IN`.")
    return ids
