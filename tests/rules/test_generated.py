"""The generated files of a checkout are those that the code generates now."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3convert.explain import listing
from eagle3convert.generated import CODES_BEGIN, CODES_END, generated_files

FILES = generated_files()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_file_is_up_to_date(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == FILES[file], "run `python -m eagle3convert.generated`"


def test_readme_lists_every_code_once() -> None:
    readme = next(text for file, text in FILES.items() if file.name == "README.md")
    assert readme.count(CODES_BEGIN) == readme.count(CODES_END) == 1
    table = readme.split(CODES_BEGIN)[1].split(CODES_END)[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert [code for code in rows if code != "code"] == list(listing())
