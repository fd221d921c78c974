"""E3xx of the source: which verifier states fc was trained on, as the checkpoint says it."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3convert.canonical import Origin, is_whole
from eagle3convert.conventions import default_states
from eagle3convert.findings import Confidence, Finding, Severity
from eagle3convert.nested import get
from eagle3convert.rules.base import Case, Rule

FIELD = "eagle_aux_hidden_state_layer_ids"


def place(case: Case) -> str:
    """Where the source keeps the ids, as its config names it."""
    keys = case.reading.schema.aux_layers.keys
    stated = case.reading.config.stated.get("aux_layers")
    return stated.path if stated else (keys[0] if keys else FIELD)


class E301_FcWidth(Rule):
    """fc takes another number of inputs than the aux layers give it.

    Why it matters: the engine stops at start, or feeds fc with a part of what it was trained on.
    How it happens: ids copied from another drafter, a list that includes the loss target, all states concatenated.
    Fix: state the aux layers that fc was trained on with --aux-layers.
    Reference: SafeAILab/EAGLE#294, vllm-project/speculators#1065.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        shape, dims = case.reading.shape("fc.weight"), case.reading.dims
        if shape is None or dims.A is None or dims.T is None:
            return
        name, wanted = case.reading.found("fc.weight"), dims.A * dims.T
        if len(shape) == 2 and dims.H is not None and shape[0] != dims.H:
            yield self.finding(
                name,
                f"{name} has {shape[0]} rows; the drafter's hidden_size is {dims.H}. fc turns the aux states into one "
                f"state of the drafter's width.",
                "Take the fc that belongs to this drafter; extra rows belong to a drafter with early exits.",
            )
        elif len(shape) != 2 or shape[1] != wanted:
            layers = case.reading.aux.states or case.reading.aux.ids
            said = f"aux layers {list(layers)}" if layers else f"{dims.A} aux layers"
            yield self.finding(
                name,
                f"{name} takes {shape[-1] if shape else 0} inputs, but {said} of {dims.T} each make {wanted}.",
                "State the layers that fc was trained on with --aux-layers (hidden_states numbering), or correct "
                "target_hidden_size.",
            )


class W302_AuxLayersAssumed(Rule):
    """The checkpoint does not say which aux layers fc was trained on; its format's default list is assumed.

    Why it matters: a wrong guess is silent, and costs nearly all of the acceptance.
    How it happens: an exporter that does not write custom ids, a config cleaned by hand.
    Fix: state the layers of the training run with --aux-layers.
    Reference: vllm-project/vllm#50170 (58.9 % -> 1.21 % acceptance).
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        reading = case.reading
        if reading.aux.origin is not Origin.DEFAULT or not reading.schema.aux_layers.keys:
            return
        places, states = ", ".join(reading.aux.default), reading.aux.states
        numbers = f"[{places}] of n layers" if states is None else f"{list(states)} (hidden_states numbering)"
        schema, dest = reading.schema, case.destination
        usual = schema.aux_layers.absence == "usual" and (dest is None or dest.aux_rule.default == reading.aux.default)
        yield self.finding(
            FIELD,
            f"{place(case)} is not stated; {case.source}'s default {numbers} is assumed.",
            "If the drafter was trained on other layers, state them with --aux-layers.",
            Severity.NOTE if usual and case.examined else None,
            assumed=list(states) if states else None,
        )


class E303_AuxLayersInvalid(Rule):
    """The aux-layer list holds an id twice, one that no layer of the verifier has, or something that is no id.

    Why it matters: engines collapse duplicates and ignore ids out of range, and fc then gets too few states.
    How it happens: defaults computed for a tiny verifier, ids of another verifier.
    Fix: correct the list, or state it with --aux-layers.
    Reference: vllm-project/vllm#24613, NVIDIA/Model-Optimizer#300.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        aux, n = case.reading.aux, case.reading.verifier.num_hidden_layers
        raw = case.reading.config.value("aux_layers")
        where = place(case)
        remedy = "Correct the list, or state the layers with --aux-layers (hidden_states numbering)."
        if aux.origin is not Origin.ASSUMED and raw is not None and not _is_ids(raw):
            yield self.finding(where, f"{where} is {raw!r}; a list of layer numbers is wanted.", remedy)
            return
        if aux.states is None:
            return
        said = f"{where} {list(aux.ids)}" if aux.ids is not None and aux.origin is Origin.STATED else "the aux layers"
        twice = sorted({s for s in aux.states if aux.states.count(s) > 1})
        if twice:
            yield self.finding(
                where,
                f"{said} name hidden_states {twice} twice ({list(aux.states)}); engines keep one of them, and fc then "
                f"gets too few inputs.",
                remedy,
            )
        outside = [s for s in aux.states if s < 0 or (n is not None and s > n)]
        if outside:
            top = "n" if n is None else str(n)
            yield self.finding(
                where,
                f"{said} name hidden_states {outside}; the verifier has 0 (embedding output) to {top}.",
                remedy,
            )


def _is_ids(raw: object) -> bool:
    return isinstance(raw, list) and bool(raw) and all(map(is_whole, raw))


class N304_AuxLayersUnsorted(Rule):
    """The aux-layer list is not ascending, and fc takes its blocks in ascending layer order all the same.

    What happens: the list is sorted and fc stays as it is, for the trainer concatenates in layer order.
    Fix: where a trainer concatenated in the order of the list, `--assume fc_order=as_listed` moves fc's blocks.
    """

    severity = Severity.NOTE

    def check(self, case: Case) -> Iterator[Finding]:
        aux = case.reading.aux
        if aux.states is not None and aux.states != aux.ascending and aux.fc_order == "ascending":
            yield self.finding(
                place(case),
                f"{place(case)} {list(aux.ids or aux.states)} is not ascending; {case.source} feeds fc in ascending "
                f"layer order whatever the list says, so it is written sorted and fc stays as it is.",
                "If fc was trained in the listed order, say --assume fc_order=as_listed.",
            )


# Every place where some trainer or engine is known to keep the ids, or a list like them.
ID_FIELDS = (
    "eagle_aux_hidden_state_layer_ids", "eagle_config.eagle_aux_hidden_state_layer_ids", "eagle_config.layer_ids",
    "aux_hidden_states_layer_ids", "target_layer_ids", "target_hidden_layer_ids",
)  # fmt: skip


class E313_IdsUnread(Rule):
    """A list of aux-layer ids stands in the config where its format's readers do not look.

    Why it matters: the format's default layers are fed, in silence, and the list says that others were trained.
    How it happens: a config made for another engine, or flattened by hand.
    Fix: state the format that the list belongs to, or the layers themselves with --aux-layers.
    Reference: ggml-org/llama.cpp#27040, vllm-project/vllm#43671.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        reading = case.reading
        aux, n = reading.aux, reading.verifier.num_hidden_layers
        if aux.origin is not Origin.DEFAULT:
            return
        for field in ID_FIELDS:
            listed = get(reading.checkpoint.config, field)
            if not _is_ids(listed) or field in reading.schema.aux_layers.keys:
                continue
            meanings = (tuple(sorted(listed)), tuple(sorted(i + 1 for i in listed)))
            n_like = max(listed) + 3 if n is None else n
            defaults = {default_states(aux.default, m) for m in (n_like, n_like + 1)} if n is None else {aux.states}
            if defaults & set(meanings):
                continue  # in one of its two meanings it is the default
            yield self.finding(
                FIELD,
                f"{field} is {listed}, where {case.source} does not look; it feeds its default instead "
                f"({list(aux.states) if aux.states else ', '.join(aux.default)}).",
                "Name the format that the list belongs to, such as vllm, or state the layers with --aux-layers.",
            )


class W307_SuspectDefault(Rule):
    """The checkpoint states no ids, and the version that wrote it trained on other layers than absence means today.

    How it happens: speculators 0.3 and 0.4 captured one layer later than the default list says and stored no ids.
    Fix: `--aux-layers` with the layers of the training run.
    """

    severity = Severity.WARNING
    confidence = Confidence.INFERENCE

    def check(self, case: Case) -> Iterator[Finding]:
        suspect, aux = case.reading.schema.aux_layers.suspect, case.reading.aux
        if suspect is None or aux.origin is not Origin.DEFAULT:
            return
        written = case.reading.checkpoint.config.get(suspect.field)
        if isinstance(written, str) and _below(written, suspect.below):
            n = case.reading.verifier.num_hidden_layers
            instead = f"[{', '.join(suspect.instead)}] of n layers"
            example = ",".join(suspect.instead)
            if n is not None:
                states = default_states(suspect.instead, n)
                instead, example = str(list(states)), ",".join(map(str, states))
            yield self.finding(
                FIELD,
                f"{suspect.field} is {written}: {suspect.reason}, so it was probably trained on {instead}, one layer "
                f"later than the default that is assumed here.",
                f"If so, say --aux-layers {example}.",
            )


def _below(written: str, bound: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(written) < Version(bound)
    except InvalidVersion:
        return False
