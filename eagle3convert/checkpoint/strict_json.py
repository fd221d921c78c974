"""JSON read strictly: what Python's reader lets pass (a repeated key, NaN, 1e999) is an error here."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from eagle3convert.checkpoint.stored import foreign_start
from eagle3convert.errors import CheckpointError


class _DefectError(ValueError):
    """Why a text that Python's reader would accept is not accepted."""


def parse_object(raw: bytes, what: str) -> dict[str, Any]:
    """The JSON object that ``raw`` (UTF-8) holds; ``what`` names the text in messages.

    Raises CheckpointError for anything that is not one JSON object with distinct keys and finite numbers.
    """
    foreign = foreign_start(what, raw[:64])
    if foreign is not None:
        raise CheckpointError(foreign)
    if not raw.strip():
        raise CheckpointError(f"{what}: empty; a JSON object was wanted. Fetch or save the file again.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{what}: not UTF-8 text (byte {error.start} is 0x{raw[error.start]:02x}), so it is no JSON. Fetch or save "
            "the file again."
        ) from error
    try:
        value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{what}: not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}. The file was cut short "
            "or edited by hand; correct it or fetch it again."
        ) from error
    except _DefectError as error:
        raise CheckpointError(f"{what}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what}: not usable as JSON: {error}.") from error
    if "\\u" in text:
        _check_text(value, what)
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{what}: holds a JSON {_kind(value)} where an object ({{...}}) was wanted. Correct the file or fetch it "
            "again."
        )
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DefectError(
                    f"the key '{key}' is given twice in one object, and readers differ in which one they take. Keep "
                    "the right one and delete the other."
                )
            seen.add(key)
    return result


def _no_constant(word: str) -> NoReturn:
    raise _DefectError(f"holds {word}, which is no JSON number. Replace it with a finite number or null.")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _DefectError(f"the number {digits[:40]} is too large to be read. Replace it with a finite number.")
    return value


def _check_text(value: Any, what: str) -> None:
    """An escaped half of a surrogate pair is text that no file can be written with."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"{what}: holds the escape \\u{ord(error.object[error.start]):04x}, half of a character. Correct the text."
        ) from error


def _kind(value: object) -> str:
    if value is None:
        return "null"
    return {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}.get(type(value), "value")
