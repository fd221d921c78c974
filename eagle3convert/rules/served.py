"""A folder as an engine takes it without a conversion, held against the way the drafter was trained."""

from __future__ import annotations

import json
from collections.abc import Iterator

from eagle3convert.canonical import (
    COMPANION_SUFFIXES,
    FEATURES,
    VOCAB_TENSORS,
    fold_layers,
    layer_index,
)
from eagle3convert.conventions import default_states
from eagle3convert.drafter import Drafter
from eagle3convert.findings import Finding
from eagle3convert.rules.aux_layers import FIELD, place
from eagle3convert.rules.base import Case, ExaminedRule, ServedRule, destination_of, served_of
from eagle3convert.vocab import to_targets

STOPS, WRONG = "stops", "wrong"
CONVERT = "Convert it: eagle3convert writes what this engine reads."


def engine_of(case: Case) -> str:
    dest = destination_of(case)
    return f"{dest.schema.product} {dest.version}"


class E108_DroppedTensor(ServedRule):
    """The engine knows no parameter by this tensor's name, as the folder stands.

    Why it matters: SGLang drops the tensor without a word and the parameter that it was meant for keeps its random
    start; vLLM stops with an error.
    How it happens: layers.0 in SGLang before 0.5.12, layers.1.input_layernorm in SGLang, a flag that is not set.
    Fix: convert the drafter for this engine.
    Reference: sgl-project/sglang#24663, vllm-project/speculators#360.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        served, dest = served_of(case), destination_of(case)
        known = {*Drafter(served).table, *VOCAB_TENSORS}
        unknown = [n for n in served.names.unexpected if n not in case.reading.names.unexpected]
        unknown += [
            found
            for name, found in served.names.names.items()
            if name not in known and name.rsplit(".", 1)[-1] not in COMPANION_SUFFIXES
        ]
        full = case.drafter.full_vocabulary and dest.schema.vocab_map.full == "never"
        unknown += [case.reading.found(n) for n in ("d2t",) if full and n in case.reading.names.names]
        reader, spelling = served.reader, served.spelling
        stopping = [
            name
            for name in unknown
            if reader.stops_at("unknown_tensors")
            and not name.endswith(reader.drops_suffixes)
            and spelling.canonical(name) not in reader.drops
        ]
        dropped = [name for name in unknown if name not in stopping]
        for names, what, outcome in ((stopping, "stops at it", STOPS), (dropped, "drops it without a word", WRONG)):
            for name in fold_layers(names):
                yield self.finding(
                    name,
                    f"{name} is no parameter of the drafter that {engine_of(case)} builds: it {what}.",
                    CONVERT,
                    outcome=outcome,
                )


class E109_UnfilledParameter(ServedRule):
    """The engine builds a parameter for which the folder, as it stands, has no tensor under a name that it reads.

    Why it matters: no engine complains; the parameter stays at its start (norms at ones, the rest at random).
    Fix: convert the drafter for this engine.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        served = served_of(case)
        have = {case.reading.names.names.get(name) for name in case.drafter.table}
        missing = []
        for name, spec in Drafter(served).table.items():
            index = layer_index(name)
            beyond = index is not None and case.reading.dims.L is not None and index >= case.reading.dims.L
            if spec.optional or name in served.names.names or beyond:  # layers beyond the drafter's own are E522's
                continue
            module = name.rsplit(".", 1)[0]
            quantised = any(f"{module}.{suffix}" in served.names.names for suffix in COMPANION_SUFFIXES)
            trained = name in case.drafter.table and case.reading.names.names.get(name) in have - {None}
            if not quantised and (trained or name not in case.drafter.table):
                missing.append(served.spelling.written(name))
        if "d2t" not in served.names.names and not case.drafter.full_vocabulary and case.drafter.targets is not None:
            missing.append("d2t")  # without one, draft ids are taken for target ids
        stops = served.reader.stops_at("missing_tensors")
        what = "it stops there" if stops else "it stays unfilled, without a word"
        for name in fold_layers(missing):
            yield self.finding(
                name,
                f"{name}: {engine_of(case)} builds this parameter and finds no tensor for it in the folder; {what}.",
                CONVERT,
                outcome=STOPS if stops else WRONG,
            )


class E212_ServedMap(ExaminedRule):
    """The engine reads other target ids out of d2t than the drafter was trained on.

    Why it matters: every draft id then proposes another token, and nothing is accepted.
    How it happens: d2t holds absolute ids where engines add an offset.
    Fix: convert the drafter; its d2t is written in the engine's encoding.
    Reference: verl-project/verl-SpeCo#67.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        vocab, encoding = case.reading.vocab, destination_of(case).schema.vocab_map.encoding
        if vocab.values is None or vocab.encoding is None or vocab.encoding == encoding:
            return
        read = to_targets(vocab.values, encoding)
        other = [i for i, target in enumerate(vocab.targets or ()) if read[i] != target]
        if not other:
            return
        i, size = other[0], case.reading.dims.V
        beyond = ", some beyond the vocabulary" if size is not None and any(not 0 <= t < size for t in read) else ""
        name, meant = case.reading.found("d2t"), (vocab.targets or ())[i]
        reader = destination_of(case).schema.reader
        stops = reader is not None and reader.stops_at("wrong_map", bool(beyond))
        yield self.finding(
            name,
            f"{name} holds {vocab.encoding} ids, and {engine_of(case)} reads {encoding}s: draft id {i} means target id "
            f"{meant} and is read as {read[i]}; {len(other)} of {len(read)} ids are read "
            f"wrong{beyond}{'; it stops at them' if stops else ''}.",
            CONVERT,
            outcome=STOPS if stops else WRONG,
        )


class E311_ServedAuxLayers(ServedRule):
    """The engine feeds fc with other states of the verifier than it was trained on, as the folder stands.

    Why it matters: the server starts and answers, and accepts little or nothing.
    How it happens: the ids stand where this engine does not look, or are counted in another way.
    Fix: convert the drafter; its ids are written where and as this engine reads them.
    Reference: vllm-project/vllm#43671, ggml-org/llama.cpp#27040.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        served, trained = served_of(case), case.reading.aux.trained
        if trained is None:
            return
        read, n = served.aux.ascending, served.verifier.num_hidden_layers
        if read is None and served.aux.ids is None and n is None:
            last = max(trained, default=0)
            if trained == default_states(served.aux.default, last + 3):
                return  # the engine's own default may well be this list: the layer count would tell
            fed = f"its default [{', '.join(served.aux.default)}] of n layers"
        elif read is None or read == trained:
            return
        else:
            fed = f"hidden_states {list(read)}" + (", its default" if served.aux.ids is None else "")
        unread = case.reading.aux.ids is not None and served.aux.ids is None
        keys = served.schema.aux_layers.keys
        found = {k for k in read or () if k >= 0 and (n is None or k <= n)}
        too_few = read is not None and served.dims.A is not None and len(found) < served.dims.A  # fc does not fit
        why = f" ({engine_of(case)} looks for them in {keys[0]})" if unread and keys else ""
        yield self.finding(
            FIELD,
            f"{place(case)} {list(case.reading.aux.ids or trained)}: fc was trained on hidden_states {list(trained)}, "
            f"and {engine_of(case)} feeds it {fed}{why}.",
            CONVERT,
            outcome=STOPS if too_few else WRONG,
        )


class E312_ServedAuxCount(ServedRule):
    """The engine builds fc for another number of aux states than the drafter has, as the folder stands.

    Why it matters: the server stops at start with a shape error.
    How it happens: vLLM's llama drafter counts only from num_aux_hidden_states or the nested ids.
    Fix: convert the drafter; the number is written where this engine reads it.
    Reference: vllm-project/speculators#1065, vllm-project/vllm#54526.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        served, trained = served_of(case).dims.A, case.reading.dims.A
        if served is not None and trained is not None and served != trained:
            yield self.finding(
                FIELD,
                f"{place(case)} lists {trained} aux layers, and {engine_of(case)} builds fc for {served}: it counts "
                f"them in {' or '.join(served_of(case).schema.aux_layers.count) or 'no field'}.",
                CONVERT,
                outcome=STOPS,
            )


class E410_ServedFeature(ServedRule):
    """The engine could run this behaviour, but the folder, as it stands, does not tell it so.

    Why it matters: it runs the drafter without it, or with it, and accepts little.
    How it happens: the field stands where this engine does not look, or absence means something else to it.
    Fix: convert the drafter; the field is written where and as this engine reads it.
    Reference: vllm-project/vllm#42143, #38111.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        served = served_of(case)
        for name, spec in FEATURES.items():
            rule, trained = destination_of(case).schema.features[name], case.reading.feature(name)
            told = served.feature(name)
            if rule.is_fixed or not trained.known or (spec.source == "tensors" and name != "qk_norm"):
                continue
            if rule.launch or trained.value == told.value:
                continue
            keys = (served.schema.features[name].config_key, *served.schema.features[name].also_read)
            where = " or ".join(k for k in keys if k) or "the architecture"
            yield self.finding(
                name,
                f"{name} is {json.dumps(trained.value)} ({spec.says}); {engine_of(case)} reads it as "
                f"{json.dumps(told.value)} in this folder (it looks at {where}).",
                CONVERT,
                outcome=WRONG,
            )
