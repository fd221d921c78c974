"""The drafter as each engine serves it: its folder as it stands, and what a conversion makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from eagle3convert.errors import CheckpointError
from eagle3convert.formats import all_formats, find_format
from eagle3convert.reference.as_served import Served, as_read, as_served
from eagle3convert.reference.bench import Bench, Score, Variant
from eagle3convert.reference.subject import Subject
from eagle3convert.reference.weights import EMBEDDING
from eagle3convert.schema import FormatSchema
from eagle3convert.served import ServedReading, unreadable


@dataclass(frozen=True)
class EngineOutcome:
    """The drafter as one engine serves it; no score where the engine stops."""

    format_name: str
    reader: str
    converted: bool  # by this project; otherwise the folder as it stands
    score: Score | None
    ignored: tuple[str, ...]
    stops: str

    @property
    def name(self) -> str:
        return f"{'converted, ' if self.converted else ''}as {self.reader} serves it"

    def as_json(self) -> dict[str, Any]:
        return {
            "format": self.format_name, "reader": self.reader, "converted": self.converted,
            "ignored": list(self.ignored), "stops": self.stops or None,
            "shares": list(self.score.shares) if self.score else None,
            "acceptance_length": self.score.length if self.score else None,
        }  # fmt: skip


def engine_outcomes(subject: Subject, bench: Bench, steps: int, for_format: str | None) -> tuple[EngineOutcome, ...]:
    """How every engine (or the one format asked for) serves the drafter, whether or not a conversion is allowed."""
    engines = [schema for schema in all_formats() if schema.role == "engine"]
    chosen = [find_format(for_format)] if for_format is not None else engines
    return tuple(outcome for schema in chosen for outcome in _outcomes(subject, bench, steps, schema))


def _outcomes(subject: Subject, bench: Bench, steps: int, schema: FormatSchema) -> Iterator[EngineOutcome]:
    reading = subject.drafter.reading
    release = schema.releases[1]
    if schema.reader is not None and unreadable(schema, reading.checkpoint, reading.schema.name) is None:
        seen = ServedReading(reading.checkpoint, schema, reading.schema.name, release, reading.verifier)
        try:
            served = as_read(seen, release)
            lost = [f"{name}, which it has no parameter for" for name in served.interpretation.dropped]
            lost += [f"{name}, which it does not find" for name in served.interpretation.missing]
            served = replace(served, ignored=(*served.ignored, *lost[:LISTED]))
            yield _outcome(subject, bench, steps, schema.name, served, converted=False)
        except CheckpointError as error:
            yield EngineOutcome(schema.name, f"{schema.product} {release}", False, None, (), str(error))
    yield _outcome(subject, bench, steps, schema.name, as_served(subject.drafter, schema), converted=True)


LISTED = 4  # tensors named of those that an engine leaves out


def _outcome(
    subject: Subject, bench: Bench, steps: int, name: str, served: Served, *, converted: bool
) -> EngineOutcome:
    one, held = served.interpretation, subject.states.states
    layers = one.aux_layers or (subject.declared.aux if converted else None)
    stops, ignored = served.stops, served.ignored
    if served.replaces_embedding:
        unknown = "" if subject.lent is not None else " (which are not known here)"
        ignored = (*ignored, f"the drafter's own embed_tokens, for it takes the verifier's{unknown}")
    if layers is None:
        stops = stops or "it feeds its default aux layers, which depend on the verifier's layer count"
    elif absent := sorted(set(layers) - set(held)):
        stops = stops or f"the capture does not hold hidden_states {absent}"
    elif not one.form.fc_bypassed and len(layers) != one.form.aux_count:
        stops = stops or f"it feeds {len(layers)} aux states into an fc for {one.form.aux_count}"
    if stops or layers is None:
        return EngineOutcome(name, one.reader, converted, None, ignored, stops)
    aux = layers[-1:] if one.form.fc_bypassed else layers
    bench, vocab = _bench(subject, bench, served)
    score = bench.score(Variant(one.form, aux, vocab), steps, subject.states.length)
    return EngineOutcome(name, one.reader, converted, score, ignored, "")


def _bench(subject: Subject, bench: Bench, served: Served) -> tuple[Bench, str]:
    """(the bench to run on, the name of the vocab map there): the given one, where it reads the same tensors."""
    one, weights = served.interpretation, bench.weights
    targets = one.target_ids(len(subject.targets))
    rows = {name: row for name, row in weights.rows.items() if name not in one.missing}
    if served.replaces_embedding and subject.lent is not None:
        rows.pop(EMBEDDING, None)
    vocab = next((name for name, known in bench.maps.items() if bool((known == targets).all())), "")
    if vocab and rows == dict(weights.rows):
        return bench, vocab
    lent = subject.lent if EMBEDDING not in rows else None
    other = weights.reread(rows, lent) if rows != dict(weights.rows) else weights
    return Bench(other, bench.states, bench.judge, {**bench.maps, "served": targets}), vocab or "served"
