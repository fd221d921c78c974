"""E3xx: which verifier states feed fc, as trained and as the destination would feed them."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3convert.aux_layers import possible_readings
from eagle3convert.canonical import Origin
from eagle3convert.conventions import default_states
from eagle3convert.findings import Confidence, Finding, Severity
from eagle3convert.releases import holds
from eagle3convert.rules.base import Case, Rule, destination_of

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
                f"{name} takes {shape[-1]} inputs, but {said} of {dims.T} each make {wanted}.",
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
    return isinstance(raw, list) and bool(raw) and all(isinstance(i, int) and not isinstance(i, bool) for i in raw)


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


class E305_AuxLayersUnreachable(Rule):
    """The destination cannot feed fc with the states that it was trained on.

    Why it matters: the engine feeds other layers, or too few, and says nothing.
    How it happens: the embedding output, the last layer's output, or custom layers in a release that ignores them.
    Fix: serve it with an engine or release that captures these layers, or train on others.
    Reference: sgl-project/sglang#25454, #32334, #22836.
    """

    needs_destination = True

    def check(self, case: Case) -> Iterator[Finding]:
        dest, aux = destination_of(case), case.reading.aux
        states, n, rule = dest.states, dest.layers, dest.aux_rule
        if states is None or rule.serves(states, dest.aux_ids, n):
            return
        schema, product = dest.schema, dest.schema.product
        of = f" for {', '.join(case.reading.verifier.model_types or case.reading.verifier.architectures)} verifiers"
        release = f"{product} {dest.version}{of if dest.family else ''}"
        listed = f"aux layers {list(states)} ({place(case)} {list(aux.ids or states)})"
        remedy = "Train on other layers, or serve the drafter with an engine that captures these."
        if dest.aux_release is not None and not holds(dest.version, dest.aux_release):
            remedy = f"{product} >= {dest.aux_release} serves them."
        reasons = []
        if n is not None and n in states and not rule.final:
            reasons.append(
                f"hidden_states {n} is the final state of the verifier's {n} layers, and {release} does not capture it"
                + (f" ({schema.aux_layers.final_reason.rstrip('.')})" if schema.aux_layers.final_reason else "")
            )
        if 0 in states and not rule.embedding:
            why = schema.aux_layers.embedding_reason.rstrip(".")
            reasons.append(
                f"hidden_states 0 is the embedding output, and {release} does not capture it"
                + (f" ({why})" if why else "")
            )
        if not rule.captures:
            reasons.append(f"{release} captures no aux layers at all")
        only_default = f"always takes [{', '.join(rule.default)}] of n layers"
        if not reasons and not rule.serves_custom:
            reasons.append(f"it {only_default} there: {schema.aux_layers.custom_reason}")
        if not reasons and not schema.aux_layers.keys:
            reasons.append(f"{product} has no field for them and {only_default}")
        if n is None and any(only_default in reason for reason in reasons):
            remedy = (
                f"Give the verifier's config.json with --verifier-config: nothing states its layer count n. {remedy}"
            )
        if not reasons:
            reasons.append(f"its numbering ({rule.convention.says}) has no way to say this list")
        yield self.finding(
            FIELD, f"{listed} cannot be served by {release}: {'; '.join(reasons)}.", remedy, states=list(states)
        )


class E306_FamilyUnknown(Rule):
    """The verifier's family decides what the aux-layer ids mean, and nothing says which family it is.

    Why it matters: the same ids mean other layers to another verifier class, so a guess would be silent and wrong.
    Fix: give the verifier's config.json with --verifier-config, or its folder or name with --verifier.
    """

    def skip(self, case: Case) -> str | None:
        unknown = case.examined and not case.reading.verifier.family_known
        return "nothing states the verifier's family (--verifier-config)" if unknown else super().skip(case)

    def check(self, case: Case) -> Iterator[Finding]:
        reading = case.reading
        remedy = (
            "Give the verifier's config.json with --verifier-config, or say --assume verifier.model_type=llama (or "
            "kimi_k2 …)."
        )
        if reading.aux.candidates:
            readings = " or ".join(str(list(c)) for c in reading.aux.candidates)
            yield self.finding(
                place(case),
                f"{place(case)} {list(reading.aux.ids or ())} means hidden_states {readings}, by the verifier's "
                f"family, which nothing states.",
                remedy,
            )
        dest = case.destination
        if dest is None or dest.states is None or not dest.schema.aux_layers.known_families:
            return
        if dest.family is None and not reading.verifier.family_known and not self._alike(case):
            yield self.finding(
                FIELD,
                f"how {dest.schema.product} numbers the aux layers {list(dest.states)} depends on the verifier's "
                f"family, which nothing states.",
                remedy,
            )

    @staticmethod
    def _alike(case: Case) -> bool:
        """Whether the ids that the general rule writes are read alike by every family."""
        dest = destination_of(case)
        if dest.aux_ids is None or dest.states is None:
            return True
        return possible_readings(dest.schema, dest.aux_ids, dest.layers) == (dest.states,)


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


class W308_FamilyNotListed(Rule):
    """The destination has rules by verifier family, and this family is on none of its lists.

    Why it matters: the engine may have no capture for it, or number its layers in another way.
    What happens: the engine's general rule is followed.
    Fix: check that the engine's model class has set_eagle3_layers_to_capture.
    """

    severity = Severity.WARNING
    confidence = Confidence.INFERENCE
    needs_destination = True

    def check(self, case: Case) -> Iterator[Finding]:
        dest, verifier = destination_of(case), case.reading.verifier
        schema = dest.schema
        listed = schema.role == "engine" and schema.aux_layers.known_families
        if listed and dest.family is None and verifier.family_known:
            name = ", ".join(verifier.model_types or verifier.architectures)
            yield self.finding(
                "verifier",
                f"verifier family {name} is on no list of {schema.product} {schema.releases[1]}'s aux-layer rules; its "
                f"general rule is followed ({dest.aux_rule.convention.says}).",
                f"Check that {schema.product} captures aux layers of this verifier.",
            )


class W309_FamilyCaution(Rule):
    """Something is known to go wrong with this verifier family in the destination.

    Fix: as the message says; where it was only read in the source, measure the acceptance.
    """

    severity = Severity.WARNING
    confidence = Confidence.INFERENCE
    needs_destination = True

    def check(self, case: Case) -> Iterator[Finding]:
        family = destination_of(case).family
        if family is not None and family.caution:
            yield self.finding("verifier", f"{family.caution}.", "Measure the acceptance before you serve it.")


class W310_FinalStateUnchecked(Rule):
    """Nothing states how many layers the verifier has, so an aux layer may be its final state.

    Why it matters: SGLang never captures the state after the last layer, and fc then gets too few inputs.
    Fix: give the verifier's config.json with --verifier-config, or its folder with --verifier.
    """

    severity = Severity.WARNING
    needs_destination = True

    def skip(self, case: Case) -> str | None:
        unknown = case.examined and case.reading.verifier.num_hidden_layers is None
        return "nothing states the verifier's layer count (--verifier-config)" if unknown else super().skip(case)

    def check(self, case: Case) -> Iterator[Finding]:
        dest = destination_of(case)
        if dest.layers is not None or not dest.states or dest.aux_rule.final or not dest.schema.aux_layers.keys:
            return
        last = max(dest.states)
        if dest.states == default_states(dest.aux_rule.default, last + 3):
            return  # the default list of a verifier of last + 3 layers: nobody picks that by chance
        yield self.finding(
            FIELD,
            f"nothing states the verifier's layer count: if it has {last} layers, hidden_states {last} is its final "
            f"state, which {dest.schema.product} {dest.version} does not capture.",
            "Give the verifier's config.json with --verifier-config to have it checked.",
        )
