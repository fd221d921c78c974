from __future__ import annotations

import pytest

from eagle3convert.checkpoint.strict_json import parse_object
from eagle3convert.errors import CheckpointError

from .files import LFS_POINTER


def test_an_object_is_read_with_or_without_a_byte_order_mark() -> None:
    assert parse_object(b'{"a": [1, 2.5, null]}', "c") == {"a": [1, 2.5, None]}
    assert parse_object(b'\xef\xbb\xbf{"a": "\\u00e9"}', "c") == {"a": "\u00e9"}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b'{"a": 1', "not valid JSON: .* at line 1, column 8"),
        (b'{"a": 1}}', "not valid JSON"),
        (b"[1]", "holds a JSON array where an object"),
        (b"null", "holds a JSON null"),
        (b'"x"', "holds a JSON string"),
        (b"true", "holds a JSON boolean"),
        (b"3", "holds a JSON number"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' is given twice"),
        (b'{"a": NaN}', "holds NaN"),
        (b'{"a": -Infinity}', "holds -Infinity"),
        (b'{"a": 1e999}', "1e999 is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not usable as JSON"),
        (b"[" * 100_000, "not usable as JSON"),
        (b"\xff\xfe{", "not UTF-8 text .byte 0 is 0xff"),
        (b'{"a\\ud800": 1}', r"the escape \\ud800, half of a character"),
        (LFS_POINTER, "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "web page"),
    ],
)
def test_each_defect_is_a_sentence_that_names_the_text(raw: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=f"(?s)^dir/config.json: .*{message}"):
        parse_object(raw, "dir/config.json")
