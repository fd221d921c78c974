"""VerifierFacts: what is known about the big model that a drafter drafts for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle3convert.canonical import is_whole
from eagle3convert.errors import CheckpointError, UsageError

NUMBERS = ("num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings")


@dataclass(frozen=True, slots=True)
class VerifierFacts:
    """The verifier's name, family and sizes; None or empty where nothing says them.

    `model_types` holds the config's own and that of its text part, for a vision-language verifier has both.
    """

    name: str | None = None
    model_types: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    num_hidden_layers: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None

    @property
    def family_known(self) -> bool:
        return bool(self.model_types or self.architectures)

    def filled_from(self, other: VerifierFacts) -> VerifierFacts:
        """These facts, and the other's where these are silent."""
        changes: dict[str, Any] = {
            name: getattr(other, name)
            for name in ("name", *NUMBERS)
            if getattr(self, name) is None and getattr(other, name) is not None
        }
        if not self.family_known:
            changes |= {"model_types": other.model_types, "architectures": other.architectures}
        return replace(self, **changes) if changes else self

    def as_json(self) -> dict[str, Any]:
        family = {"model_types": list(self.model_types), "architectures": list(self.architectures)}
        return {"name": self.name} | family | {name: getattr(self, name) for name in NUMBERS}


def from_config(config: Mapping[str, Any], name: str | None = None) -> VerifierFacts:
    """The facts of a verifier's config.json; the text part of a vision-language model counts where it has one."""
    parts = (config.get(key) for key in ("text_config", "llm_config"))
    text: Mapping[str, Any] = next((part for part in parts if isinstance(part, Mapping)), {})

    def number(key: str) -> int | None:
        value = text.get(key, config.get(key))
        return value if is_whole(value) else None

    types = tuple(dict.fromkeys(str(c["model_type"]) for c in (config, text) if c.get("model_type")))
    architectures = config.get("architectures")
    return VerifierFacts(
        name,
        types,
        tuple(map(str, architectures)) if isinstance(architectures, list) else (),
        *(number(key) for key in NUMBERS),
    )


def from_file(path: Path, name: str | None = None) -> VerifierFacts:
    """The facts of a verifier from its config.json, or from the folder that holds one."""
    from eagle3convert.checkpoint.strict_json import parse_object

    file = path / "config.json" if path.is_dir() else path
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"{file}: there is no such file. Give the verifier's config.json with --verifier-config, or its folder "
            f"with --verifier."
        ) from None
    except OSError as error:
        raise CheckpointError(f"{file}: it cannot be read: {error.strerror}. Check its permissions.") from None
    return from_config(parse_object(data, str(file)), name)
