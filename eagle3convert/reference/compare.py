"""The numeric proof of a conversion: the source as trained and the output as served, on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3convert.byteops import FLOAT_NAMES
from eagle3convert.checkpoint.source import Checkpoint, open_checkpoint
from eagle3convert.drafter import Drafter
from eagle3convert.hub.opening import open_source
from eagle3convert.planning import Plan
from eagle3convert.reference.as_served import Served, as_read, reading_of
from eagle3convert.reference.cache import Packed
from eagle3convert.reference.interpretation import Interpretation, as_trained
from eagle3convert.reference.threads import threads_for
from eagle3convert.reference.weights import random_rows
from eagle3convert.replanning import replan
from eagle3convert.schema import FormatSchema

ROWS = 32  # positions of the random text
STEPS = 3
TOLERANCE = 1e-5  # of the largest logit; the same numbers in another order of summation differ by less
HEAD_ROWS = 4096  # of the random head that stands in for a verifier's lm_head


@dataclass(frozen=True)
class NumericReport:
    """How far the served output is from the trained source, one entry per draft step.

    `differences` are the largest |difference| of logits, `largest_logit` what they are to be held against,
    `agreement` the share of positions with the same top-1 target token.  `cast` is the largest difference that the
    change of dtype alone makes, None where nothing was cast; the differences are then those to the source rounded
    likewise.
    """

    source: str
    served: str
    differences: tuple[float, ...]
    agreement: tuple[float, ...]
    largest_logit: float
    cast: float | None = None
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stops: str = ""  # why the reader does not start on the output at all

    @property
    def equal(self) -> bool:
        """Whether the output computes what the source was trained for: the same tokens, and logits up to rounding."""
        bound = TOLERANCE * max(1.0, self.largest_logit)
        return not self.stops and all(d <= bound for d in self.differences) and all(a == 1.0 for a in self.agreement)

    def __bool__(self) -> bool:
        return self.equal

    def as_json(self) -> dict[str, Any]:
        return {
            "equal": self.equal, "source": self.source, "served": self.served, "differences": list(self.differences),
            "agreement": list(self.agreement), "largest_logit": self.largest_logit, "cast": self.cast,
            "ignored": list(self.ignored), "notes": list(self.notes), "stops": self.stops or None,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """The report as text, the verdict last."""
        lines = [f"{self.source} as trained, and the output as {self.served} serves it, on the same random states:"]
        for step, (difference, share) in enumerate(zip(self.differences, self.agreement, strict=True)):
            lines.append(
                f"  draft step {step}: largest difference of logits {difference:.3g} (of {self.largest_logit:.3g}), "
                f"same target token at {share:.1%} of the positions"
            )
        if self.cast is not None:
            lines.append(f"  the cast by itself moves logits by up to {self.cast:.3g}")
        lines += [f"  {line}" for line in (*self.ignored, *self.notes, self.stops) if line]
        verdict = "bit-equal" if not any(self.differences) else "equal up to rounding"
        return [*lines, f"numeric: {verdict if self.equal else 'NOT EQUAL: the output computes something else'}"]


def numeric_comparison(
    trained: Interpretation,
    served: Served,
    *,
    rounded: Mapping[str, str] | None = None,
    steps: int = STEPS,
    rows: int = ROWS,
    seed: int = 0,
    device: str = "cpu",
) -> NumericReport:
    """Run both on the same random states and tokens; `rounded` says what the conversion cast: canonical name -> dtype.

    Each takes its own aux layers out of the same set of hidden states, so that a wrong list shows.  The two are run one
    after the other, so that only one drafter is in memory.
    """
    other = served.interpretation
    notes, layers = _layers(trained, other)
    states, tokens = _inputs(trained, layers, rows, seed)
    with threads_for(trained.form.hidden_size):
        left = _run(trained, [states[k] for k in layers[0]], tokens, steps, seed, device, rounded)
        right = _run(other, [states[k] for k in layers[1]], tokens, steps, seed, device)
        whole = _run(trained, [states[k] for k in layers[0]], tokens, steps, seed, device) if rounded else None
    cast = None
    if whole is not None:
        cast = max(float((a - b).abs().max()) for (a, _), (b, _) in zip(whole, left, strict=True))
    if served.replaces_embedding:
        notes.append(
            f"{other.reader} takes the verifier's embeddings for the drafter's own: equal where these are equal."
        )
    unfilled = [f"{name} is wanted and not there; noise stands for it." for name in other.missing]
    unfilled += [f"{name} is there and not loaded." for name in other.dropped]
    return NumericReport(
        trained.reader,
        other.reader,
        tuple(_distance(a, b) for (a, _), (b, _) in zip(left, right, strict=True)),
        tuple(float((a == b).double().mean()) for (_, a), (_, b) in zip(left, right, strict=True)),
        max(float(logits.abs().max()) for logits, _ in left),
        cast,
        served.ignored,
        (*notes, *trained.notes, *unfilled),
        served.stops,
    )


def _layers(
    trained: Interpretation, served: Interpretation
) -> tuple[list[str], tuple[tuple[int, ...], tuple[int, ...]]]:
    """The states that each takes; where the list is the default one of an unknown verifier, block by block."""
    a, b = trained.aux_layers, served.aux_layers
    if a is not None and b is not None:
        return [], (a, b)
    blocks = [tuple(range(i.form.aux_count)) for i in (trained, served)]
    note = "The aux layers are the default list of a verifier of unknown layer count: their numbers are not compared."
    return [note], (a or b or blocks[0], b or a or blocks[1])


def _inputs(
    trained: Interpretation, layers: tuple[tuple[int, ...], tuple[int, ...]], rows: int, seed: int
) -> tuple[dict[int, Tensor], Tensor]:
    source = torch.Generator().manual_seed(seed)
    form = trained.form
    states = {k: torch.randn(rows, form.target_hidden_size, generator=source) for k in sorted({*layers[0], *layers[1]})}
    return states, torch.randint(form.vocab_size, (rows,), generator=source)


def _run(
    one: Interpretation,
    aux: list[Tensor],
    tokens: Tensor,
    steps: int,
    seed: int,
    device: str,
    rounded: Mapping[str, str] | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """(logits, top-1 target ids) of every draft step."""
    form = one.form
    head = None
    if one.needs_head:
        count = min(form.vocab_size, HEAD_ROWS)
        head = torch.randn(count, form.hidden_size, generator=torch.Generator().manual_seed(seed + 1)) * 0.1
    model = one.model(torch.float32, device, rounded, random_rows(form.hidden_size, seed), head)
    result = []
    for logits in model.draft_rows(aux, tokens, Packed(len(tokens)), steps):
        targets = one.target_ids(logits.shape[1])
        result.append((logits.cpu(), targets[logits.argmax(-1).cpu()]))
    return result


def _distance(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    difference = (a.double() - b.double()).abs()
    return float(difference.max()) if bool(difference.isfinite().all()) else float("inf")


# --- for a plan, and for two folders ----------------------------------------------------------------------------------


def compare_plan(plan: Plan, folder: str | Path, *, steps: int = STEPS, device: str = "cpu") -> NumericReport:
    """Compare the source of a plan with what was written for it in `folder`."""
    with open_checkpoint(Path(folder)) as written:
        return compare_written(plan, written, steps=steps, device=device)


def compare_written(plan: Plan, written: Checkpoint, *, steps: int = STEPS, device: str = "cpu") -> NumericReport:
    """Compare the source of a plan with an open checkpoint that was written for it."""
    rounded = {name: new for name, _, new in plan.destination.casts if new in FLOAT_NAMES}
    served = _served(written, plan.destination.schema, plan.drafter, plan.destination.release)
    return numeric_comparison(as_trained(plan.drafter), served, rounded=rounded, steps=steps, device=device)


def verify_numeric(
    source: str | Path,
    out: str | Path,
    *,
    steps: int = STEPS,
    device: str = "cpu",
    release: str = "",
    format_files: Sequence[str | Path] = (),
) -> NumericReport:
    """Compare an existing conversion in numbers: `source` as it was trained, `out` as it is served.

    The formats and what was stated are taken from the receipt in `out`, also where the folder was changed after it was
    written: that is what shall be seen.
    """
    with open_source(source) as before, open_checkpoint(Path(out)) as after:
        plan = replan(before, Path(out), format_files)
        served = _served(after, plan.destination.schema, plan.drafter, release or plan.destination.release)
        rounded = _rounded(plan.drafter, served)
        return numeric_comparison(as_trained(plan.drafter), served, rounded=rounded, steps=steps, device=device)


def _served(after: Checkpoint, schema: FormatSchema, drafter: Drafter, release: str) -> Served:
    return as_read(reading_of(after, schema, drafter.reading.verifier, release), release)


def _rounded(drafter: Drafter, served: Served) -> dict[str, str]:
    """The float tensors that have another dtype in the output than in the source."""
    old, new = drafter.canonical_state.tensors, served.interpretation.rows
    return {
        n: row.dtype for n, row in new.items() if n in old and old[n].dtype != row.dtype and row.dtype in FLOAT_NAMES
    }
