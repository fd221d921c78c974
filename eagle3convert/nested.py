"""Dotted paths into nested config objects, and the difference of two configs as a patch."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from typing import Any

Json = Any
Change = dict[str, Any]  # {"at": [keys…], "value": …} sets, {"at": [keys…]} removes


class _Absent:
    def __bool__(self) -> bool:
        return False


ABSENT: Any = _Absent()


def get(config: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, or ABSENT."""
    node: Any = config
    for key in path.split("."):
        if not isinstance(node, Mapping) or key not in node:
            return ABSENT
        node = node[key]
    return node


def put(config: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path, making the objects on the way."""
    *parents, last = path.split(".")
    node = config
    for key in parents:
        node = node.setdefault(key, {})
    node[last] = value


def leaves(config: Mapping[str, Any], whole: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted path with its value; objects whose path is in `whole` count as one value, and so do empty ones."""
    for key, value in config.items():
        path = prefix + key
        if isinstance(value, Mapping) and value and path not in whole:
            yield from leaves(value, whole, f"{path}.")
        else:
            yield path, value


def difference(old: Mapping[str, Any], new: Mapping[str, Any], at: tuple[str, ...] = ()) -> list[Change]:
    """The changes that turn `old` into `new`; lists count as one value."""
    changes: list[Change] = [{"at": [*at, key]} for key in old if key not in new]
    for key, value in new.items():
        here = (*at, key)
        if key in old and isinstance(value, Mapping) and isinstance(old[key], Mapping):
            changes += difference(old[key], value, here)
        elif key not in old or not same(old[key], value):
            changes.append({"at": list(here), "value": value})
    return changes


def patched(config: Mapping[str, Any], changes: list[Change]) -> dict[str, Any]:
    """`config` with the changes made; it stays as it was."""
    result: dict[str, Any] = copy.deepcopy(dict(config))
    for change in changes:
        *parents, last = change["at"]
        node: Any = result
        for key in parents:
            node = node.setdefault(key, {}) if isinstance(node, dict) else {}
        if "value" in change:
            node[last] = copy.deepcopy(change["value"])
        else:
            node.pop(last, None)
    return result


def same(a: Any, b: Any) -> bool:
    """JSON equality: 1 and 1.0 differ, True and 1 differ, keys in any order."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)
