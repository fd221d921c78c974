"""What a format file says about the engine that reads a folder as it stands; the doctor asks it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Fault = Literal["unknown_tensors", "missing_tensors", "wrong_map"]  # fields of a reader
Release = Annotated[str, Field(pattern=r"^\d+(\.\d+)*(\.post\d+)?$")]


class Part(BaseModel):
    """A part of a format file: immutable, and strict about its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class FieldNeed(Part):
    """A config field that an engine cannot do without, or cannot take as it sometimes is."""

    path: str
    when: Literal["absent", "null", "true"]
    outcome: Literal["stops", "wrong"] = Field(description="The server does not start, or it drafts something else.")
    with_tensor: str = Field("", description="It matters only where the drafter has this canonical tensor.")
    reason: str


class AlsoReads(Part):
    """Another format's folders that an engine reads as they are, and where it reads them in its own way."""

    format: str
    absent: Mapping[str, Any] = Field(default_factory=dict, description="Feature -> what an absent field means to it.")
    count_from: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    needs: tuple[FieldNeed, ...] = ()


class Reader(Part):
    """What an engine does with a folder as it stands; only engines have one."""

    unknown_tensors: Literal["dropped", "stops"] = Field(description="What happens at a tensor name it does not know.")
    missing_tensors: Literal["unfilled", "stops"] = Field(
        "unfilled", description="What becomes of a parameter without a tensor."
    )
    wrong_map: Literal["wrong", "stops_beyond", "stops"] = Field(
        "wrong", description="Whether it proposes by a wrong vocab map, stops at ids beyond the vocabulary, or at any."
    )
    prefixes: tuple[str, ...] = Field((), description="Wrapper prefixes that it reads.")
    skips: tuple[str, ...] = Field((), description="Unknown tensors that it passes over and that do no harm.")
    drops: tuple[str, ...] = Field((), description="Unknown names that it drops without a word.")
    drops_suffixes: tuple[str, ...] = Field((), description="Endings of unknown names that it drops without a word.")
    count: tuple[str, ...] = Field((), description="Fields from which it takes the number of aux states.")
    count_from: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict, description="Decoder kind -> lists of ids whose length it counts where no number is."
    )
    defaults: Mapping[str, int] = Field(default_factory=dict, description="Sizes that it takes where none is stated.")
    needs: tuple[FieldNeed, ...] = ()
    also_reads: tuple[AlsoReads, ...] = ()
    evidence: tuple[str, ...] = ()

    def stops_at(self, fault: Fault, beyond: bool = False) -> bool:
        """Whether it does not start with this fault; `beyond`: the wrong map leads beyond the vocabulary."""
        word = getattr(self, fault)
        return bool(word == "stops" or (beyond and word == "stops_beyond"))
