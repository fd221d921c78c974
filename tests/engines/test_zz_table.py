"""The table in docs/engines.md is what the tests of this run found.  Last of its folder, for it looks back at them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from .engines import ROOT
from .matrix import DRAFTERS, ENGINES, FAULTS, FOUND, VERIFIERS, columns, table

pytestmark = pytest.mark.engine
PAGE = ROOT / "docs" / "engines.md"
BEGIN, END = "<!-- tables: written by tests/engines/test_zz_table.py -->", "<!-- tables: end -->"


def tables() -> str:
    return "\n\n".join(
        (
            table(FOUND, "drafter", DRAFTERS),
            "Whether SGLang's verifiers, by `model_type`, capture its own three layers, and a list with the embedding:",
            table(FOUND, "verifier", VERIFIERS),
            "And what becomes of two faults when nobody converts or examines the drafter:",
            table(FOUND, "fault", FAULTS),
        )
    )


def test_the_page_says_what_the_tests_found(request: pytest.FixtureRequest) -> None:
    ran = {item.path for item in request.session.items}
    if not set(Path(__file__).parent.glob("test_*.py")) <= ran or request.session.testsfailed:
        pytest.skip("only a whole run that passed knows every cell")
    text, told = PAGE.read_text(encoding="utf-8"), tables()
    begin, _, rest = text.partition(BEGIN)
    before, _, end = rest.partition(END)
    if request.config.getoption("--write-engine-table"):
        versions = ", ".join(f"{ENGINES[engine]} {release}" for engine, release in columns(FOUND))
        date = datetime.now(UTC).date().isoformat()
        page = f"{begin}{BEGIN}\n\nRun on {date} with {versions}.\n\n{told}\n\n{END}{end}"
        PAGE.write_text(page, encoding="utf-8")
        return
    stored = re.sub(r"^\s*Run on .*?\n\n", "", before, flags=re.S).strip()
    assert stored == told, "write it anew: pytest -m engine --write-engine-table"
