"""A drafter as a format's own reader would run it: what that reader ignores is ignored, what it fixes is fixed.

Nothing here knows a format; the format file says which features its reader has, where it takes the aux layers and how
it maps draft ids.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from eagle3convert.aux_layers import family_of, rule_at
from eagle3convert.canonical import FEATURES, Origin
from eagle3convert.checkpoint.source import Checkpoint
from eagle3convert.drafter import Drafter
from eagle3convert.reading import Reading, Statements
from eagle3convert.reference.form import SWITCHES, Form, form_of
from eagle3convert.reference.interpretation import Interpretation, as_trained, loaded_rows, schema_targets
from eagle3convert.releases import holds
from eagle3convert.schema import FeatureRule, FormatSchema
from eagle3convert.served import ServedReading
from eagle3convert.verifier import VerifierFacts


@dataclass(frozen=True)
class Served:
    """An interpretation by a format's reader: what of the drafter it leaves out, and why it stops where it does."""

    interpretation: Interpretation
    ignored: tuple[str, ...] = ()
    stops: str = ""
    replaces_embedding: bool = False  # it runs the drafter with the verifier's embeddings, whatever the drafter holds


def reading_of(checkpoint: Checkpoint, schema: FormatSchema, verifier: VerifierFacts, release: str = "") -> Reading:
    """A checkpoint as a format's reader takes it, which knows nothing but the folder and the verifier it serves."""
    if schema.reader is None:
        return Reading(checkpoint, schema, Statements(verifier=verifier))
    return ServedReading(checkpoint, schema, schema.name, release or schema.releases[1], verifier)


def as_read(reading: Reading, release: str = "") -> Served:
    """The checkpoint of a reading as a reader of its schema runs it: the output of a conversion as it is served.

    `release` is the reader's, the newest known by default.
    """
    schema, drafter = reading.schema, Drafter(reading)
    release = release or schema.releases[1]
    form = form_of(drafter)
    switches = {name: _read_switch(reading, name, release) for name in SWITCHES}
    form, ignored = _forced(form, switches, schema, drafter)
    rows, missing, dropped = loaded_rows(drafter, form)
    unread = {n for n in rows if _unread_name(reading, n, release)}
    rows = {name: row for name, row in rows.items() if name not in unread}
    optional = {n for n in unread if n == "embed_tokens.weight"}
    interpretation = Interpretation(
        f"{schema.product} {release}", form, read_layers(reading, release), schema_targets(reading, schema), rows,
        reading.checkpoint.tensors, (*missing, *sorted(unread - optional)), dropped,
    )  # fmt: skip
    if interpretation.targets is None and drafter.targets is not None and drafter.full_vocabulary:
        interpretation = replace(interpretation, targets=drafter.targets)
    return Served(interpretation, ignored, _stops(reading, dropped), replaces_embedding(schema, interpretation))


def _stops(reading: Reading, dropped: tuple[str, ...]) -> str:
    """Why the reader does not start on this folder at all; empty where nothing is known to stop it."""
    if not isinstance(reading, ServedReading):
        return ""
    product = reading.engine.product
    for need in reading.missed_needs():
        if need.outcome == "stops" and (not need.with_tensor or need.with_tensor in reading.names.names):
            return f"{product} does not start: {need.path} is {need.when} in config.json. {need.reason}"
    passed = (*reading.reader.skips, *reading.reader.drops_suffixes)
    strange = [name for name in dropped if not name.endswith(passed or ("\0",))]
    if strange and reading.reader.unknown_tensors == "stops":
        return f"{product} does not start: it knows no parameter for {strange[0]}."
    return ""


def as_served(drafter: Drafter, schema: FormatSchema, release: str = "") -> Served:
    """The drafter, its names and fields spelled for a format whether or not that format can say everything."""
    release = release or schema.releases[1]
    trained = as_trained(drafter)
    values = {name: getattr(trained.form, name) for name in SWITCHES}
    for name, rule in schema.features.items():
        if name in values and _not_yet(rule, release):
            values[name] = FEATURES[name].plain
    form, ignored = _forced(trained.form, values, schema, drafter)
    rows, missing, dropped = loaded_rows(drafter, form)
    layers, stops = trained.aux_layers, ""
    verifier = drafter.reading.verifier
    rule_ = rule_at(schema, family_of(schema, verifier), release)
    n = verifier.num_hidden_layers
    if layers is not None:
        ids = rule_.convention.encode(layers, n) if schema.aux_layers.keys else None
        if not rule_.serves(layers, ids, n):
            fed = rule_.reads(ids, n)
            uncaptured = [k for k in layers if (k == 0 and not rule_.embedding) or (k == n and not rule_.final)]
            if uncaptured or not rule_.captures or fed is None or len(fed) != len(layers):
                stops = f"{schema.product} {release} cannot capture aux layers {list(layers)}"
            elif fed != layers:
                layers = fed
                ignored = (*ignored, f"aux layers: {list(fed)} are fed instead of {list(trained.aux_layers or ())}")
    return Served(
        replace(
            trained, reader=f"{schema.product} {release}", form=form, aux_layers=layers, rows=rows, missing=missing,
            dropped=dropped,
        ),
        ignored,
        stops,
        replaces_embedding(schema, trained),
    )  # fmt: skip


def replaces_embedding(schema: FormatSchema, one: Interpretation) -> bool:
    """Whether a drafter's own embeddings give way to the verifier's, which have the same width."""
    same_width = one.form.hidden_size == one.form.target_hidden_size
    return str(schema.embed_tokens) == "replaced" and same_width and not one.needs_embedding


def _not_yet(rule: FeatureRule, release: str) -> bool:
    return rule.since is not None and not holds(release, rule.since)


def _read_switch(reading: Reading, name: str, release: str) -> Any:
    """The value that the reader takes: what its config field says, else what absence means to it, else the tensors."""
    rule, spec = reading.schema.features[name], FEATURES[name]
    if _not_yet(rule, release):
        return spec.plain
    stated = reading.config.stated.get(name)
    if stated is not None:
        return bool(stated.value)
    if rule.absence_known:
        return bool(rule.absent)
    fact = reading.feature(name)
    return bool(fact.value) if fact.known and fact.origin is not Origin.ASSUMED else spec.plain


def _forced(form: Form, values: dict[str, Any], schema: FormatSchema, drafter: Drafter) -> tuple[Form, tuple[str, ...]]:
    """The form under the reader's switches, and what of the drafter it leaves out."""
    ignored = []
    kind = drafter.reading.decoder
    for name in SWITCHES:
        rule, wanted = schema.features[name], values[name]
        if rule.is_fixed:
            values[name] = bool(rule.fixed_value)
        elif kind in rule.not_for:
            values[name] = FEATURES[name].plain
        if bool(values[name]) != bool(wanted):
            ignored.append(f"{name} {str(bool(wanted)).lower()}: {rule.reason}")
    windows = form.windows
    if schema.features["sliding_window"].is_fixed and any(w is not None for w in windows):
        ignored.append(f"sliding_window: {schema.features['sliding_window'].reason}")
        windows = tuple(None for _ in windows)
    elif schema.features["mixed_attention"].is_fixed and len(set(windows)) > 1:
        ignored.append(f"mixed_attention: {schema.features['mixed_attention'].reason}")
        windows = tuple(next(w for w in windows if w is not None) for _ in windows)
    single = schema.features["single_aux_layer"]
    bypassed = single.is_fixed and form.aux_count == 1 and form.target_hidden_size == form.hidden_size
    if bypassed:
        ignored.append(f"fc: {single.reason}")
    switches = {name: bool(values[name]) for name in SWITCHES}
    return replace(form, **switches, windows=windows, fc_bypassed=bypassed), tuple(ignored)  # type: ignore[arg-type]


def _unread_name(reading: Reading, canonical: str, release: str) -> bool:
    """Whether this release does not read the name under which the tensor is stored."""
    since = reading.spelling.since(canonical, reading.names.names[canonical])
    return since is not None and not holds(release, since)


def read_layers(reading: Reading, release: str) -> tuple[int, ...] | None:
    """The states that the reader feeds; by its general rule where it has rules by family and the family is unknown."""
    if reading.statements.aux_layers is not None:
        return reading.aux.ascending
    raw = reading.config.value("aux_layers")
    if isinstance(raw, list) and not all(isinstance(i, int) for i in raw):
        return None
    rule = rule_at(reading.schema, family_of(reading.schema, reading.verifier), release)
    return rule.reads(tuple(raw) if raw is not None else None, reading.verifier.num_hidden_layers)
