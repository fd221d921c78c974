"""The front matter of a card: read, merged with what a conversion knows, checked before the Hub sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from eagle3convert.formats import all_formats
from eagle3convert.hub.errors import PushRefused

_BLOCK: Final = re.compile(r"\A\ufeff?\s*---[ \t]*\r?\n(?P<yaml>.*?)(?:\r?\n)?^---[ \t]*(?:\r?\n|\Z)", re.S | re.M)
_REPO: Final = re.compile(r"^[A-Za-z0-9_][\w.-]*/[\w.-]+$")

_OF_THE_SOURCE: Final = ("tags", "base_model", "library_name", "new_version")
"""What is said of the source and does not hold of the converted drafter as it is."""

COMMON_TAGS: Final = ("speculative-decoding", "eagle3", "draft-model", "eagle3convert")


def split_card(text: str) -> tuple[dict[str, Any], str]:
    """The front matter of a card and the text after it; a card without one has an empty front matter.

    Raises ValueError where the front matter is no YAML mapping.
    """
    import yaml

    block = _BLOCK.match(text)
    if block is None:
        return {}, text
    try:
        told = yaml.safe_load(block["yaml"])
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from error
    if told is None:
        return {}, text[block.end() :]
    if not isinstance(told, dict):
        raise ValueError("it is no mapping of keys to values")
    return told, text[block.end() :]


def join_card(data: Mapping[str, Any], body: str) -> str:
    """A card of front matter and text."""
    import yaml

    head = yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=1000) if data else ""
    return f"---\n{head}---\n\n{body.strip()}\n"


def repo_name(text: Any) -> str | None:
    """``text`` where it names a repo on the Hub; None for a path or anything else."""
    return text if isinstance(text, str) and _REPO.match(text) else None


def made_front_matter(source: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """The front matter of a converted drafter: the source's, with what the conversion changed.

    ``made`` has base_model (or None), library_name, pipeline_tag and tags. The licence is the source's or none at all:
    nothing here may invent one. Tags that name another program than the destination are left out.
    """
    data = {key: value for key, value in source.items() if key not in _OF_THE_SOURCE}
    others = _programs() - {tag.lower() for tag in made["tags"]}
    tags = [tag for tag in _words(source.get("tags")) if tag.lower() not in others]
    bases = made["base_model"] or [base for base in _words(source.get("base_model")) if repo_name(base)]
    if bases:
        data["base_model"] = bases if isinstance(bases, str) or len(bases) != 1 else bases[0]
    relation = source.get("base_model_relation")
    if relation is not None and made["base_model"]:
        del data["base_model_relation"]  # it was said of another base model
    data["library_name"] = made["library_name"]
    data.setdefault("pipeline_tag", made["pipeline_tag"])
    data["tags"] = list(dict.fromkeys([*tags, *made["tags"]]))
    return data


def kept_front_matter(there: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """The front matter that a repo has already, completed: whatever its owner wrote stays."""
    data = dict(there)
    for key, value in made.items():
        if key != "tags":
            data.setdefault(key, value)
    data["tags"] = list(dict.fromkeys([*_words(there.get("tags")), *_words(made.get("tags"))]))
    return data


def check_front_matter(data: Mapping[str, Any], where: str) -> None:
    """Raises PushRefused for what the Hub would refuse after the upload, or would publish by mistake."""
    for base in _words(data.get("base_model")):
        if repo_name(base) is None:
            raise PushRefused(
                f"{where}: base_model is '{base}', which names no repo on the Hub. Correct it in README.md: org/name."
            )
    for key in ("license", "library_name", "pipeline_tag"):
        if key in data and not isinstance(data[key], str):
            raise PushRefused(f"{where}: {key} is {data[key]!r}, not a name. Correct it in README.md.")
    for key, value in data.items():
        for text in _words(value):
            if text.startswith(("/", "~/", "file:")) or re.match(r"^[A-Za-z]:\\", text):
                raise PushRefused(
                    f"{where}: {key} is '{text}', a path on your machine. Replace it in README.md before pushing."
                )


def _words(value: Any) -> list[str]:
    """A value of the front matter that is a word or a list of words, as a list."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        return [item for item in value if isinstance(item, str)]
    return []


def _programs() -> set[str]:
    """The names of the programs that formats belong to."""
    return {name.lower() for schema in all_formats() for name in (schema.name, schema.product)}
