"""`schemas/format.schema.json`: the JSON Schema of format files, generated from the Pydantic models.

Run `python -m eagle3convert.schema_file` in a checkout after a change of `eagle3convert.schema`.
"""

from __future__ import annotations

import json
from typing import Any

from eagle3convert.formats import schemas_folder

NAME = "format.schema.json"


def format_json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) that every file in `schemas/` obeys."""
    from eagle3convert.schema import FormatSchema

    schema = FormatSchema.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def format_json_text() -> str:
    return json.dumps(format_json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (schemas_folder() / NAME).write_text(format_json_text(), encoding="utf-8")
