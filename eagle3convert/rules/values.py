"""E6xx: what a scan of all values finds; skipped where the data were not scanned."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3convert.findings import Confidence, Finding, Severity
from eagle3convert.rules.base import Case, Rule
from eagle3convert.rules.files import unfilled

NOT_SCANNED = "the values were not scanned"


class ValueRule(Rule):
    """A rule about all values of the weights."""

    def skip(self, case: Case) -> str | None:
        return NOT_SCANNED if case.values is None else super().skip(case)


class E605_NotFinite(ValueRule):
    """A weight holds NaN or infinite values.

    Why it matters: one of them makes every logit NaN, and every draft is rejected.
    How it happens: a training run that diverged, a cast to float16 of values that are too large, a damaged file.
    Fix: take an earlier checkpoint; cast to bfloat16 instead of float16.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        for name, stats in (case.values or {}).items():
            if stats.nan + stats.infinite and stats.nan < stats.elements:
                yield self.finding(
                    name,
                    f"{name} holds {stats.nan} NaN and {stats.infinite} infinite value(s) of {stats.elements}.",
                    "Take an earlier checkpoint of the run.",
                )


class W606_Denormal(ValueRule):
    """Most values of a weight are subnormal: it looks like memory that was never filled.

    Why it matters: a trained weight does not look so; the layer computes next to nothing.
    How it happens: speculators' from_pretrained under transformers 5 leaves absent tensors uninitialised.
    Fix: export the drafter again from the training run.
    """

    severity = Severity.WARNING
    confidence = Confidence.INFERENCE

    def check(self, case: Case) -> Iterator[Finding]:
        for name, stats in (case.values or {}).items():
            if stats.elements and stats.subnormal > 0.5 * stats.elements:
                share = 100 * stats.subnormal / stats.elements
                yield self.finding(
                    name,
                    f"{name}: {share:.0f} % of its values are subnormal, as in memory that was never filled.",
                    "Export the drafter again from the training run.",
                )


class E213_HeadPrunedByOffsets(ValueRule):
    """Rows of lm_head are equal wherever d2t repeats a value: the head was pruned by offsets taken for target ids.

    Why it matters: draft ids then share the row of one wrong token, and nearly nothing is accepted.
    How it happens: TorchSpec's --prune-vocab indexes the verifier's head with the offsets of d2t.
    Fix: prune the verifier's head again with the target ids i + d2t[i].
    Reference: torchspec-project/TorchSpec tools/convert_to_hf.py.
    """

    severity = Severity.ERROR
    confidence = Confidence.INFERENCE

    def check(self, case: Case) -> Iterator[Finding]:
        head, values = case.reading.tensor("lm_head.weight"), case.reading.vocab.values
        if head is None or values is None or len(head.shape) != 2 or head.shape[0] != len(values):
            return
        width = head.nbytes // head.shape[0]
        if unfilled(head):
            return  # E601 says so
        pairs = [i for i in range(1, len(values)) if values[i] == values[i - 1]][:SAMPLED_PAIRS]
        if not pairs or not width:
            return
        for i in pairs:
            if head.read(i * width, width) != head.read((i - 1) * width, width):
                return
        i = pairs[0]
        yield self.finding(
            head.name,
            f"{head.name}: rows {i - 1} and {i} are equal, and so are all {len(pairs)} sampled neighbours with equal "
            f"d2t values: the head was pruned by d2t's offsets as if they were target ids.",
            "Prune the verifier's head again with the target ids i + d2t[i].",
        )


SAMPLED_PAIRS = 64
