"""Named rules that format files choose by name: aux-layer numberings and spellings of rope, each with its inverse.

A convention says which `hidden_states` index (0 = embedding output, k = after k decoder layers) an id means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Convention:
    """A numbering of aux layers: `decode(ids, n)` gives hidden_states indices, `encode` is its inverse.

    `n` is the verifier's number of decoder layers, None where unknown.  `encode` returns None where the numbering has
    no way to say the list.
    """

    name: str
    says: str
    decode: Callable[[Ids, int | None], Ids]
    propose: Callable[[Ids, int | None], tuple[Ids, ...]]

    def encode(self, states: Ids, n: int | None) -> Ids | None:
        return next((ids for ids in self.propose(states, n) if self.decode(ids, n) == states), None)


def _shift(ids: Sequence[int], by: int) -> Ids:
    return tuple(i + by for i in ids)


CONVENTIONS: Mapping[str, Convention] = {
    rule.name: rule
    for rule in (
        Convention(
            "hidden_states",
            "id k is hidden_states[k]",
            lambda ids, n: ids,
            lambda states, n: (states,),
        ),
        Convention(
            "layer_output",
            "id k is the output of layer k, hidden_states[k+1]",
            lambda ids, n: _shift(ids, 1),
            lambda states, n: (_shift(states, -1),),
        ),
        Convention(
            "layer_output_if_first_is_1",
            "id k is the output of layer k where the first id is 1, and hidden_states[k] otherwise",
            lambda ids, n: _shift(ids, 1) if ids[:1] == (1,) else ids,
            lambda states, n: (_shift(states, -1), states),
        ),
        Convention(
            "layer_output_unless_last_is_n",
            "id k is hidden_states[k] where the largest id is the verifier's layer count, else the output of layer k",
            lambda ids, n: ids if ids and n is not None and max(ids) == n else _shift(ids, 1),
            lambda states, n: (states, _shift(states, -1)),
        ),
    )
}


def default_states(places: Sequence[str], n: int) -> Ids:
    """A default list such as ("2", "n//2", "n-3") for a verifier of n layers, as hidden_states indices."""
    known = {"n": n, "n//2": n // 2}

    def one(place: str) -> int:
        for base in ("n//2", "n"):
            if place.startswith(base):
                rest = place.removeprefix(base)
                return known[base] + (int(rest) if rest else 0)
        return int(place)

    return tuple(one(place) for place in places)


# --- rope -------------------------------------------------------------------------------------------------------------

Rope = dict[str, Any]
DEFAULT_THETA = (
    10000.0  # of transformers' LlamaConfig and Qwen3Config, and of every engine's reader, where none is written
)


def read_rope(block: Mapping[str, Any]) -> tuple[Rope | None, list[str]]:
    """The rope of a decoder block in either spelling, and what is wrong with it.

    transformers 5 writes `rope_parameters`, transformers 4 `rope_theta` beside `rope_scaling` (whose kind may be called
    `type`).  Where both are there, readers of transformers 5 follow `rope_parameters`.
    """
    legacy: Rope = {}
    if block.get("rope_theta") is not None:
        legacy["rope_theta"] = block["rope_theta"]
    if isinstance(block.get("rope_scaling"), dict):
        legacy |= _named(block["rope_scaling"])
    modern = block.get("rope_parameters")
    if not isinstance(modern, dict) or not modern:
        found, wrong = legacy, []
    else:
        found = {**({"rope_theta": legacy["rope_theta"]} if "rope_theta" in legacy else {}), **_named(modern)}
        wrong = [
            f"{key} is {legacy[key]!r} in the transformers 4 spelling and {modern[key]!r} in rope_parameters"
            for key in legacy
            if key in modern and modern[key] != legacy[key]
        ]
    if block.get("partial_rotary_factor") is not None:
        found.setdefault("partial_rotary_factor", block["partial_rotary_factor"])
    if not found:
        return None, wrong
    return {"rope_type": "default", "rope_theta": DEFAULT_THETA} | found, wrong


def _named(scaling: Mapping[str, Any]) -> Rope:
    named = {("rope_type" if key == "type" and "rope_type" not in scaling else key): v for key, v in scaling.items()}
    return {key: value for key, value in named.items() if value is not None and key != "type"}


def write_rope(rope: Rope, spellings: Sequence[str]) -> dict[str, Any]:
    """The decoder-block fields that say this rope in the wanted spellings ("rope_parameters", "rope_theta")."""
    block: dict[str, Any] = {}
    if "rope_theta" in spellings:
        block["rope_theta"] = rope["rope_theta"]
        scaling = {k: v for k, v in rope.items() if k not in ("rope_theta", "partial_rotary_factor")}
        if scaling != {"rope_type": "default"}:
            block["rope_scaling"] = scaling
        if "partial_rotary_factor" in rope:
            block["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if "rope_parameters" in spellings:
        block["rope_parameters"] = dict(rope)
    return block


ROPE_FIELDS = ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")
