"""E6xx: what the weights themselves look like, by samples."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from eagle3convert.byteops import FLOAT_NAMES
from eagle3convert.checkpoint.stored import StoredTensor
from eagle3convert.findings import Finding, Severity
from eagle3convert.rules.base import Case, Rule, destination_of

SAMPLE = 4096  # bytes read at the start, the middle and the end of a tensor
_NOT_FINITE = {"BF16": ("H", 0x7F80, 0x007F), "F16": ("H", 0x7C00, 0x03FF), "F32": ("I", 0x7F800000, 0x007FFFFF)}

REMOTE = "the weights are on the Hub, and only d2t and t2d are read of them"


def sample(tensor: StoredTensor) -> bytes:
    """Bytes of whole elements from three places of a tensor."""
    if tensor.nbytes <= 3 * SAMPLE:
        return tensor.read()
    middle = tensor.nbytes // 2 // 8 * 8
    return b"".join(tensor.read(at, SAMPLE) for at in (0, middle, tensor.nbytes - SAMPLE))


def all_nan(data: bytes, dtype: str) -> bool:
    """Whether every element of these bytes is a NaN."""
    if dtype not in _NOT_FINITE or not data:
        return False
    code, exponent, mantissa = _NOT_FINITE[dtype]
    return all(x & exponent == exponent and x & mantissa for x in array(code, data))


def all_zero(tensor: StoredTensor) -> bool:
    """Whether the whole tensor is zero; asked only where a sample is."""
    block = 1 << 20
    return all(not any(tensor.read(at, min(block, tensor.nbytes - at))) for at in range(0, tensor.nbytes, block))


class E601_UnfilledWeights(Rule):
    """A weight is NaN throughout, or zero throughout: it was never filled.

    Why it matters: the server answers, and every draft is rejected.
    How it happens: an exporter that saved a freshly made module, a sharded save in which one rank had nothing.
    Fix: export the drafter again from the training run.
    Reference: lightseekorg/TorchSpec#38, vllm-project/speculators#1114.
    """

    def skip(self, case: Case) -> str | None:
        return REMOTE if case.reading.checkpoint.is_remote else super().skip(case)

    def check(self, case: Case) -> Iterator[Finding]:
        for canonical, name in case.reading.names.names.items():
            tensor = case.reading.checkpoint.tensors[name]
            if tensor.dtype not in FLOAT_NAMES or canonical.endswith(".bias") or canonical == "embed_tokens.weight":
                continue
            what = unfilled(tensor)
            if what:
                yield self.finding(
                    name,
                    f"{name} is {what} throughout: it was never filled.",
                    "Export the drafter again from the training run.",
                )


def unfilled(tensor: StoredTensor) -> str:
    """ "NaN" or "zero" where the samples (and, for zero, all of it) say so; otherwise empty."""
    data = sample(tensor)
    if all_nan(data, tensor.dtype):
        return "NaN"
    return "zero" if data and not any(data) and all_zero(tensor) else ""


class W602_UnfilledEmbedding(Rule):
    """The drafter's own embed_tokens is zero or NaN throughout.

    Why it matters: vLLM uses the drafter's embedding where it differs from the verifier's, SGLang always takes the
    verifier's; with such an embedding the two engines run different drafters.
    Fix: leave embed_tokens out where the drafter was trained with the verifier's.
    Reference: lightseekorg/TorchSpec#38.
    """

    severity = Severity.WARNING

    def skip(self, case: Case) -> str | None:
        return REMOTE if case.reading.checkpoint.is_remote else super().skip(case)

    def check(self, case: Case) -> Iterator[Finding]:
        name = case.reading.names.names.get("embed_tokens.weight")
        what = unfilled(case.reading.checkpoint.tensors[name]) if name is not None else ""
        if name is not None and what:
            yield self.finding(
                name,
                f"{name} is {what} throughout; vLLM would run it so, while SGLang takes the verifier's embedding.",
                "Leave it out of the checkpoint if the drafter was trained with the verifier's embedding.",
            )


class W603_EmbeddingWanted(Rule):
    """The destination's own loader wants embed_tokens.weight, and the source does not have it.

    Fix: add the verifier's embedding to the checkpoint where the destination's loader needs it.
    """

    severity = Severity.WARNING
    needs_destination = True

    def check(self, case: Case) -> Iterator[Finding]:
        schema = destination_of(case).schema
        if schema.embed_tokens == "wanted" and "embed_tokens.weight" not in case.reading.names.names:
            yield self.finding(
                "embed_tokens.weight",
                f"embed_tokens.weight is not in the checkpoint and stays out: {schema.embed_reason}",
                "Add the verifier's embed_tokens.weight before training on.",
            )  # fmt: skip


class N604_MixedDtypes(Rule):
    """The weights are stored in more than one float dtype.

    Why it matters: an engine casts them all to one on load; nothing else happens, but it is rarely meant.
    Fix: cast them with --dtype.
    """

    severity = Severity.NOTE

    def check(self, case: Case) -> Iterator[Finding]:
        kinds: dict[str, str] = {}
        for name in case.reading.names.names.values():
            tensor = case.reading.checkpoint.tensors[name]
            if tensor.dtype in FLOAT_NAMES:
                kinds.setdefault(tensor.dtype, name)
        if len(kinds) > 1:
            listed = ", ".join(f"{FLOAT_NAMES[kind]} ({name})" for kind, name in sorted(kinds.items()))
            yield self.finding(
                "dtype", f"the weights are stored in several float dtypes: {listed}.", "--dtype casts them to one."
            )
