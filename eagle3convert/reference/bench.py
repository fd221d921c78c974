"""Bench: runs a drafter on captured states under any reading and counts how often it names the right token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from eagle3convert.errors import CheckpointError
from eagle3convert.reference.cache import Packed
from eagle3convert.reference.form import Form
from eagle3convert.reference.forward import DraftModel
from eagle3convert.reference.states import CapturedStates
from eagle3convert.reference.weights import Weights

GROUP = 1024  # rows run at once, in whole sequences; bounds the memory of logits


@dataclass(frozen=True)
class Variant:
    """One reading of a drafter: its form, the hidden states that feed fc (in fc's order), and the reading of d2t."""

    form: Form
    aux: tuple[int, ...]
    vocab: str

    @property
    def run_key(self) -> tuple[Any, ...]:
        """What its draft ids depend on; readings that differ in the vocab map share one run."""
        form = self.form
        return (self.aux, *(getattr(form, n) for n in form.__dataclass_fields__ if n not in ("rope", "guessed")))


@dataclass(frozen=True)
class Score:
    """How a reading drafts: the share of right tokens of each draft step, and the expected acceptance length.

    A share counts positions where every token drafted upon was the verifier's.  `lengths` [N] are the tokens that
    greedy verification yields per pass at each position where all steps can be judged: those accepted, and the
    verifier's own.
    """

    shares: tuple[float, ...]
    positions: tuple[int, ...]
    lengths: Tensor = field(repr=False, compare=False)

    @property
    def length(self) -> float:
        return float(self.lengths.double().mean()) if len(self.lengths) else 1.0


class Judge:
    """What the right token is at each position, and where a drafter is asked for it.

    `follow` [T] is the token that comes after position t: the verifier's own choice, or the text's next token where
    nothing says that choice (`own` is then None).  A drafter is asked only where it drafts upon the verifier's choices.
    """

    def __init__(self, states: CapturedStates, argmax: Tensor | None) -> None:
        packed, tokens = states.packed, states.token_ids
        self.packed, self.tokens = packed, tokens
        self.follow = argmax if argmax is not None else packed.shifted(tokens, 1)
        here = packed.left >= 1
        self.known = torch.ones_like(here) if argmax is not None else here
        self.own = packed.shifted(tokens, 1) == argmax if argmax is not None else torch.ones_like(here)
        self.own &= here
        if states.counted is not None:
            # The token after position t is asked for where the trainers counted it.
            self.known &= packed.shifted(states.counted.to(torch.int64), 1).bool()

    def expected(self, step: int) -> tuple[Tensor, Tensor]:
        """(the right token [T] of a draft step, whether the row counts [T])."""
        shift = self.packed.shifted
        counts = self.packed.left >= step + 1
        for j in range(step + 1):
            counts &= shift(self.own.to(torch.int64), j).bool()
        counts &= shift(self.known.to(torch.int64), step + 1).bool()
        return shift(self.follow, step + 1), counts


class Bench:
    """Runs variants on captured states; runs are remembered, and counted in `runs`."""

    def __init__(
        self,
        weights: Weights,
        states: CapturedStates,
        judge: Judge,
        maps: Mapping[str, Tensor],
        progress: Callable[[], None] | None = None,
    ) -> None:
        self.weights, self.states, self.judge, self.maps = weights, states, judge, maps
        self.progress = progress
        self.runs = 0
        self._known: dict[tuple[Any, ...], list[Tensor]] = {}

    def score(self, variant: Variant, steps: int, rows: int) -> Score:
        """The score of a variant over the first `rows` positions and so many draft steps."""
        drafted = self._drafted(variant, steps, rows)
        targets = self.maps[variant.vocab]
        shares, positions = [], []
        lengths = torch.ones(rows)
        whole = torch.ones(rows, dtype=torch.bool)
        alive = torch.ones(rows, dtype=torch.bool)
        for step, ids in enumerate(drafted):
            wanted, counts = (x[:rows] for x in self.judge.expected(step))
            right = targets[ids] == wanted
            count = int(counts.sum())
            positions.append(count)
            shares.append(float(right[counts].double().mean()) if count else 0.0)
            alive = alive & right
            lengths = lengths + alive
            whole &= counts
        return Score(tuple(shares), tuple(positions), lengths[whole])

    def _drafted(self, variant: Variant, steps: int, rows: int) -> list[Tensor]:
        """The draft ids [rows] of each step, run where they are not remembered."""
        key = (variant.run_key, rows)
        known = self._known.get(key, [])
        if len(known) < steps:
            known = self._run(variant, steps, rows)
            self._known[key] = known
            self.runs += 1
            if self.progress is not None:
                self.progress()
        return known[:steps]

    def _run(self, variant: Variant, steps: int, rows: int) -> list[Tensor]:
        model = DraftModel(variant.form, self.weights)
        tokens = self.judge.packed.shifted(self.judge.tokens, 1)
        parts: list[list[Tensor]] = [[] for _ in range(steps)]
        for first, last, packed in groups(self.judge.packed, rows):
            aux = [self.states.states[k][first:last] for k in variant.aux]
            for step, logits in enumerate(model.draft_rows(aux, tokens[first:last], packed, steps)):
                if logits.shape[1] > len(self.maps[variant.vocab]):
                    raise CheckpointError(
                        f"lm_head has {logits.shape[1]} rows and the vocab map {len(self.maps[variant.vocab])} "
                        f"entries; they belong to different drafters."
                    )
                parts[step].append(logits.argmax(-1).cpu())
        return [torch.cat(part) for part in parts]


def groups(packed: Packed, rows: int) -> list[tuple[int, int, Packed]]:
    """The first `rows` rows in groups of whole sequences: (first row, last row + 1, its sequences)."""
    result: list[tuple[int, int, Packed]] = []
    spans = [(a, min(b, rows)) for a, b in packed.spans if a < rows]
    at, starts = 0, list[int]()
    for i, (start, end) in enumerate(spans):
        starts.append(start - at)
        following = spans[i + 1][1] if i + 1 < len(spans) else None
        if following is None or following - at > GROUP:
            result.append((at, end, Packed(end - at, tuple(starts))))
            at, starts = end, []
    return result


def limited(states: CapturedStates, rows: int) -> CapturedStates:
    """The first `rows` positions of captured states."""
    if rows >= states.length:
        return states

    def cut(x: Tensor | None) -> Tensor | None:
        return x[:rows] if x is not None else None

    starts = tuple(start for start in states.packed.starts if start < rows)
    return replace(
        states, token_ids=states.token_ids[:rows], packed=Packed(rows, starts),
        states={k: v[:rows] for k, v in states.states.items()}, argmax=cut(states.argmax), counted=cut(states.counted),
        output=cut(states.output),
    )  # fmt: skip
