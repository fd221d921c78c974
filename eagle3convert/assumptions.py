"""Assumptions: what a caller may state in place of the checkpoint (`--assume KEY=VALUE`), and what values may be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from eagle3convert.canonical import DECODER_FIELDS, FEATURES, is_whole
from eagle3convert.errors import UsageError


class Kind(NamedTuple):
    """What a value may be, in words and as a test."""

    wanted: str
    fits: Callable[[Any], bool]


def _is_size(value: Any) -> bool:
    return is_whole(value) and value > 0


WHOLE = Kind("a whole number above 0", _is_size)
NUMBER = Kind("a number above 0", lambda value: type(value) in (int, float) and value > 0)
WORD = Kind("a word", lambda value: isinstance(value, str) and value != "")
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
WINDOW = Kind("a whole number above 0, or null", lambda value: value is None or _is_size(value))
ORDER = Kind("ascending or as_listed", lambda value: value in ("ascending", "as_listed"))

KINDS: dict[str, Kind] = {
    **{name: {"bool": FLAG, "window": WINDOW}[spec.kind] for name, spec in FEATURES.items()},
    **dict.fromkeys((*DECODER_FIELDS, "target_hidden_size", "draft_vocab_size"), WHOLE),
    "hidden_act": WORD,
    "rms_norm_eps": NUMBER,
    "fc_order": ORDER,
    "verifier.name": WORD,
    "verifier.model_type": WORD,
    "verifier.num_hidden_layers": WHOLE,
    "verifier.hidden_size": WHOLE,
    "verifier.vocab_size": WHOLE,
    "verifier.max_position_embeddings": WHOLE,
}
"""Key -> what its value may be."""


def parse_assumptions(pairs: Iterable[str]) -> dict[str, Any]:
    """`KEY=VALUE` pairs as facts; the value is JSON, or a bare word."""
    facts: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(_say_which(pair))
        try:
            facts[key] = json.loads(text)
        except ValueError:
            facts[key] = text
    check_assumptions(facts)
    return facts


def check_assumptions(facts: Mapping[str, Any]) -> None:
    """UsageError for a key that is none, or a value that its key cannot have."""
    for key, value in facts.items():
        shown = value if isinstance(value, str) else json.dumps(value, default=repr)
        if key not in KINDS:
            raise UsageError(_say_which(f"{key}={shown}"))
        if not KINDS[key].fits(value):
            raise UsageError(f"--assume {key}={shown}: {key} is {KINDS[key].wanted}, not {value!r}.")


def _say_which(pair: str) -> str:
    return f"--assume {pair}: say KEY=VALUE with one of these keys: {', '.join(sorted(KINDS))}."
