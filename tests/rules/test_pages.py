"""The page of every code says what it means, why it matters and how to fix it."""

from __future__ import annotations

import re

import pytest

from eagle3convert.explain import explanation, listing

CODES = list(listing())
REFERENCE = re.compile(r"[\w.-]+/[\w.-]+(#\d+|@[0-9a-f]+| [\w./-]+\.\w+)?")


@pytest.mark.parametrize("code", CODES)
def test_page(code: str) -> None:
    page = explanation(code)
    head, empty, *body = page["text"].split("\n")
    assert head == f"{code} ({page['severity']})"
    assert empty == ""
    text = "\n".join(body)
    assert page["title"].endswith((".", "…"))
    assert page["title"].split()[0] in text
    sections = set(re.findall(r"^([A-Z][a-z ]+):", text, flags=re.MULTILINE))
    assert sections & {"Why it matters", "What happens", "What it means", "How it happens", "Fix"}, (
        "the page is a title only"
    )
    if page["severity"] != "note":
        assert "Fix:" in text, "the page does not say how to fix it"


@pytest.mark.parametrize("code", CODES)
def test_references_are_public_threads(code: str) -> None:
    for line in re.findall(r"^Reference: (.*)\.$", explanation(code)["text"], flags=re.MULTILINE):
        assert REFERENCE.match(line), line
