"""The state dict within what a torch file holds, unwrapped where a trainer wrapped it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from eagle3convert.errors import CheckpointError

WRAPPERS: Final = ("state_dict", "model", "model_state_dict", "draft_state_dict")
"""Keys under which trainers put the weights when they save more than the weights."""

T = TypeVar("T")


def pick_state_dict(value: Any, kind: type[T], file: str) -> tuple[dict[str, T], list[str]]:
    """The tensors (objects of ``kind``) of a state dict by name, and sentences about what else was there.

    Raises CheckpointError where there is no state dict, more than one, or tensors that belong to no name.
    """
    if not isinstance(value, Mapping):
        raise CheckpointError(
            f"{file}: holds {_kind(value, kind)}, not a state dict (names with tensors). Save model.state_dict()."
        )
    notes: list[str] = []
    if not any(isinstance(item, kind) for item in value.values()):
        found = [key for key in WRAPPERS if _holds(value.get(key), kind)]
        if not found:
            raise CheckpointError(
                f"{file}: holds no tensors by name; its keys are {_listed(value)}. Save model.state_dict()."
            )
        if len(found) > 1:
            raise CheckpointError(
                f"{file}: holds weights both under '{found[0]}' and under '{found[1]}'. Save only the drafter's."
            )
        others = [key for key in value if key != found[0]]
        beside = f"; {_listed(others)} beside it not read" if others else ""
        notes.append(f"{file}: the weights are those under '{found[0]}'{beside}.")
        value = value[found[0]]
    return _tensors(value, kind, file, notes), notes


def _tensors(value: Mapping[Any, Any], kind: type[T], file: str, notes: list[str]) -> dict[str, T]:
    tensors: dict[str, T] = {}
    others: list[str] = []
    for name, item in value.items():
        if not isinstance(name, str):
            raise CheckpointError(f"{file}: the state dict has the key {name!r}, which is no name. Save it again.")
        if isinstance(item, kind):
            tensors[name] = item
        elif _any_tensor(item, kind):
            raise CheckpointError(
                f"{file}: '{name}' holds tensors inside {_kind(item, kind)}, beside tensors that stand by themselves. "
                "Save a flat state dict."
            )
        else:
            others.append(name)
    if others:
        notes.append(f"{file}: {_listed(others)} in the state dict: no tensors, not read.")
    return tensors


def _holds(value: Any, kind: type[Any]) -> bool:
    return isinstance(value, Mapping) and any(isinstance(item, kind) for item in value.values())


def _any_tensor(value: Any, kind: type[Any]) -> bool:
    """Whether a tensor lies anywhere inside; a list that holds itself or is shared is looked into once."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, kind):
            return True
        if isinstance(item, Mapping | list | tuple) and id(item) not in seen:
            seen.add(id(item))
            waiting.extend(item.values() if isinstance(item, Mapping) else item)
    return False


def _kind(value: object, kind: type[Any]) -> str:
    if isinstance(value, kind):
        return "a single tensor"
    return f"a {type(value).__name__}"


def _listed(names: Iterable[Any]) -> str:
    shown = [f"'{name}'"[:60] for name in names]
    most = 5
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "") or "none"
