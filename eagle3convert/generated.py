"""The files of a checkout that are generated: JSON Schemas in `schemas/`, and the table of codes in README.md.

Run `python -m eagle3convert.generated` in a checkout after a change of a schema model or a rule; a test holds the files
against these functions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eagle3convert.explain import listing
from eagle3convert.formats import schemas_folder

FORMAT_SCHEMA, DOCTOR_SCHEMA = "format.schema.json", "doctor.schema.json"
DIALECT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
CODES_BEGIN, CODES_END = "<!-- codes: generated -->", "<!-- codes: end -->"


def format_json_schema() -> dict[str, Any]:
    """The JSON Schema that every format file in `schemas/` obeys."""
    from eagle3convert.schema import FormatSchema

    return {**DIALECT, **FormatSchema.model_json_schema()}


def doctor_json_schema() -> dict[str, Any]:
    """The JSON Schema of what `eagle3convert doctor --json` prints."""
    from eagle3convert.doctor_report import DoctorReport

    return {**DIALECT, **DoctorReport.model_json_schema()}


def codes_table() -> str:
    """The table of codes as Markdown, between its two markers."""
    rows = [f"| {code} | {text.replace('|', chr(92) + '|')} |" for code, text in listing().items()]
    return "\n".join([CODES_BEGIN, "| code | what it says |", "|---|---|", *rows, CODES_END])


def with_codes(readme: str) -> str:
    """A README with the table of codes brought up to date."""
    before, _, rest = readme.partition(CODES_BEGIN)
    _, _, after = rest.partition(CODES_END)
    return f"{before}{codes_table()}{after}"


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def generated_files() -> dict[Path, str]:
    """Every generated file of this checkout with the text that it should hold."""
    folder = schemas_folder()
    readme = folder.parent / "README.md"
    return {
        folder / FORMAT_SCHEMA: _text(format_json_schema()),
        folder / DOCTOR_SCHEMA: _text(doctor_json_schema()),
        readme: with_codes(readme.read_text(encoding="utf-8")),
    }


if __name__ == "__main__":
    for file, text in generated_files().items():
        file.write_text(text, encoding="utf-8")
