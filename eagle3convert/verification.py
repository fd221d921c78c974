"""Verification: what was written is read again and held against the source, tensor by tensor and bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3convert.byteops import ByteOp, run_all
from eagle3convert.checkpoint.compare import Comparer
from eagle3convert.checkpoint.source import Checkpoint, open_checkpoint
from eagle3convert.checkpoint.stored import StoredTensor
from eagle3convert.drafter import Drafter
from eagle3convert.findings import Severity
from eagle3convert.nested import difference
from eagle3convert.planning import Plan
from eagle3convert.reading import Reading, Statements
from eagle3convert.rules import Case, lint
from eagle3convert.transforms import Row, State

Progress = Callable[[int], None]


@dataclass
class Verification:
    """The report of a verification: each check with its outcome, and every defect as a sentence."""

    checks: dict[str, str] = field(default_factory=dict)
    defects: list[str] = field(default_factory=list)
    compared_bytes: int = 0

    @property
    def passed(self) -> bool:
        return not self.defects

    def __bool__(self) -> bool:
        return self.passed

    def record(self, check: str, defects: list[str], good: str) -> None:
        self.checks[check] = good if not defects else f"failed: {len(defects)} defect(s)"
        self.defects += defects

    def as_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed, "checks": self.checks, "defects": self.defects,
            "compared_bytes": self.compared_bytes,
        }  # fmt: skip


def verify_output(plan: Plan, folder: Path, progress: Progress | None = None) -> Verification:
    """Read `folder` again and check it against the plan's source by the inverse path, and as its reader would."""
    with open_checkpoint(folder) as written:
        return Verifier(plan, written, progress).run()


class Verifier:
    """One verification: of the tensors, of the config, and of how the destination's reader takes the result."""

    def __init__(self, plan: Plan, written: Checkpoint, progress: Progress | None = None) -> None:
        self.plan = plan
        self.source = plan.drafter.reading.checkpoint
        self.written = written
        self.progress = progress
        self.report = Verification()

    def run(self) -> Verification:
        if self._names():
            self._inverse()
            self._bytes()
            self._reader()
        return self.report

    def _names(self) -> bool:
        """The written headers are those of the plan."""
        planned = {n: (r.dtype, r.shape) for n, r in self.plan.output.tensors.items()}
        found = {n: (t.dtype, t.shape) for n, t in self.written.tensors.items()}
        wrong = [f"{n}: planned and not written." for n in planned if n not in found]
        wrong += [f"{n}: written and not planned." for n in found if n not in planned]
        wrong += [
            f"{n}: {found[n][0]} {list(found[n][1])} was written, {planned[n][0]} {list(planned[n][1])} planned."
            for n in planned
            if n in found and found[n] != planned[n]
        ]
        self.report.record("tensors", wrong, f"{len(planned)} names, dtypes and shapes as planned")
        changes = difference(self.plan.output.config, self.written.config)
        edited = [f"config.json: {'.'.join(change['at'])} is not as planned." for change in changes]
        self.report.record("config", edited, "as planned")
        return not wrong

    def _inverse(self) -> None:
        """The inverse path leads back to the source's names, dtypes, shapes and config."""
        rows = {n: Row(t.dtype, t.shape, n) for n, t in self.written.tensors.items()}
        back = self.plan.path.inverse().apply(State(rows, self.written.config))
        source = {n: (t.dtype, t.shape) for n, t in self.source.tensors.items()}
        wrong = [f"{n}: the way back does not give it." for n in source if n not in back.tensors]
        wrong += [f"{n}: the way back invents it." for n in back.tensors if n not in source]
        wrong += [
            f"{n}: the way back gives {row.dtype} {list(row.shape)}."
            for n, row in back.tensors.items()
            if n in source and source[n] != (row.dtype, row.shape)
        ]
        self.report.record("way back", wrong, f"{len(source)} tensors of the source, names, dtypes and shapes")
        changes = difference(back.config, self.source.config)
        wrong = [f"config.json: the way back differs at {'.'.join(change['at'])}." for change in changes]
        self.report.record("config way back", wrong, "equal to the source's config.json")

    def _bytes(self) -> None:
        """Every tensor holds the source's bytes, or what the plan makes of them; exact changes are undone, too."""
        comparer, wrong, unchanged = Comparer(), list[str](), 0
        for name, row in self.plan.output.tensors.items():
            new = self.written.tensors[name]
            old = self.source.tensors[row.origin] if row.origin is not None else None
            if not row.ops and old is not None:
                unchanged += 1
                at = comparer.first_difference(old, new)
                if at is not None:
                    wrong.append(f"{name}: differs from the source's {row.origin} from byte {at} on.")
            else:
                wrong += self._changed(name, row, old, new)
            self.report.compared_bytes += new.nbytes
            if self.progress is not None:
                self.progress(new.nbytes)
        changed = len(self.plan.output.tensors) - unchanged
        said = f"{unchanged} tensors equal bit for bit" + (f", {changed} changed as planned" if changed else "")
        self.report.record("bytes", wrong, said)

    @staticmethod
    def _changed(name: str, row: Row, old: StoredTensor | None, new: StoredTensor) -> Iterator[str]:
        if not _equal(row.blocks(old), new):
            yield f"{name}: is not what the plan makes of {row.origin or 'the vocab map'}."
        elif old is not None and all(op.exact for op in row.ops):
            inverse: tuple[ByteOp, ...] = tuple(op.inverse() for op in reversed(row.ops))
            if not _equal(run_all(inverse, new.read, new.dtype, new.shape), old):
                yield f"{name}: undoing the change does not give {row.origin} again."

    def _reader(self) -> None:
        """The destination's reader takes the result for the drafter that was trained."""
        drafter, destination = self.plan.drafter, self.plan.destination
        back = destination.restoration
        said = back.stated if back is not None else {}  # the way back restores a source that did not say it itself
        statements = Statements(
            said.get("assume") or {},
            tuple(said["aux_layers"]) if said.get("aux_layers") is not None else None,
            said.get("d2t_encoding"),
            drafter.reading.verifier,
        )
        reading = Reading(self.written, destination.schema, statements)
        again = Drafter(reading)
        codes = {f.code for f in self.plan.findings}
        found = [
            f for f in lint(Case(again)) if f.severity is Severity.ERROR and not (back is not None and f.code in codes)
        ]
        self.report.record("reader", [str(f) for f in found], "no tensor dropped, none left unfilled")
        wrong = []
        if again.targets != drafter.targets:
            wrong.append("d2t: the destination reads other target ids than the source.")
        self.report.record("vocab map", wrong, _vocab_said(drafter))
        wrong = []
        if reading.aux.ascending is not None and reading.aux.ascending != destination.states:
            wrong.append(
                f"aux layers: {list(reading.aux.ascending)} are read, {list(destination.states or ())} trained."
            )
        states = destination.states
        shown = f"{list(states)} in hidden_states numbering" if states else "the default list of both formats"
        self.report.record("aux layers", wrong, shown)
        wrong = [
            f"{name}: {value!r} is read, {drafter.fields[name]!r} was trained."
            for name, value in again.fields.items()
            if name in BEHAVIOUR and name in drafter.fields and drafter.fields[name] != value
        ]
        self.report.record("features", wrong, "read as they were trained")


# Fields on which the forward pass depends and that both readings know.
BEHAVIOUR = frozenset({
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "draft_vocab_size", "target_hidden_size", "hidden_act", "rms_norm_eps", "rope", "mixed_attention",
    "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "final_norm", "qk_norm", "attention_bias",
    "mlp_bias", "fc_bias", "sliding_window", "multi_layer",
})  # fmt: skip


def _vocab_said(drafter: Drafter) -> str:
    if drafter.targets is None:
        return "none"
    kind = "full vocabulary" if drafter.full_vocabulary else "target ids"
    return f"{len(drafter.targets)} {kind} of {drafter.reading.dims.V}"


def _equal(blocks: Iterator[bytes], tensor: StoredTensor) -> bool:
    at = 0
    for block in blocks:
        if at + len(block) > tensor.nbytes or tensor.read(at, len(block)) != block:
            return False
        at += len(block)
    return at == tensor.nbytes
