"""E2xx: the vocab map, read under both encodings and judged by t2d."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3convert.findings import Finding, Severity
from eagle3convert.rules.base import Case, Rule
from eagle3convert.vocab import targets_of


def _d2t(case: Case) -> str:
    return case.reading.found("d2t")


def _t2d(case: Case) -> str:
    return case.reading.found("t2d")


class E201_MapOutOfRange(Rule):
    """d2t points outside the verifier's vocabulary under either reading.

    Why it matters: vLLM stops with an IndexError at the first draft (a device assert on CUDA).
    How it happens: a map made for another verifier, a damaged file, a vocab_size that is too small.
    Fix: take the d2t of the training run that made lm_head.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        vocab = case.reading.vocab
        if vocab.values is None or vocab.encoding is not None or any(not r.out_of_range for r in vocab.readings):
            return
        i = vocab.readings[0].out_of_range[0]
        value, offset = vocab.values[i], vocab.readings[0].targets[i]
        yield self.finding(
            _d2t(case),
            f"{_d2t(case)}[{i}] is {value}: as an offset that is target id {offset}, as an absolute id {value}; "
            f"under neither reading do all entries lie inside the verifier's vocabulary of {case.reading.dims.V}.",
            "Take the d2t that was saved with this lm_head, and check that vocab_size is the verifier's.",
        )


class E202_MapDuplicates(Rule):
    """d2t maps two draft ids to one target id under every reading that stays in range.

    Why it matters: one row of lm_head can never be proposed as what it was trained for.
    How it happens: two maps mixed up, values cut by a cast, an absolute map that was "fixed" into offsets.
    Fix: take the d2t of the training run that made lm_head.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        vocab = case.reading.vocab
        if vocab.values is None or vocab.encoding is not None or all(r.out_of_range for r in vocab.readings):
            return
        inside = [r for r in vocab.readings if not r.out_of_range]
        if all(r.duplicated for r in inside):
            reading = next((r for r in inside if r.encoding == case.reading.schema.vocab_map.encoding), inside[0])
            yield self.finding(
                _d2t(case),
                f"{_d2t(case)} maps {len(reading.duplicated)} draft id(s) to a target id that another one has already, "
                f"such as target id {reading.duplicated[0]} (read as {reading.encoding}s).",
                "Take the d2t that was saved with this lm_head.",
            )


class E203_MapsDisagree(Rule):
    """d2t and t2d select different target ids, whichever way d2t is read.

    Why it matters: every row of lm_head then means another token than the one it was trained for.
    How it happens: the two come from different runs, or a buffer was saved before it was filled.
    Fix: neither can be preferred from the files; take both from the run that made lm_head.
    Reference: sgl-project/SpecForge#534, vllm-project/speculators#1081.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        vocab = case.reading.vocab
        if vocab.values is None or vocab.encoding is not None or vocab.mask is None:
            return
        whole = [r for r in vocab.readings if not r.out_of_range and not r.duplicated]
        if not whole:
            return
        selected = set(targets_of(vocab.mask))
        reading = next((r for r in whole if r.encoding == case.reading.schema.vocab_map.encoding), whole[0])
        only = sorted(set(reading.targets) - selected)[:3]
        shown = f", for example {', '.join(map(str, only))} stand in d2t only" if only else ""
        yield self.finding(
            _d2t(case),
            f"{_d2t(case)} and {_t2d(case)} disagree: d2t (as {reading.encoding}s) names {len(set(reading.targets))} "
            f"target ids, t2d selects {len(selected)}, and only {len(set(reading.targets) & selected)} are the "
            f"same{shown}. They come from different runs, or t2d was never filled; neither can be preferred.",
            "Take d2t and t2d from the run that made lm_head.",
        )


class E204_MapMissing(Rule):
    """The draft vocabulary is a part of the verifier's and the checkpoint holds no map between them.

    Why it matters: engines then take draft ids for target ids: the server runs and accepts nothing.
    How it happens: the map was kept in a side file, or an exporter lost it (Model-Optimizer's Megatron flow did).
    Fix: save d2t beside the weights; a draft_vocab_size copied from elsewhere is the other possibility.
    Reference: NVIDIA-NeMo/Automodel#2447, verl-project/verl-SpeCo#66.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        vocab, dims = case.reading.vocab, case.reading.dims
        if vocab.values is None and not vocab.bad_dtype and vocab.targets is None and not case.drafter.full_vocabulary:
            yield self.finding(
                "d2t",
                f"d2t is missing: draft_vocab_size is {dims.DV} of the verifier's {dims.V}, and nothing says which "
                f"target ids the draft ids stand for.",
                "Add the d2t of the training run, or correct draft_vocab_size if the head has the full vocabulary.",
            )


class W205_MapAbsolute(Rule):
    """d2t holds absolute target ids where its format holds offsets (or the other way about), and the files prove it.

    Why it matters: an engine adds the draft id once more: vLLM stops with an IndexError or accepts nothing.
    How it happens: a home-grown exporter, a "fix" of values that looked wrong because many offsets are 0.
    What happens: the map is written in the destination's encoding.
    Fix: convert the drafter, and correct the exporter that wrote it.
    Reference: SafeAILab/EAGLE#222, verl-project/verl-SpeCo#67.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        vocab, declared = case.reading.vocab, case.reading.schema.vocab_map.encoding
        if vocab.encoding in (None, declared) or (vocab.targets == vocab.reading(declared).targets):
            return
        proof = {
            "t2d": "t2d selects exactly these ids",
            "range": f"read as {declared}s it leaves the vocabulary or names an id twice",
            "user": "you said so",
        }[vocab.decided_by if vocab.decided_by in ("t2d", "range", "user") else "range"]
        held = "absolute target ids" if vocab.encoding == "absolute" else "offsets (target id - draft id)"
        wanted = "offsets" if declared == "offset" else "absolute ids"
        yield self.finding(
            _d2t(case),
            f"{_d2t(case)} holds {held} where {case.source} holds {wanted}: {proof}.",
            "The output gets the destination's encoding; correct the exporter that wrote it.",
            encoding=vocab.encoding,
        )


class W206_MapUndecided(Rule):
    """d2t makes sense both as offsets and as absolute ids, and there is no t2d to ask.

    Why it matters: one of the two readings accepts nothing.
    What happens: the format's own encoding is followed.
    Fix: `--d2t-encoding offset` or `absolute` states it; a file with t2d decides it.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        vocab = case.reading.vocab
        if not vocab.undecided or vocab.values is None:
            return
        size = len(vocab.values)
        counting = vocab.values == tuple(range(size))
        arange = (
            " It is arange (0, 1, 2 …), which is the identity in absolute ids and 2i in offsets." if counting else ""
        )
        yield self.finding(
            _d2t(case),
            f"{_d2t(case)} makes sense as offsets and as absolute ids, and no t2d decides. It is read as "
            f"{vocab.encoding}, as {case.source} writes it.{arange}",
            "State it with --d2t-encoding where that is wrong.",
        )


class E207_MapShape(Rule):
    """d2t has the wrong length or no integer dtype.

    Why it matters: a map of another length belongs to another lm_head; ids above 256 do not survive in bfloat16.
    How it happens: draft_vocab_size larger than the number of distinct tokens, a cast of every tensor.
    Fix: take the d2t that was saved with this lm_head, as int64.
    Reference: sgl-project/SpecForge#76.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        vocab, dims = case.reading.vocab, case.reading.dims
        if vocab.bad_dtype:
            yield self.finding(
                _d2t(case),
                f"{_d2t(case)} is {vocab.bad_dtype}; a vocab map is a list of whole numbers, int64, and other types "
                f"round large ids.",
                "Take the d2t of the training run before it was cast.",
            )
        elif vocab.values is not None and dims.DV is not None and len(vocab.values) != dims.DV:
            yield self.finding(
                _d2t(case),
                f"{_d2t(case)} has {len(vocab.values)} entries; draft_vocab_size (the rows of lm_head) is {dims.DV}.",
                "Take the d2t that was saved with this lm_head, or correct draft_vocab_size.",
            )


class W208_MapIsIdentity(Rule):
    """d2t is all zeros with a reduced draft vocabulary: draft ids are target ids 0, 1, 2 …

    Why it matters: it is a valid map, but also what a buffer holds that was never filled.
    How it happens: an exporter that registers d2t and does not load the map.
    Fix: compare with the vocab map of the training run.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        vocab = case.reading.vocab
        if vocab.values and not any(vocab.values) and not case.drafter.full_vocabulary and vocab.mask is None:
            yield self.finding(
                _d2t(case),
                f"{_d2t(case)} is all zeros, so the drafter proposes target ids 0 to {len(vocab.values) - 1} only; "
                f"a map that was never filled looks the same, and there is no t2d to tell.",
                "Compare it with the vocab map of the training run.",
            )


class E209_StatedEncodingRefuted(Rule):
    """The encoding given with --d2t-encoding is refuted by the files.

    Fix: leave the option out; the files decide.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        stated, vocab = case.reading.statements.d2t_encoding, case.reading.vocab
        if stated is not None and vocab.encoding is not None and vocab.encoding != stated:
            yield self.finding(
                _d2t(case),
                f"{_d2t(case)} cannot hold {stated} values as --d2t-encoding says: only as {vocab.encoding}s does it "
                f"stay in range and agree with t2d.",
                "Leave --d2t-encoding out.",
            )


class W210_MapDerived(Rule):
    """d2t is not in the checkpoint and was derived from t2d.

    What happens: the trainer sorts its draft vocabulary, so draft id i is the i-th token that t2d selects.
    Fix: compare with the vocab map of the training run where you have it.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        vocab, dims = case.reading.vocab, case.reading.dims
        if case.drafter.full_vocabulary or vocab.targets is None or not vocab.derived:
            return
        if len(vocab.targets) == dims.DV:
            yield self.finding(
                "d2t",
                f"d2t is missing and is derived from {_t2d(case)}: {case.source} sorts the draft vocabulary.",
                "Compare it with the vocab map of the training run.",
            )


class E211_MaskCount(Rule):
    """t2d selects another number of tokens than lm_head has rows, and there is no d2t.

    Fix: take d2t and t2d from the run that made lm_head.
    Reference: SafeAILab/EAGLE#248.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        vocab, dims = case.reading.vocab, case.reading.dims
        if vocab.derived and vocab.targets is not None and dims.DV is not None and len(vocab.targets) != dims.DV:
            yield self.finding(
                _t2d(case),
                f"{_t2d(case)} selects {len(vocab.targets)} tokens and d2t is missing; draft_vocab_size is {dims.DV}.",
                "Take d2t and t2d from the run that made lm_head.",
            )
