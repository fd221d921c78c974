"""ConfigSpelling: reads a format's config.json into canonical fields and writes canonical fields as such a config.

Both directions follow the same places of the format file.  A canonical field is a decoder or drafter field, a feature,
or `neutral.<name>` for a field that no forward pass depends on.  `aux_layers` is in the format's own numbering here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3convert.canonical import DECODER_FIELDS, FEATURES, NEUTRAL_FIELDS, VERIFIER_FIELDS, is_whole
from eagle3convert.conventions import ROPE_FIELDS, read_rope, write_rope
from eagle3convert.nested import ABSENT, get, leaves, put
from eagle3convert.schema import FormatSchema

WINDOW_FIELDS = ("layer_types", "sliding_window", "use_sliding_window")
PLACED_FIELDS = ("draft_vocab_size", "target_hidden_size", "tie_word_embeddings", *VERIFIER_FIELDS)


@dataclass(frozen=True, slots=True)
class Stated:
    """A canonical field's value as a config states it, and where."""

    value: Any
    path: str


@dataclass
class ConfigReading:
    """What one config.json says in canonical fields, and what is left over."""

    stated: dict[str, Stated] = field(default_factory=dict)
    architectures: tuple[str, ...] = ()
    nulls: set[str] = field(default_factory=set)  # canonical fields that are there as null
    unknown: dict[str, Any] = field(default_factory=dict)  # dotted fields of no known meaning
    rope_conflicts: list[str] = field(default_factory=list)

    def value(self, name: str) -> Any:
        return self.stated[name].value if name in self.stated else None


def block_of(config: Mapping[str, Any], schema: FormatSchema) -> Mapping[str, Any]:
    """The object that holds the decoder's fields; empty where there is none."""
    block = get(config, schema.config.decoder) if schema.config.decoder else config
    return block if isinstance(block, Mapping) else {}


def read_window(block: Mapping[str, Any]) -> tuple[int | None, list[str] | None]:
    """(window in tokens or None, layer_types where only some layers slide) of a decoder block.

    transformers lists `layer_types`; without the list only `use_sliding_window` true makes a window take effect.
    """
    window, types = block.get("sliding_window"), block.get("layer_types")
    if not is_whole(window):
        return None, None
    if isinstance(types, list) and types:
        sliding = [kind == "sliding_attention" for kind in types]
        return (window if any(sliding) else None), (types if any(sliding) and not all(sliding) else None)
    return (window if block.get("use_sliding_window") is True else None), None


def write_window(window: int | None, mixed: list[str] | None, layers: int) -> dict[str, Any]:
    if window is None:
        return {}
    types = mixed or ["sliding_attention"] * layers
    return {"sliding_window": window, "layer_types": types, "use_sliding_window": True}


class ConfigSpelling:
    """The places where one format's config.json keeps the canonical fields."""

    def __init__(self, schema: FormatSchema) -> None:
        self.schema = schema

    def decode(self, config: Mapping[str, Any]) -> ConfigReading:
        """Canonical fields of a config; fields that are absent or null are not stated."""
        schema, out = self.schema, ConfigReading()
        used: set[str] = {"architectures"}
        for name, places in self._plain_places().items():
            used.update(places)
            for path in places:
                value = get(config, path)
                if value is None:
                    out.nulls.add(name)
                elif value is not ABSENT and name not in out.stated:
                    out.stated[name] = Stated(value, path)
        block, here = block_of(config, schema), schema.decoder_path
        rope, out.rope_conflicts = read_rope(block)
        if rope is not None:
            out.stated["rope"] = Stated(rope, here("rope_parameters"))
        window, mixed = read_window(block)
        out.stated["sliding_window"] = Stated(window, here("sliding_window"))
        out.stated["mixed_attention"] = Stated(mixed is not None, here("layer_types"))
        if mixed is not None:
            out.stated["layer_types"] = Stated(mixed, here("layer_types"))
        for key in ("dtype", "torch_dtype"):
            if isinstance(config.get(key), str):
                out.stated.setdefault("dtype", Stated(config[key].removeprefix("torch."), key))
        for name in NEUTRAL_FIELDS:
            if block.get(name) is not None:
                out.stated[f"neutral.{name}"] = Stated(block[name], here(name))
        used.update(here(name) for name in (*ROPE_FIELDS, *WINDOW_FIELDS, *NEUTRAL_FIELDS, "model_type"))
        used.update(("dtype", "torch_dtype", *schema.config.known, *schema.config.constants))
        used.update(guard.path for guard in schema.config.guards)
        architectures = config.get("architectures")
        if isinstance(architectures, list):
            out.architectures = tuple(str(a) for a in architectures)
        out.unknown = {path: value for path, value in leaves(config, used) if path not in used and value is not None}
        return out

    def _plain_places(self) -> dict[str, tuple[str, ...]]:
        """Canonical field -> places, for the fields that need no codec."""
        schema = self.schema
        places = {name: schema.places(name) for name in DECODER_FIELDS}
        for name in PLACED_FIELDS:
            places[name] = schema.config.places.get(name, () if name in schema.config.unsaid else (name,))
        places["model_type"] = (schema.decoder_path("model_type"),)
        places["quantization_config"] = ("quantization_config",)
        for name, rule in schema.features.items():
            if FEATURES[name].kind == "bool" and rule.config_key is not None:
                places[name] = (rule.config_key, *rule.also_read)
        places["aux_layers"] = schema.aux_layers.keys
        places["aux_count"] = schema.aux_layers.count
        return places

    def encode(self, fields: Mapping[str, Any], decoder: str) -> dict[str, Any]:
        """The config that says these canonical fields; fields this format has no place for are left out."""
        schema, config = self.schema, dict[str, Any]()
        kind = schema.decoders[decoder]
        config["architectures"] = [kind.architectures[0]]
        for path, value in schema.config.constants.items():
            put(config, path, value)
        put(config, schema.decoder_path("model_type"), kind.model_types[0])
        for name in DECODER_FIELDS:
            if fields.get(name) is not None:
                put(config, schema.places(name)[0], fields[name])
        self._encode_block(config, fields)
        self._encode_drafter(config, fields)
        for name, rule in schema.features.items():
            if FEATURES[name].kind == "bool" and rule.config_key and rule.write and fields.get(name) is not None:
                put(config, rule.config_key, fields[name])
        self._encode_aux(config, fields)
        return config

    def _encode_block(self, config: dict[str, Any], fields: Mapping[str, Any]) -> None:
        schema = self.schema
        block: dict[str, Any] = {}
        if fields.get("rope") is not None:
            block |= write_rope(fields["rope"], schema.config.rope)
        block |= write_window(
            fields.get("sliding_window"), fields.get("layer_types"), fields.get("num_hidden_layers", 1)
        )
        neutral = sorted(name for name in fields if name.startswith("neutral."))
        block |= {name.removeprefix("neutral."): fields[name] for name in neutral}
        for name, value in block.items():
            put(config, schema.decoder_path(name), value)

    def _encode_drafter(self, config: dict[str, Any], fields: Mapping[str, Any]) -> None:
        places = self._plain_places()
        for name in (*PLACED_FIELDS, "quantization_config"):
            wanted = fields.get(name) is not None and places[name]
            if wanted and not (name == "target_hidden_size" and not fields.get("narrow")):
                put(config, places[name][0], fields[name])
        for name, unknown in self.schema.config.required.items():
            if fields.get(name) is None:
                put(config, places[name][0], None if unknown == "null" else [])
        rule = self.schema.features["shared_lm_head"]
        if fields.get("shared_lm_head"):
            for path in rule.nulls:
                put(config, path, None)
        if fields.get("dtype") is not None:
            config[self.schema.config.dtype_key] = fields["dtype"]

    def _encode_aux(self, config: dict[str, Any], fields: Mapping[str, Any]) -> None:
        aux = self.schema.aux_layers
        if fields.get("aux_layers") is not None and aux.keys:
            ids = fields["aux_layers"]
            put(config, aux.keys[0], list(ids) if isinstance(ids, tuple) else ids)
        count = fields.get("aux_count")
        written = aux.count_written == "always" or (aux.count_written == "unless_three" and count != 3)
        if count is not None and aux.count and written:
            put(config, aux.count[0], count)
