"""7xx: the drafter against its verifier's config and, where they are there, its weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from eagle3convert.checkpoint.compare import first_difference
from eagle3convert.findings import Confidence, Finding, Severity
from eagle3convert.rules.base import Case, Rule, destination_of
from eagle3convert.verifier_weights import EMBEDDING, HEAD


class W701_VerifierVocabulary(Rule):
    """The verifier's vocabulary is not as large as the drafter's vocab_size says.

    Why it matters: target ids are those of another tokenizer, or the embedding does not fit.
    Fix: check that this is the verifier the drafter was trained for.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        mine, verifier = case.reading.dims.V, case.reading.verifier.vocab_size
        if mine is not None and verifier is not None and mine != verifier:
            yield self.finding(
                "vocab_size",
                f"vocab_size is {mine}; the verifier's is {verifier}.",
                "Check that this is the verifier that the drafter was trained for.",
            )


class W702_VerifierWidth(Rule):
    """The verifier's hidden size is not the width of the states that fc was trained on.

    Fix: check that this is the verifier the drafter was trained for, or set target_hidden_size.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        mine, verifier = case.reading.dims.T, case.reading.verifier.hidden_size
        if mine is not None and verifier is not None and mine != verifier:
            yield self.finding(
                "target_hidden_size",
                f"fc takes states {mine} wide; the verifier's hidden_size is {verifier}.",
                "Check that this is the verifier that the drafter was trained for.",
            )


class WeightsRule(Rule):
    """A rule that compares a tensor of the drafter with the verifier's."""

    tensor: ClassVar[str] = EMBEDDING

    def skip(self, case: Case) -> str | None:
        mine = case.reading.tensor(self.tensor)
        unread = case.weights_of_verifier.why_not(self.tensor, mine) if mine is not None else ""
        return unread or super().skip(case)


def embedding_difference(case: Case) -> tuple[str, str, int] | None:
    """(the drafter's embedding, the verifier's, first row that differs), or None where they agree."""
    mine = case.reading.tensor(EMBEDDING)
    if mine is None:
        return None
    theirs = case.weights_of_verifier.tensors[EMBEDDING]
    at = first_difference(mine, theirs)
    return (mine.name, theirs.name, at // (mine.nbytes // mine.shape[0])) if at is not None else None


class W703_EmbeddingDiffers(WeightsRule):
    """The drafter's embed_tokens is not the verifier's.

    Why it matters: SGLang always uses the verifier's embedding where the widths agree; vLLM uses the drafter's own.
    How it happens: the embedding was trained, or another verifier is named.
    Fix: nothing where it was trained and the drafter is for vLLM.
    Reference: vllm-project/vllm#28549.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        found = embedding_difference(case)
        if found is not None and case.destination is None:
            mine, theirs, row = found
            yield self.finding(
                mine,
                f"{mine} differs from the verifier's {theirs} from row {row} on; SGLang uses the verifier's.",
                "If it was trained, serve the drafter with vLLM; otherwise check the verifier.",
            )


class E705_EmbeddingLost(WeightsRule):
    """The drafter has an embedding of its own, and the destination takes the verifier's in its place.

    Why it matters: the first layer reads other embeddings than it was trained on, and little is accepted.
    How it happens: the embedding was trained along, or another verifier is named.
    Fix: serve the drafter with vLLM, or train with the verifier's embedding.
    Reference: lightseekorg/TorchSpec#38.
    """

    needs_destination = True

    def check(self, case: Case) -> Iterator[Finding]:
        found, schema = embedding_difference(case), destination_of(case).schema
        if found is not None and schema.embed_tokens == "replaced" and not case.reading.feature("narrow").value:
            mine, theirs, row = found
            yield self.finding(
                mine,
                f"{mine} differs from the verifier's {theirs} from row {row} on. {schema.embed_reason}",
                "Serve the drafter with vLLM, which uses its own, or check that this is its verifier.",
            )


class N704_HeadNotOfVerifier(WeightsRule):
    """Rows of lm_head are not the verifier's rows of their target ids.

    What it means: speculators >= 0.5 freezes the head at lm_head[t2d] of the verifier, so there it is a sign of a wrong
    vocab map or verifier; other trainers train the head.
    Fix: check the verifier and the vocab map where the trainer freezes the head.
    """

    severity = Severity.NOTE
    confidence = Confidence.INFERENCE
    tensor = HEAD

    def check(self, case: Case) -> Iterator[Finding]:
        mine, targets = case.reading.tensor(HEAD), case.drafter.targets
        if mine is None or targets is None:
            return
        theirs = case.weights_of_verifier.tensors[HEAD]
        if len(mine.shape) != 2 or mine.shape[0] != len(targets) or max(targets) >= theirs.shape[0]:
            return  # other rules name these
        width, step = mine.nbytes // mine.shape[0], max(1, mine.shape[0] // 64)
        asked = range(0, mine.shape[0], step)
        other = [i for i in asked if mine.read(i * width, width) != theirs.read(targets[i] * width, width)]
        if other:
            yield self.finding(
                mine.name,
                f"{mine.name}: {len(other)} of {len(asked)} sampled rows are not the verifier's rows of their target "
                f"ids; row {other[0]} stands for target id {targets[other[0]]}.",
                "Where the trainer freezes the head (speculators >= 0.5), the vocab map or the verifier is another.",
            )
