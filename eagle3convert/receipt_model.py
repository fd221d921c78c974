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


class File(Part):
    name: str
    bytes: int


class Source(Part):
    format: str
    path: str
    files: list[File]


class Destination(Part):
    format: str
    lowest_release: str
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


class TensorRow(Part):
    name: str
    change: str


class VerificationPart(Part):
    passed: bool
    checks: dict[str, str]
    defects: list[str]


class Receipt(Part):
    """What the way back, a later verification, a push and its card take from a receipt."""

    eagle3convert: str
    created: str
    source: Source
    destination: Destination
    launch: list[str]
    tensors: list[TensorRow]
    assumptions: Assumptions
    verifier: VerifierPart
    verification: VerificationPart | None
    carried: Carried
    written: str


def complaint(receipt: dict[str, Any]) -> str:
    """The first part of a receipt that is missing or of another type than what is followed, or nothing."""
    try:
        Receipt.model_validate(receipt)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return ""
