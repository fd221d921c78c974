"""The parts of a receipt that are followed, as Pydantic models: one that was edited out of shape is not followed."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="allow")


class Change(Part):
    """One change of a config: a value to set at a path, or, without one, a path to remove."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    at: list[str] = Field(min_length=1)
    value: Any = None


class Source(Part):
    format: str


class Destination(Part):
    format: str
    engine_version: str | None
    dtype: Literal["BF16", "F16", "F32"] | None


class Assumptions(Part):
    assume: dict[str, Any]
    aux_layers: list[int] | None
    d2t_encoding: Literal["offset", "absolute"] | None


class VerifierPart(Part):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: str | None
    model_types: list[str]
    architectures: list[str]
    num_hidden_layers: int | None
    hidden_size: int | None
    vocab_size: int | None
    max_position_embeddings: int | None


class Carried(Part):
    config_patch: list[Change]
    names: dict[str, str]
    dtypes: dict[str, str]
    vocab_encoding: Literal["offset", "absolute"] | None
    vocab_tensors: dict[Literal["d2t", "t2d"], str]
    permutation: list[int]
    metadata: dict[str, str]
    facts: dict[str, bool]


class Receipt(Part):
    """What the way back and a later verification take from a receipt."""

    source: Source
    destination: Destination
    assumptions: Assumptions
    verifier: VerifierPart
    carried: Carried
    written: str


def sound(receipt: dict[str, Any]) -> bool:
    """Whether a receipt has all that is followed, in the right types."""
    try:
        Receipt.model_validate(receipt)
    except ValidationError:
        return False
    return True
