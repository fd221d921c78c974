"""E3xx of the destination: whether it can feed fc with the states that it was trained on."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3convert.aux_layers import broken_in, possible_readings, rule_at
from eagle3convert.conventions import default_states
from eagle3convert.findings import Confidence, Finding, Severity
from eagle3convert.releases import holds
from eagle3convert.rules.aux_layers import FIELD, place
from eagle3convert.rules.base import Case, Rule, destination_of


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
        states, n, rule = dest.states, dest.layers, rule_at(dest.schema, dest.family, dest.version)
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
        if rule.lacks_final(states, n):
            reasons.append(
                f"hidden_states {n} is the final state of the verifier's {n} layers, and {release} does not capture it"
                + (f" ({schema.aux_layers.final_reason.rstrip('.')})" if schema.aux_layers.final_reason else "")
            )
        if rule.lacks_embedding(states):
            why = schema.aux_layers.embedding_reason.rstrip(".")
            reasons.append(
                f"hidden_states 0 is the embedding output, and {release} does not capture it"
                + (f" ({why})" if why else "")
            )
        if dest.family is not None and broken_in(dest.family, dest.version):
            reasons.append(f"{release} {dest.family.broken.rstrip('.')}")
        elif not rule.captures:
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
        read = rule.reads(dest.aux_ids, n) if dest.aux_ids is not None else None
        if not reasons and read is not None and read != states:
            reasons.append(f"{release} reads the ids {list(dest.aux_ids or ())} as hidden_states {list(read)}")
        if not reasons:
            least = schema.aux_layers.min_id
            none = f", and it takes no id below {least}, so none for the embedding output" if least is not None else ""
            reasons.append(f"its numbering ({rule.convention.says}) has no way to say this list{none}")
        yield self.finding(
            FIELD, f"{listed} cannot be served by {release}: {'; '.join(reasons)}.", remedy, states=list(states),
            # A state that is never captured is one less than fc takes.
            outcome="stops" if rule.lacks_final(states, n) or rule.lacks_embedding(states) else "wrong",
        )  # fmt: skip


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
