"""Which format a checkpoint is in, with the evidence for each candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3convert.checkpoint.source import Checkpoint
from eagle3convert.errors import CheckpointError
from eagle3convert.formats import all_formats, find_format
from eagle3convert.nested import ABSENT, get
from eagle3convert.patterns import Pattern
from eagle3convert.schema import FormatSchema

ARCHITECTURES = "architectures"


@dataclass(frozen=True)
class Candidate:
    """A format and what speaks for it and against it in a checkpoint."""

    schema: FormatSchema
    evidence: tuple[str, ...]
    against: tuple[str, ...]
    ruled_out: str | None

    @property
    def score(self) -> int:
        """How much speaks for the format; a matching architectures counts twice, for readers go by it."""
        named = sum(line.startswith(ARCHITECTURES) for line in self.evidence)
        return len(self.evidence) + named - len(self.against) if self.ruled_out is None else -1

    def as_json(self) -> dict[str, Any]:
        return {
            "format": self.schema.name, "score": self.score, "evidence": list(self.evidence),
            "against": list(self.against), "ruled_out_by": self.ruled_out,
        }  # fmt: skip


def contradiction(checkpoint: Checkpoint, schema: FormatSchema) -> str | None:
    """The config field that shows that this is no drafter of the format, or None."""
    for field in schema.identify.refuted_by:
        if get(checkpoint.config, field) is not ABSENT:
            return field
    needed = schema.identify.requires_fields
    if needed and all(get(checkpoint.config, field) is ABSENT for field in needed):
        return f"none of {', '.join(needed)}"
    return None


def candidates(checkpoint: Checkpoint) -> tuple[Candidate, ...]:
    """Every format with its evidence, the likeliest first."""
    found = [_candidate(checkpoint, schema) for schema in all_formats()]
    return tuple(sorted(found, key=lambda c: (-c.score, -c.schema.identify.rank, c.schema.name)))


def _candidate(checkpoint: Checkpoint, schema: FormatSchema) -> Candidate:
    known, config = schema.identify, checkpoint.config
    architectures = config.get("architectures")
    named = [a for a in architectures if a in known.architectures] if isinstance(architectures, list) else []
    evidence = [f"{ARCHITECTURES} {name}" for name in named]
    evidence += [f"config field {field}" for field in known.fields if get(config, field) is not ABSENT]
    evidence += [f"tensors {pattern}" for pattern in known.tensors if _any(checkpoint, pattern)]
    against = [f"tensors {pattern}" for pattern in known.without_tensors if _any(checkpoint, pattern)]
    against += [f"config field {field}" for field in known.without_fields if get(config, field) is not ABSENT]
    against += [f"no config field {field}" for field in known.usual_fields if get(config, field) is ABSENT]
    return Candidate(schema, tuple(evidence), tuple(against), contradiction(checkpoint, schema))


def _any(checkpoint: Checkpoint, pattern: str) -> bool:
    wanted = Pattern(pattern)
    return any(wanted.match(name) is not None for name in checkpoint.tensors)


def source_schema(
    checkpoint: Checkpoint,
    name: str,
    receipt: Mapping[str, Any] | None = None,
    format_files: Sequence[str | Path] = (),
) -> FormatSchema:
    """The format that a caller names for a checkpoint; "auto" means the one that it is in."""
    if name == "auto":
        return choose_source(checkpoint, receipt, format_files)
    return find_format(name, format_files)


def choose_source(
    checkpoint: Checkpoint, receipt: Mapping[str, Any] | None = None, format_files: Sequence[str | Path] = ()
) -> FormatSchema:
    """The one format that the checkpoint is in; where several are as likely, CheckpointError names them.

    A receipt of the conversion that made the folder decides at once.  Between formats that tie and read the drafter
    alike the choice does not matter: the one of higher rank is taken.
    """
    if receipt is not None:
        return find_format(receipt["destination"]["format"], format_files)
    ranked = [c for c in candidates(checkpoint) if c.score > 0]
    if not ranked:
        raise CheckpointError(
            f"{checkpoint.label}: this is no EAGLE-3 drafter of a known format: nothing in config.json or the tensor "
            f"names speaks for one. State the source format where you know it."
        )
    best = [c for c in ranked if c.score == ranked[0].score]
    best += [c for c in ranked if c not in best and _doubtful(checkpoint, c)]
    if len(best) > 1 and len({_meaning(checkpoint, c.schema) for c in best}) > 1:
        listed = "; ".join(f"{c.schema.name} ({', '.join(c.evidence)})" for c in best)
        raise CheckpointError(
            f"{checkpoint.label}: several formats are as likely, and they read the drafter differently: {listed}. "
            f"State the format: in place of `auto`, or with --format."
        )
    return best[0].schema


def _doubtful(checkpoint: Checkpoint, candidate: Candidate) -> bool:
    """Whether a less likely format would read a field of this config in a way that is in dispute."""
    named = any(line.startswith(ARCHITECTURES) for line in candidate.evidence)
    disputed = (field for rule in candidate.schema.features.values() for field in rule.disputed_by)
    return named and not candidate.against and any(get(checkpoint.config, f) is not ABSENT for f in disputed)


def _meaning(checkpoint: Checkpoint, schema: FormatSchema) -> str:
    """What a format makes of the drafter, as a comparable text."""
    from eagle3convert.drafter import Drafter
    from eagle3convert.reading import Reading

    drafter = Drafter(Reading(checkpoint, schema))
    fields = {k: v for k, v in drafter.fields.items() if not k.startswith("neutral.")}
    return repr((sorted(fields.items(), key=lambda item: item[0]), drafter.reading.aux.default, drafter.targets))
