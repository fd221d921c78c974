"""ServedReading: a folder as an engine would take it, without a conversion, ignoring what that engine ignores."""

from __future__ import annotations

from functools import cached_property

from eagle3convert.canonical import FEATURES, Fact, Origin
from eagle3convert.checkpoint.source import Checkpoint
from eagle3convert.formats import load_format
from eagle3convert.identify import contradiction
from eagle3convert.nested import ABSENT, get
from eagle3convert.reading import Reading, Statements
from eagle3convert.releases import holds
from eagle3convert.schema import FormatSchema, Spelling
from eagle3convert.schema_reader import AlsoReads, FieldNeed, Reader
from eagle3convert.spelling import NameReading, layers_named
from eagle3convert.verifier import VerifierFacts


def also_read(engine: FormatSchema, folder_format: str) -> AlsoReads | None:
    """How the engine reads folders of another format as they are; None where it does not."""
    reader = engine.reader
    return next((a for a in reader.also_reads if a.format == folder_format), None) if reader is not None else None


def unreadable(engine: FormatSchema, checkpoint: Checkpoint, folder_format: str) -> str | None:
    """The config field that shows that the engine cannot take this folder as it stands, or None."""
    return None if also_read(engine, folder_format) is not None else contradiction(checkpoint, engine)


def served_schema(engine: FormatSchema, other: AlsoReads | None, release: str) -> FormatSchema:
    """The engine's way of reading: its features, names, encoding and capture, with the other format's places."""
    reader = engine.reader or Reader(unknown_tensors="dropped")
    spellings = {k: _of_release(s, release) for k, s in engine.spellings().items()}
    changes: dict[str, object] = {"tensors": spellings, "wrappers": reader.prefixes}
    if other is not None:
        base = load_format(other.format)
        features = {}
        for name, rule in engine.features.items():
            own = base.features[name]
            places = {"config_key": own.config_key, "also_read": own.also_read}
            absent = {"absent": other.absent[name]} if name in other.absent else {}
            features[name] = rule if rule.any_value else rule.model_copy(update=places | absent)
        aux = engine.aux_layers.model_copy(update={"keys": base.aux_layers.keys, "count": base.aux_layers.count})
        changes |= {"config": base.config, "features": features, "aux_layers": aux, "decoders": base.decoders}
    return engine.model_copy(update=changes)


def _of_release(spelling: Spelling, release: str) -> Spelling:
    return spelling if holds(release, spelling.accepts_since) else spelling.model_copy(update={"accepts": ()})


class ServedReading(Reading):
    """A checkpoint through an engine's eyes: its own defaults, its own decoder class, its own list of tensors."""

    def __init__(
        self, checkpoint: Checkpoint, engine: FormatSchema, folder_format: str, release: str, verifier: VerifierFacts
    ) -> None:
        self.engine, self.release = engine, release
        self.other = also_read(engine, folder_format)
        self.reader = engine.reader or Reader(unknown_tensors="dropped")
        super().__init__(checkpoint, served_schema(engine, self.other, release), Statements(verifier=verifier))

    @property
    def needs(self) -> tuple[FieldNeed, ...]:
        return self.other.needs if self.other is not None else self.reader.needs

    @cached_property
    def decoder_named(self) -> str | None:
        """The kind of decoder that the engine builds for this config, None where it knows none by that name."""
        decoders = self.schema.decoders
        if self.other is not None:  # such configs are told apart by model_type; their architectures are not read
            kind = self.config.value("model_type") or "llama"
            return next((name for name, d in decoders.items() if kind in d.model_types), None)
        named, kind = self.config.architectures[:1], self.config.value("model_type")
        found = [name for name, d in decoders.items() if named and named[0] in d.architectures]
        shared = [name for name in found if kind in decoders[name].model_types] if len(found) > 1 else found
        return shared[0] if shared else None

    @cached_property
    def decoder(self) -> str:
        return self.decoder_named or ("qwen3" if self._proven("qk_norm") else "llama")

    def _feature(self, name: str) -> Fact:
        spec, rule = FEATURES[name], self.schema.features[name]
        if rule.is_fixed:
            return Fact(rule.fixed_value, Origin.FORMAT)
        if name == "qk_norm" and self.decoder_named is not None:
            return Fact(self.decoder_named == "qwen3", Origin.FORMAT)
        if spec.source == "tensors":
            return super()._feature(name)
        stated = self.config.stated.get(name)
        if stated is not None:
            return Fact(stated.value, Origin.STATED, stated.path)
        return Fact(rule.absent if rule.absence_known else spec.plain, Origin.DEFAULT, rule.config_key or "")

    def _layer_count(self, stated: Fact) -> Fact:
        default = self.reader.defaults.get("num_hidden_layers", layers_named(self.names.names))
        return stated if stated.known else Fact(default, Origin.DEFAULT)

    @cached_property
    def _sizes(self) -> dict[str, Fact]:
        """The sizes that the engine works with: it derives what is not stated from the config, not from the tensors."""
        sizes = dict(super()._sizes)
        heads, hidden = sizes["num_attention_heads"].value, sizes["hidden_size"].value
        if self.config.value("num_key_value_heads") is None and heads is not None:
            sizes["num_key_value_heads"] = Fact(heads, Origin.DEFAULT, "num_attention_heads")
        if self.config.value("head_dim") is None and isinstance(heads, int) and isinstance(hidden, int) and heads:
            sizes["head_dim"] = Fact(hidden // heads, Origin.DEFAULT, "hidden_size / num_attention_heads")
        return sizes

    def _aux_count(self, target_hidden: int | None) -> int:
        config = self.checkpoint.config
        for path in self.schema.aux_layers.count if self.other is not None else self.reader.count:
            if isinstance(get(config, path), int):
                return int(get(config, path))
        lists = (self.other or self.reader).count_from.get(self.decoder, ())
        found = (get(config, path) for path in lists)
        return next((len(ids) for ids in found if isinstance(ids, list) and ids), 3)

    @cached_property
    def names(self) -> NameReading:
        found = super().names
        skipped = tuple(n for n in found.unexpected if n not in self.reader.skips)
        return NameReading(found.names, skipped, found.doubled)

    def missed_needs(self) -> list[FieldNeed]:
        """The fields without which, or as they stand, this engine stops or goes wrong."""
        config, missed = self.checkpoint.config, []
        for need in self.needs:
            value = get(config, need.path)
            hit = {"absent": value is ABSENT, "null": value is None, "true": value is True}[need.when]
            if hit:
                missed.append(need)
        return missed
