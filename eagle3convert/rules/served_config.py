"""E5xx of a folder as an engine takes it: the fields of its config.json."""

from __future__ import annotations

import json
from collections.abc import Iterator

from eagle3convert.canonical import DECODER_FIELDS, Origin
from eagle3convert.findings import Finding
from eagle3convert.rules.base import Case, ExaminedRule, ServedRule, destination_of, served_of
from eagle3convert.rules.served import CONVERT, STOPS, WRONG, engine_of
from eagle3convert.served import unreadable


class E521_ArchitectureUnknown(ServedRule):
    """The engine picks a drafter class by the config's architectures (or model_type), and knows none by this name.

    Why it matters: SGLang takes the plain model class or stops; vLLM stops.
    How it happens: the authors' own releases say LlamaForCausalLM; SGLang and vLLM have different names.
    Fix: convert the drafter; its architectures becomes the engine's own.
    Reference: sgl-project/sglang#33966, #24077.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        served = served_of(case)
        if served.decoder_named is not None or case.reading.decoder == "mla":
            return
        if served.other is not None:
            field, found = served.schema.decoder_path("model_type"), served.config.value("model_type")
            wanted = [t for d in served.schema.decoders.values() for t in d.model_types]
        else:
            field, found = "architectures", case.reading.checkpoint.config.get("architectures")
            wanted = [a for d in served.schema.decoders.values() for a in d.architectures]
        yield self.finding(
            field,
            f"{field} is {json.dumps(found) if found is not None else 'missing'}; {engine_of(case)} knows an EAGLE-3 "
            f"drafter as {', '.join(wanted)}.",
            CONVERT,
            outcome=STOPS,
        )


class E526_StrayWeights(ServedRule):
    """A safetensors file that is none of the drafter's lies beside its weights, and the engine reads every such file.

    Why it matters: it stops at the first tensor that it does not know, so the server does not start.
    How it happens: captured states, an adapter or a second export were kept in the drafter's folder.
    Fix: move the file out of the folder; a conversion leaves it behind.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        checkpoint = case.reading.checkpoint
        indexed = checkpoint.container != "safetensors"  # then the engine reads what the index names
        if indexed or not served_of(case).reader.stops_at("unknown_tensors"):
            return
        for name in checkpoint.strays:
            yield self.finding(
                name,
                f"{name} lies beside the drafter's weights, and {engine_of(case)} reads every safetensors file of the "
                f"folder: it stops at the first tensor that it does not know.",
                "Move the file out of the folder, or convert the drafter: a conversion leaves it behind.",
                outcome=STOPS,
            )


class E522_ServedLayerCount(ServedRule):
    """The engine builds another number of decoder layers than the drafter has, as the folder stands.

    Why it matters: layers that no tensor fills stay at random.
    How it happens: num_hidden_layers was copied from the verifier.
    Fix: convert the drafter; the number of its layers is written.
    Reference: sgl-project/SpecForge#129.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        served, trained = served_of(case).dims.L, case.reading.dims.L
        if served != trained:
            yield self.finding(
                "num_hidden_layers",
                f"num_hidden_layers is {served}, and the drafter has {trained} decoder layer(s); {engine_of(case)} "
                f"builds what the field says.",
                CONVERT,
                outcome=WRONG,
            )


class E523_FieldNeeded(ServedRule):
    """A config field is missing, null or set in a way that this engine cannot take.

    Fix: convert the drafter; the field is written as the engine wants it.
    Reference: NVIDIA/Model-Optimizer#1417.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        for need in served_of(case).missed_needs():
            if need.with_tensor and need.with_tensor not in case.reading.names.names:
                continue
            if need.path in DECODER_FIELDS and not case.reading.fact(need.path).known:
                continue  # E501 says so
            state = {"absent": "is missing", "null": "is null", "true": "is true"}[need.when]
            verb = "does not start" if need.outcome == STOPS else "drafts something else"
            yield self.finding(
                need.path,
                f"{need.path} {state} in config.json; {engine_of(case)} {verb}: {need.reason}",
                CONVERT,
                outcome=need.outcome,
            )


class E525_ServedSize(ServedRule):
    """A size that the config does not state, and that the engine derives otherwise than the drafter was built.

    Why it matters: the weights do not fit and the server stops, or attention is cut into other heads.
    How it happens: a drafter whose heads times head_dim is not its hidden size, saved without head_dim.
    Fix: convert the drafter; every size is written.
    Reference: SafeAILab/EAGLE#315, vllm-project/speculators#134.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        served = served_of(case)
        for name in ("head_dim", "num_key_value_heads"):
            taken, mine = served.fact(name), case.reading.fact(name)
            if taken.origin is Origin.DEFAULT and mine.known and taken.value != mine.value:
                yield self.finding(
                    name,
                    f"{name} is missing in config.json; {engine_of(case)} takes {taken.where}, which is {taken.value}, "
                    f"and the drafter's is {mine.value}.",
                    CONVERT,
                    outcome=STOPS,
                )


class E524_UnreadableFolder(ExaminedRule):
    """The engine does not read folders of this format at all.

    Why it matters: SGLang stops with `Unrecognized model` at a speculators folder.
    Fix: convert the drafter.
    Reference: sgl-project/sglang#18216.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        dest, checkpoint = destination_of(case), case.reading.checkpoint
        if dest.schema.reader is None:
            return
        field = unreadable(dest.schema, checkpoint, case.reading.schema.name)
        if field is not None:
            yield self.finding(
                "config.json",
                f"config.json is that of a {case.source} drafter ({field}), which {engine_of(case)} does not read: "
                f"it does not start.",
                CONVERT,
                outcome=STOPS,
            )
