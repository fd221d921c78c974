"""Plan: everything that a conversion will do, proven complete before a byte is moved."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eagle3convert.canonical import fold_names
from eagle3convert.checkpoint.source import Checkpoint
from eagle3convert.config_transforms import Composite
from eagle3convert.destination import Destination, Restoration
from eagle3convert.drafter import Drafter
from eagle3convert.errors import Refused
from eagle3convert.findings import Finding, Severity
from eagle3convert.formats import all_formats, find_format
from eagle3convert.nested import difference
from eagle3convert.reading import Reading, Statements
from eagle3convert.rules import Case, lint
from eagle3convert.schema import FormatSchema
from eagle3convert.transforms import Row, State
from eagle3convert.verifier_weights import EMBEDDING, NO_WEIGHTS, VerifierWeights

DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True)
class Plan:
    """A conversion as a path of transforms, the state it leads to, and what the rules say about it."""

    drafter: Drafter
    destination: Destination
    weights: VerifierWeights = NO_WEIGHTS  # the verifier's, to be compared

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What the rules find, errors first."""
        return lint(Case(self.drafter, self.destination, weights_of_verifier=self.weights))

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity is Severity.WARNING)

    @property
    def embedding_not_compared(self) -> str:
        """Why it is not known whether an embedding that the engine replaces is the verifier's, or nothing."""
        reading = self.drafter.reading
        own = reading.tensor(EMBEDDING)
        if own is None or self.destination.schema.embed_tokens != "replaced" or reading.feature("narrow").value:
            return ""
        return self.weights.why_not(EMBEDDING, own)

    @cached_property
    def path(self) -> Composite:
        """The simplified path from the source's spelling to the destination's."""
        return Composite((*self.drafter.decode, *self.destination.encode)).simplified()

    @cached_property
    def output(self) -> State:
        """The destination's tensors and config, in the source's data order, derived tensors last."""
        self.demand()
        state = self.path.apply(self.drafter.source_state)
        used = [row.origin for row in state.tensors.values() if row.origin is not None]
        dropped = {self.drafter.reading.names.names[n] for n in self.destination.vocab_changes()[0]}
        lost = set(self.drafter.source_state.tensors) - set(used) - dropped
        if lost or len(set(used)) != len(used):
            raise AssertionError(f"the plan does not use every source tensor exactly once: {sorted(lost)}")
        return state

    def demand(self) -> None:
        """Raise Refused with every reason where the plan may not be carried out."""
        if self.errors:
            raise Refused(self.refusal(), self.errors)

    def refusal(self) -> str:
        source, destination = self.drafter.reading.schema, self.destination.schema
        count = len(self.errors)
        head = f"{self.drafter.reading.checkpoint.label}: not converted from {source.name} to {destination.name}, for "
        lines = [head + ("one reason:" if count == 1 else f"{count} reasons:")]
        lines += [f"  {finding}" for finding in self.errors]
        if served := self.served_by():
            lines.append(f"  {' and '.join(served)} can serve this drafter as it was trained.")
            notes = [(name, find_format(name).launch_note) for name in served]
            lines += [f"  {name}: {note}" for name, note in notes if note]
        return "\n".join(lines)

    def served_by(self) -> list[str]:
        """The other engines' formats into which this drafter converts without an error."""
        here = self.destination.schema
        if not any(code in ("E401", "E305", "E705") for code in (f.code for f in self.errors)):
            return []
        others = [s for s in all_formats() if s.role == "engine" and s.name != here.name]
        return [s.name for s in others if not Plan(self.drafter, Destination(self.drafter, s), self.weights).errors]

    # --- what people and programs read of it --------------------------------------------------------------------------

    def change_of(self, row: Row) -> str:
        return "bytes unchanged" if not row.ops else "; ".join(map(str, row.ops))

    @cached_property
    def launch(self) -> tuple[str, ...]:
        """The words of the launch command, {drafter} still to be filled in; empty for a trainer's format."""
        words = list(self.destination.schema.launch)
        if not words:
            return ()
        verifier = self.drafter.reading.verifier.name or "VERIFIER"
        window = self.drafter.reading.feature("sliding_window").value
        for rule in self.destination.schema.features.values():
            if rule.launch and isinstance(window, int):
                words += rule.launch.format(window_minus_1=window - 1).split()
        return tuple(w.replace("{verifier}", verifier).replace("{tokens}", "3") for w in words)

    def launch_command(self, drafter: str) -> str:
        return shlex.join(word.replace("{drafter}", drafter) for word in self.launch)

    @cached_property
    def config_changes(self) -> list[dict[str, Any]]:
        return difference(self.drafter.reading.checkpoint.config, self.output.config)

    def as_json(self) -> dict[str, Any]:
        """The whole plan as one JSON object; a refused plan has its findings and no rows."""
        reading, destination = self.drafter.reading, self.destination
        plan: dict[str, Any] = {
            "source": {"path": reading.checkpoint.label, "format": reading.schema.name},
            "destination": {"format": destination.schema.name, "release": destination.version},
            "refused": bool(self.errors),
            "findings": [f.as_json() for f in self.findings],
        }
        if self.errors:
            return plan | {"served_by": self.served_by()}
        return plan | {
            "lowest_release": destination.lowest_release,
            "steps": [str(step) for step in self.path.steps],
            "tensors": [
                {
                    "name": name, "dtype": row.dtype, "shape": list(row.shape), "source": row.origin,
                    "change": self.change_of(row),
                }
                for name, row in self.output.tensors.items()
            ],
            "left_out": [reading.found(n) for n in destination.vocab_changes()[0]],
            "config": self.output.config,
            "config_changes": self.config_changes,
            "launch": list(self.launch),
            "launch_note": destination.schema.launch_note,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """The plan as text."""
        reading, destination = self.drafter.reading, self.destination
        moved: dict[str, list[str]] = {}
        for name, row in self.output.tensors.items():
            if row.ops or row.origin is None:
                what = self.change_of(row)
            else:
                what = "name and bytes unchanged" if row.origin == name else "renamed, bytes unchanged"
            moved.setdefault(what, []).append(f"{row.origin} -> {name}" if row.origin not in (name, None) else name)
        lines = [
            f"{reading.schema.title} -> {destination.schema.title}",
            f"lowest {destination.schema.product} release that serves it: {destination.lowest_release}",
            "tensors:",
        ]
        for what, names in moved.items():
            lines.append(f"  {what} ({len(names)}):")
            lines += [f"    {name}" for name in _folded_pairs(names)]
        lines += [f"  left out, follows from d2t: {reading.found(n)}" for n in destination.vocab_changes()[0]]
        if reading.vocab.encoding is not None:
            there = destination.schema.vocab_map.encoding
            same = ", bytes unchanged" if there == reading.vocab.encoding else ", recoded"
            lines.append(f"d2t: {reading.vocab.encoding} -> {there}{same}")
        lines.append("config.json:")
        lines += [f"  {_shown_change(change)}" for change in self.config_changes]
        return lines


def _folded_pairs(names: list[str]) -> list[str]:
    return names if len(names) <= 24 else fold_names(names)


def _shown_change(change: dict[str, Any]) -> str:
    where = ".".join(change["at"])
    return f"{where} = {change['value']!r}" if "value" in change else f"without {where}"


def make_plan(
    checkpoint: Checkpoint,
    source: FormatSchema,
    destination: FormatSchema,
    statements: Statements | None = None,
    release: str = "",
    dtype: str | None = None,
    restoration: Restoration | None = None,
    weights: VerifierWeights = NO_WEIGHTS,
) -> Plan:
    """Read a checkpoint as `source` and plan its conversion to `destination`; refusals are in `findings`.

    `dtype` is a config's name of a float dtype ("bfloat16"), or None to keep what is stored.
    """
    drafter = Drafter(Reading(checkpoint, source, statements))
    stored = DTYPES[dtype] if dtype is not None else None
    return Plan(drafter, Destination(drafter, destination, release, stored, restoration), weights)
