"""Replay: how well a drafter drafts on captured hidden states, as declared, as served, and otherwise read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from eagle3convert.checkpoint.source import open_checkpoint
from eagle3convert.errors import UsageError
from eagle3convert.identify import source_schema
from eagle3convert.options import Options
from eagle3convert.reading import Reading
from eagle3convert.receipt import read_receipt, remembered
from eagle3convert.reference.bench import Bench, Judge, Score, Variant, limited
from eagle3convert.reference.engines import engine_outcomes
from eagle3convert.reference.fix import Fix, fix_for
from eagle3convert.reference.readings import FLAGS, Effort, Space, Tried, differences, finalists, search
from eagle3convert.reference.report import Outcome, ReplayReport
from eagle3convert.reference.states import read_states
from eagle3convert.reference.subject import Subject, nearest, prepare
from eagle3convert.reference.threads import threads_for
from eagle3convert.reference.verifier_ends import ends_of

LIMIT = 4096  # positions that are measured of a longer capture
SMALL = 5e9  # weights times positions up to which a drafter is small, and is searched on all positions and further
PROBE_ROWS, PROBE_STEPS = 128, 2  # positions, at least, and draft steps that the search runs a large drafter on
PROBE_COUNTED = 64  # of these positions so many, at least, are such that a drafter is asked there
BUDGETS = {True: 600, False: 100}  # runs of a small drafter in one search, and of a large one
SHOWN = 5  # readings that are measured in every draft step beside the declared one
PERFECT = 0.98  # a reading that names this share of the right tokens in every step ends the search
CLEAR = 0.02  # acceptance lengths that differ by less are as good as each other

Progress = Callable[[int, int], None]  # (runs of the drafter so far, the most there can be)


def replay(
    drafter_folder: str | Path,
    states_files: Sequence[str | Path],
    *,
    format_name: str = "auto",
    for_format: str | None = None,
    steps: int = 3,
    verifier: str | Path | None = None,
    progress: Progress | None = None,
    limit: int = LIMIT,
    device: str = "cpu",
    dtype: str = "float32",
    **stated: Any,
) -> ReplayReport:
    """Measure the drafter in a folder on captured hidden states, under its declared reading and every plausible other.

    `for_format` restricts "as served" to one format and is the destination of the proposed command.  `verifier` is the
    verifier's folder: its config states the layer count, and its weights, where they are there, give the embeddings
    that the drafter lacks and the right tokens.  `limit` bounds the positions that are measured, `dtype` is what is
    computed in, float32 or bfloat16.  Further keyword arguments are the fields of `eagle3convert.Options`.
    Raises UsageError and CheckpointError where drafter, states and verifier do not go together.
    """
    compute = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(dtype)
    if compute is None:
        raise UsageError(f"dtype {dtype!r}: the reference forward pass computes in float32 or bfloat16.")
    if steps < 1 or limit < 1:
        raise UsageError(f"steps {steps}, limit {limit}: at least one draft step at one position is measured.")
    options = Options(verifier=verifier, **stated)
    weights = options.verifier_weights()
    try:
        with open_checkpoint(Path(drafter_folder)) as checkpoint:
            receipt = read_receipt(checkpoint)
            schema = source_schema(checkpoint, format_name, receipt)
            reading = Reading(checkpoint, schema, options.statements(remembered(receipt, schema.name)))
            states = read_states(states_files, reading.aux.ascending, reading.dims.A or 3)
            subject = prepare(reading, limited(states, limit), ends_of(weights), compute, device)
            with threads_for(subject.trained.form.hidden_size):
                return _Replay(subject, steps, for_format, states.length, progress).run()
    finally:
        weights.close()


class _Replay:
    """One replay of a subject."""

    def __init__(
        self, subject: Subject, steps: int, for_format: str | None, captured: int, progress: Progress | None
    ) -> None:
        self.subject, self.steps, self.for_format, self.captured = subject, steps, for_format, captured
        self.rows = subject.states.length
        runs = [0]

        def counted() -> None:
            runs[0] += 1
            if progress is not None:
                progress(runs[0], BUDGETS[self.small] + SHOWN + len(FLAGS) + 4)

        judge = Judge(subject.states, subject.choices)
        self.bench = Bench(subject.weights, subject.states, judge, subject.maps, counted)

    def run(self) -> ReplayReport:
        subject, states = self.subject, self.subject.states
        held = sorted(states.states)
        runnable = set(subject.declared.aux) <= set(held)
        start = subject.declared if runnable else replace(subject.declared, aux=nearest(subject.declared.aux, held))
        self._demand_positions(start)
        tried = search(self._space(), start, self._probed, lambda: self.bench.runs, self._effort(start))
        outcomes = self._ranked(finalists(tried, start, SHOWN))
        winner = self._winner(outcomes)
        changed = winner.differences
        return ReplayReport(
            drafter=subject.where,
            format_name=subject.drafter.reading.schema.name,
            files=states.files,
            positions=self.rows,
            sequences=len(states.packed.starts),
            states=tuple(states.states),
            numbered=states.numbered,
            judged_by=subject.judged_by,
            declared_layers=subject.declared.aux,
            declared=next((o for o in outcomes if not o.differences), None),
            engines=engine_outcomes(subject, self.bench, self.steps, self.for_format),
            ranked=tuple(outcomes),
            explored=tuple((self._name(one.variant), one.share) for one in tried),
            winner=winner,
            tried=len(tried),
            runs=self.bench.runs,
            ceiling=self._ceiling(winner),
            fix=fix_for(subject.drafter.reading, winner.variant, changed, self.for_format) if changed else Fix(),
            missing=subject.trained.missing,
            fresh=self.fresh,
            notes=self._notes(),
        )

    # --- the search ---------------------------------------------------------------------------------------------------

    @cached_property
    def small(self) -> bool:
        rows = self.subject.weights.rows
        size = sum(math.prod(row.shape) for name, row in rows.items() if name != "embed_tokens.weight")
        return size * self.rows <= SMALL

    @cached_property
    def probe_rows(self) -> int:
        counted = self.bench.judge.expected(0)[1].cumsum(0)
        enough = (counted >= min(PROBE_COUNTED, int(counted[-1]))).nonzero()[0]
        return self.rows if self.small else min(self.rows, max(PROBE_ROWS, int(enough) + 1))

    def _probe(self, variant: Variant) -> Score:
        return self.bench.score(variant, min(self.steps, PROBE_STEPS), self.probe_rows)

    def _probed(self, variant: Variant) -> Tried:
        score = self._probe(variant)
        return Tried(variant, score.shares[0], score.length)

    def _effort(self, start: Variant) -> Effort:
        probe = self._probe(start)
        noise = min(0.05, float(probe.positions[0] ** -0.5))
        return Effort(BUDGETS[self.small], noise, 1 + PERFECT * len(probe.shares), self.small)

    def _space(self) -> Space:
        subject, form = self.subject, self.subject.trained.form
        flags: tuple[str, ...] = FLAGS
        if subject.drafter.reading.schema.features["final_norm"].is_fixed:
            flags = tuple(flag for flag in flags if flag != "final_norm")
        if subject.trained.missing or self.fresh:
            flags = ()  # the switches of a layer of noise say nothing
        return Space(
            tuple(subject.states.states),
            subject.states.numbered,
            tuple(subject.maps),
            subject.drafter.reading.verifier.num_hidden_layers,
            form.hidden_size == form.target_hidden_size,
            flags,
        )

    def _demand_positions(self, start: Variant) -> None:
        if not all(self.bench.score(start, self.steps, self.rows).positions) or not self._probe(start).positions[0]:
            raise UsageError(
                f"{self.subject.states.files[0]}: at no position of the captured text can {self.steps} draft steps be "
                f"judged by {self.subject.judged_by}. Capture longer sequences, or text that the verifier wrote itself."
            )

    @cached_property
    def fresh(self) -> tuple[str, ...]:
        """The norms of decoder layers that are all exactly 1, where every one of a layer is: as before any training."""
        trained, found = self.subject.trained, list[str]()
        for i in range(trained.form.layers):
            norms = [n for n in trained.rows if n.startswith(f"layers.{i}.") and "norm" in n]
            values = [self.subject.weights.get(n, *trained.rows[n].shape) for n in norms]
            if values and all(bool((v == 1).all()) for v in values):
                found += norms
        return tuple(found)

    # --- what comes of it ---------------------------------------------------------------------------------------------

    def _name(self, variant: Variant) -> str:
        return ", ".join(d.said for d in differences(variant, self.subject.declared)) or "as declared"

    def _ranked(self, variants: Sequence[Variant]) -> list[Outcome]:
        """The variants measured in every draft step, the best first; ties go to what is nearer to the declared one."""
        found = []
        for variant in variants:
            score = self.bench.score(variant, self.steps, self.rows)
            found.append(Outcome(variant, score, tuple(differences(variant, self.subject.declared))))
        return sorted(found, key=lambda o: (-round(o.length, 6), len(o.differences)))

    @staticmethod
    def _winner(outcomes: list[Outcome]) -> Outcome:
        """The outcome with the fewest differences that is as good as the best one within what chance can do."""
        best = outcomes[0]

        def clearly_worse(one: Outcome) -> bool:
            loss = best.score.lengths.double() - one.score.lengths.double()
            error = float(loss.std()) / len(loss) ** 0.5 if len(loss) > 1 else 0.0
            return float(loss.mean()) > max(CLEAR, 2 * error)

        as_good = [one for one in outcomes if not clearly_worse(one)]
        return min(as_good, key=lambda one: len(one.differences))

    def _ceiling(self, winner: Outcome) -> float:
        """The share of right tokens that the draft vocabulary holds at all."""
        wanted, counts = self.bench.judge.expected(0)
        known = torch.isin(wanted[counts], self.subject.maps[winner.variant.vocab])
        return float(known.double().mean())

    def _notes(self) -> tuple[str, ...]:
        dropped = self.subject.trained.dropped
        notes = [*self.subject.states.notes, *self.subject.trained.notes]
        if self.rows < self.captured:
            notes.append(f"The first {self.rows} of {self.captured} captured positions were measured.")
        if self.probe_rows < self.rows:
            notes.append(f"The search ran on the first {self.probe_rows} positions, what is shown on all.")
        if dropped:
            listed = ", ".join(dropped[:4]) + (" …" if len(dropped) > 4 else "")
            notes.append(f"Tensors that belong to no part of a drafter were left out: {listed}.")
        return tuple(notes)
