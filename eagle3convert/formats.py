"""Finding and loading format files: those of the package and those of the user."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3convert.errors import FormatError

if TYPE_CHECKING:
    from eagle3convert.schema import FormatSchema

_HERE = Path(__file__).resolve().parent


def schemas_folder() -> Path:
    """The folder of format files: beside the package's code in a wheel, one level up in a checkout."""
    inside = _HERE / "schemas"
    return inside if inside.is_dir() else _HERE.parent / "schemas"


@cache
def format_names() -> tuple[str, ...]:
    """The names of the formats that the package knows, sorted."""
    return tuple(sorted(file.stem for file in schemas_folder().glob("*.toml")))


def load_format_file(path: Path) -> FormatSchema:
    """Read one format file; every defect is a FormatError that names the file and the field."""
    from pydantic import ValidationError

    from eagle3convert.schema import FormatSchema

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormatError(f"{path}: there is no such format file.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FormatError(f"{path}: this is no readable TOML file: {error}.") from None
    try:
        schema = FormatSchema.model_validate(data)
    except ValidationError as error:
        defects = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}{_found(e['input'])}"
            for e in error.errors(include_url=False)
        )
        raise FormatError(f"{path}: {defects}. `schemas/format.schema.json` describes every field.") from None
    lender = schema.aux_layers.families_of
    if lender is None:
        return schema
    # The releases of the lender's families are its own; the borrower runs the lender as it is today.
    undated = dict.fromkeys(("since", "convention_since", "embedding_since", "final_since"))
    families = tuple(f.model_copy(update=undated) for f in load_format(lender).aux_layers.families)
    aux = schema.aux_layers.model_copy(update={"families": families})
    return schema.model_copy(update={"aux_layers": aux})


def _found(value: object) -> str:
    """The value found, where it is short enough to be shown."""
    return f" (found {value!r})" if isinstance(value, str | int | float) else ""


@cache
def load_format(name: str) -> FormatSchema:
    """The format of that name; an unknown name is a FormatError that lists the known ones."""
    if name not in format_names():
        raise FormatError(
            f"{name!r} is no format that eagle3convert knows. Known formats: {', '.join(format_names())}. "
            f"A format of your own goes into a file given with --format-file."
        )
    return load_format_file(schemas_folder() / f"{name}.toml")


def find_format(name: str, files: Sequence[str | Path] = ()) -> FormatSchema:
    """The format of that name, from the user's own files first."""
    own = [load_format_file(Path(file)) for file in files]
    return next((schema for schema in own if schema.name == name), None) or load_format(name)


def all_formats() -> tuple[FormatSchema, ...]:
    return tuple(load_format(name) for name in format_names())
