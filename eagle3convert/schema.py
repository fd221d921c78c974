"""FormatSchema: what one file in `schemas/` says about how a format spells the canonical drafter.

Every model is frozen and refuses unknown keys, so that a dead or misspelt field in a format file is an error and not a
silent no-op.  Each fact may carry the releases it holds for (`since`, `until`, both inclusive) and its evidence.

Start-up is judged, so annotations are real objects here (reading them from strings takes pydantic longer), and no model
is made before a format file is read.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from eagle3convert.canonical import FEATURES, concrete_table
from eagle3convert.conventions import CONVENTIONS
from eagle3convert.patterns import Pattern
from eagle3convert.schema_reader import Part, Reader, Release

StatePlace = Annotated[str, Field(pattern=r"^(\d+|n(//2)?([+-]\d+)?)$")]  # a hidden_states index for n layers
RESERVED = frozenset({
    "auto", "canonical", "convert", "convert-all", "demo", "diff", "doctor", "explain", "formats", "inspect", "push",
    "replay", "verify",
})  # fmt: skip
"""Names that no format may have: they are subcommands, or mean something else in a format's place."""
DECODERS = ("llama", "qwen3", "mla")


class Spelling(Part):
    """How a format spells a canonical tensor, or every tensor that a pattern covers."""

    write: str = Field(description="The name written; binds the same wildcards as the canonical pattern.")
    accepts: tuple[str, ...] = Field((), description="Other names that readers of this format take for it.")
    since: Release | None = Field(None, description="First engine release that reads the written name.")
    accepts_since: Release | None = Field(None, description="First engine release that reads the other names.")


class Identify(Part):
    """What tells a drafter of this format from the others; each match is one piece of evidence."""

    architectures: tuple[str, ...] = Field((), description="Values of config.json's architectures.")
    fields: tuple[str, ...] = Field((), description="Dotted config fields that this format writes.")
    tensors: tuple[str, ...] = Field((), description="Tensor names (with * for the rest) that this format writes.")
    requires_fields: tuple[str, ...] = Field(
        (), description="Without one of these config fields it is not this format."
    )
    refuted_by: tuple[str, ...] = Field(
        (), description="A drafter with one of these config fields is never this format."
    )
    without_fields: tuple[str, ...] = Field((), description="Config fields that speak against this format.")
    usual_fields: tuple[str, ...] = Field((), description="Config fields whose absence speaks against this format.")
    without_tensors: tuple[str, ...] = Field((), description="Tensor names that speak against this format.")
    rank: int = Field(0, description="Breaks a tie between formats that read the drafter alike; higher wins.")


class Decoder(Part):
    """One kind of decoder layer: the class name and model_type that a config gives it, or why it has none."""

    architectures: tuple[str, ...] = Field((), description="The first is written; all are read.")
    model_types: tuple[str, ...] = Field((), description="The first is written; all are read.")
    since: Release | None = None
    reason: str = Field("", description="Why the format cannot say this kind of decoder (no architectures then).")
    evidence: tuple[str, ...] = ()


class Guard(Part):
    """A config field whose other values mean a drafter that this project does not convert."""

    path: str
    allowed: tuple[Any, ...]
    reason: str


class ConfigMap(Part):
    """Where config.json keeps what the canonical drafter knows."""

    decoder: str = Field("", description="Dotted place of the decoder's fields; empty for the top level.")
    places: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Canonical field -> dotted places, the first written and all read; overrides the decoder block.",
    )
    rope: tuple[Literal["rope_parameters", "rope_theta"], ...] = Field(("rope_parameters", "rope_theta"))
    dtype_key: Literal["dtype", "torch_dtype"] = "torch_dtype"
    constants: Mapping[str, Any] = Field(default_factory=dict, description="Dotted field -> value always written.")
    known: tuple[str, ...] = Field((), description="Fields that a config may hold and no forward pass depends on.")
    guards: tuple[Guard, ...] = ()
    required: Mapping[str, Literal["null", "empty list"]] = Field(
        default_factory=dict, description="Canonical fields whose key must be there, with what stands for unknown."
    )
    unsaid: tuple[str, ...] = Field((), description="Canonical fields that this format has no place for.")


class VocabMap(Part):
    """How draft ids become target ids."""

    encoding: Literal["offset", "absolute"] = "offset"
    t2d: Literal["written", "optional", "never"] = "written"
    order: Literal["ascending", "any"] = Field("any", description="Whether the trainer sorts the draft vocabulary.")
    full: Literal["optional", "never"] = Field(
        "optional", description="Whether a full draft vocabulary may carry d2t and t2d."
    )
    multiple: int = Field(1, description="Engines pad lm_head to a multiple of so many rows.")
    padding_cut_since: Release | None = Field(
        None, description="First release that never drafts the padding of a reduced draft vocabulary."
    )
    evidence: tuple[str, ...] = ()


class Family(Part):
    """Verifier families for which an engine's aux-layer rule differs from its general one."""

    model_types: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    convention: str | None = None
    convention_since: Release | None = Field(None, description="Before it the general convention holds.")
    since: Release | None = Field(None, description="First release that captures aux layers of this family at all.")
    broken_since: Release | None = Field(None, description="First release that captures something else in their place.")
    broken: str = Field("", description="What it captures from then on, as the end of a sentence.")
    embedding_since: Release | None = Field(None, description="First release that captures hidden_states[0].")
    embedding: bool | None = None
    final: bool | None = Field(None, description="Whether hidden_states[n], before the final norm, is captured.")
    final_since: Release | None = None
    default: tuple[StatePlace, ...] | None = None
    caution: str = Field("", description="What is known to go wrong with this family, as a sentence for the user.")
    evidence: tuple[str, ...] = ()


class SuspectDefault(Part):
    """Writers whose absent ids do not mean the format's default list."""

    field: str
    below: Release
    instead: tuple[StatePlace, ...]
    reason: str


class AuxLayers(Part):
    """Which verifier hidden states feed fc: where the ids stand, what they count, which a reader can capture."""

    keys: tuple[str, ...] = Field((), description="Dotted fields read in this order; the first is written.")
    convention: str = "hidden_states"
    default: tuple[StatePlace, ...] = Field(
        ("2", "n//2", "n-3"), description="What absence means, in hidden_states indices."
    )
    absence: Literal["usual", "unusual"] = Field(
        "unusual", description="Whether its own writer leaves the ids out where they are the default."
    )
    fc_order: Literal["ascending", "as_listed"] = "ascending"
    count: tuple[str, ...] = Field((), description="Fields for the number of aux states; the first is written.")
    count_since: Release | None = Field(None, description="First release that takes another number than three.")
    count_written: Literal["always", "unless_three", "never"] = "never"
    since: Release | None = Field(None, description="First release that reads the ids.")
    custom_since: Release | None = Field(None, description="First release that serves other layers than its default.")
    custom_reason: str = ""
    embedding: bool = True
    embedding_since: Release | None = None
    embedding_reason: str = ""
    min_id: int | None = Field(None, description="The smallest id that it takes, where it takes no negative ones.")
    final: bool = True
    final_reason: str = ""
    families: tuple[Family, ...] = ()
    families_of: str | None = Field(None, description="Take the families of this other format.")
    known_families: bool = Field(False, description="Whether the rule depends on the verifier's family.")
    suspect: SuspectDefault | None = None
    evidence: tuple[str, ...] = ()


class FeatureRule(Part):
    """Whether a format can say a feature, and where."""

    config_key: str | None = Field(None, description="Dotted field that says it; written explicitly.")
    also_read: tuple[str, ...] = ()
    absent: Any = Field(None, description="What an absent field means; leave out where nobody can know.")
    write: bool = Field(True, description="False: only the value of absence can be said.")
    fixed: Any = Field(None, description="The only value of this format; 'none' for no sliding window.")
    reason: str = Field("", description="Why no other value can be said: what the engine does instead.")
    remedy: str = ""
    any_value: bool = Field(False, description="Decided by the tensors alone: every value can be said.")
    since: Release | None = Field(None, description="First release that honours a value other than the plain one.")
    nulls: tuple[str, ...] = Field((), description="Config fields that are written as null where the value is true.")
    not_for: tuple[str, ...] = Field((), description="Decoder kinds for which only the plain value can be said.")
    launch: str = Field("", description="Launch flag that says it where the checkpoint cannot.")
    caution: str = Field("", description="Where the engine fails with another value than the plain one, as a sentence.")
    disputed_by: tuple[str, ...] = Field((), description="Config fields whose presence puts the value in doubt.")
    dispute: str = ""
    evidence: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _says_one_thing(self) -> "FeatureRule":
        if self.any_value == (self.config_key is not None or self.is_fixed):
            raise ValueError(
                "say either any_value, or where the value stands (config_key) or what it always is (fixed)"
            )
        if self.is_fixed and not self.reason:
            raise ValueError("a fixed feature needs its reason")
        return self

    @property
    def is_fixed(self) -> bool:
        return "fixed" in self.model_fields_set

    @property
    def fixed_value(self) -> Any:
        return None if self.fixed == "none" else self.fixed  # TOML has no null

    @property
    def absence_known(self) -> bool:
        return "absent" in self.model_fields_set


class FormatSchema(Part):
    """One format: its releases, names, config, vocab map, aux layers and features, each with evidence."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    title: str
    role: Literal["engine", "trainer"]
    product: str = Field(description="The program's own name, as error messages use it.")
    releases: tuple[Release, Release] = Field(description="Oldest and newest release that the facts cover.")
    evidence: tuple[str, ...] = ()
    launch: tuple[str, ...] = Field((), description="Launch command; {verifier}, {drafter} and {tokens} are filled in.")
    launch_note: str = Field("", description="What must be there before the launch command can be given.")
    identify: Identify = Field(default_factory=Identify)
    decoders: Mapping[str, Decoder]
    tensors: Mapping[str, Spelling | str] = Field(default_factory=dict)
    wrappers: tuple[str, ...] = Field((), description="Prefixes that a wrapping module puts before every name.")
    reader: Reader | None = None
    config: ConfigMap = Field(default_factory=ConfigMap)
    vocab_map: VocabMap = Field(default_factory=VocabMap)
    aux_layers: AuxLayers = Field(default_factory=AuxLayers)
    embed_tokens: Literal["optional", "wanted", "replaced"] = Field(
        "optional", description="What becomes of the drafter's own embedding: used where there, wanted, or thrown away."
    )
    embed_reason: str = ""
    features: Mapping[str, FeatureRule]

    @model_validator(mode="after")
    def _is_closed(self) -> "FormatSchema":
        missing, extra = set(FEATURES) - set(self.features), set(self.features) - set(FEATURES)
        if missing or extra:
            raise ValueError(f"features must be the closed list: missing {sorted(missing)}, unknown {sorted(extra)}")
        if self.name in RESERVED:
            raise ValueError(f"a format cannot be named {self.name!r}, which means something else on the command line")
        if _numbers(self.releases[0]) > _numbers(self.releases[1]):
            raise ValueError(f"releases: {self.releases[0]} is newer than {self.releases[1]}")
        if set(self.decoders) != set(DECODERS):
            raise ValueError(f"decoders must be {', '.join(DECODERS)}: found {', '.join(self.decoders)}")
        for kind, decoder in self.decoders.items():
            if bool(decoder.architectures) != bool(decoder.model_types) or not (
                decoder.architectures or decoder.reason
            ):
                raise ValueError(f"decoders.{kind}: say architectures and model_types, or the reason why there is none")
        for name in (self.aux_layers.convention, *(family.convention for family in self.aux_layers.families)):
            if name is not None and name not in CONVENTIONS:
                raise ValueError(f"aux-layer convention {name!r} is none of {sorted(CONVENTIONS)}")
        for canonical, spelling in self.spellings().items():
            for written in (spelling.write, *spelling.accepts):
                if Pattern(written).wildcards != Pattern(canonical).wildcards:
                    raise ValueError(f"{canonical!r} and {written!r} do not bind the same wildcards")
        known = [name for name, _ in concrete_table(2, 4)]
        for pattern in self.tensors:
            if not any(Pattern(pattern).match(name) is not None for name in known):
                raise ValueError(f"tensors: {pattern!r} is no canonical tensor")
        return self

    def spellings(self) -> dict[str, Spelling]:
        """Canonical pattern -> spelling, with the short form of the file written out."""
        return {k: Spelling(write=v) if isinstance(v, str) else v for k, v in self.tensors.items()}

    def decoder_path(self, field: str) -> str:
        return f"{self.config.decoder}.{field}" if self.config.decoder else field

    def places(self, field: str) -> tuple[str, ...]:
        """The dotted config places of a canonical field, the written one first; empty where it has none."""
        if field in self.config.unsaid:
            return ()
        return self.config.places.get(field, (self.decoder_path(field),))


def _numbers(release: str) -> list[int]:
    return [int(part) for part in release.replace(".post", ".").split(".")]
