"""E4xx: behaviours of the forward pass that are unknown, contradictory, or that the destination cannot say."""

from __future__ import annotations

import json
from collections.abc import Iterator

from eagle3convert.canonical import FEATURES, Origin
from eagle3convert.findings import Finding, Severity
from eagle3convert.releases import holds
from eagle3convert.rules.base import Case, Rule, destination_of


def _shown(value: object) -> str:
    return json.dumps(value)


def feature_tensors(case: Case, feature: str) -> list[str]:
    """The checkpoint's tensors that exist for this feature, as found."""
    found = case.reading.names.names
    table = {
        "norm_before_fc": ("input_norm.",), "fc_norm": ("fc_norm.",), "qk_norm": (".q_norm.", ".k_norm."),
        "fc_bias": ("fc.bias",),
    }  # fmt: skip
    if feature in ("attention_bias", "mlp_bias"):
        block = {"attention_bias": ".self_attn.", "mlp_bias": ".mlp."}[feature]
        return [src for name, src in found.items() if block in name and name.endswith(".bias")]
    parts = table.get(feature, ())
    return [src for name, src in found.items() if any(p in f".{name}" or name.startswith(p) for p in parts)]


class E401_FeatureUnsayable(Rule):
    """The drafter was trained with a behaviour that the destination cannot express.

    Why it matters: the engine loads the drafter and computes something else, without a word, and accepts little.
    How it happens: each engine has grown its own set of switches; speculators' trainer turns on some by default.
    Fix: serve the drafter with an engine that can say it (the refusal lists them), or train without it.
    Reference: vllm-project/vllm#43132, sgl-project/sglang#24663.
    """

    needs_destination = True

    def check(self, case: Case) -> Iterator[Finding]:
        dest = destination_of(case)
        for name, rule in dest.schema.features.items():
            fact, spec = case.reading.feature(name), FEATURES[name]
            if not fact.known or not rule.is_fixed or fact.value == rule.fixed_value:
                continue
            tensors = feature_tensors(case, name)
            subject = ", ".join(tensors[:2]) if tensors else name
            shown = f" ({', '.join(tensors[:2])}{' …' if len(tensors) > 2 else ''})" if tensors else ""
            yield self.finding(
                subject,
                f"{name} is {_shown(fact.value)}{shown}, that is: "
                f"{spec.says if fact.value != spec.plain or spec.plain is True else 'not ' + spec.says}; "
                f"{dest.schema.product} has {_shown(rule.fixed_value)} only. {rule.reason}",
                rule.remedy,
                feature=name,
            )
        kind = dest.schema.decoders[case.reading.decoder]
        if not kind.architectures and case.reading.decoder == "qwen3" and not dest.schema.features["qk_norm"].is_fixed:
            yield self.finding("q_norm", f"the drafter has qwen3 decoder layers. {kind.reason}")
        yield from self._unwritten(case)

    def _unwritten(self, case: Case) -> Iterator[Finding]:
        """Features that the destination knows under one value of absence only, or that its decoder kind lacks."""
        dest = destination_of(case)
        for name, rule in dest.schema.features.items():
            fact = case.reading.feature(name)
            if rule.is_fixed or not fact.known:
                continue
            if not rule.write and rule.config_key and fact.value != rule.absent:
                yield self.finding(
                    name, f"{name} is {_shown(fact.value)}; {dest.schema.product} cannot be told so. {rule.dispute}",
                    feature=name,
                )  # fmt: skip
            if case.reading.decoder in rule.not_for and fact.value != FEATURES[name].plain:
                tensors = feature_tensors(case, name)
                yield self.finding(
                    tensors[0] if tensors else name,
                    f"{name} is {_shown(fact.value)} in a drafter with {case.reading.decoder} layers. {rule.reason}",
                    feature=name,
                )


class E402_FeatureUnknown(Rule):
    """Nothing says how the drafter was trained in this respect, and the files cannot show it.

    Why it matters: an absent norm_before_residual is true to vLLM and false to speculators; a guess is silent.
    Fix: state what the training run used with --assume.
    Reference: vllm-project/vllm#21345.
    """

    needs_destination = True

    def check(self, case: Case) -> Iterator[Finding]:
        for name in FEATURES:
            fact = case.reading.feature(name)
            if not fact.known:
                yield self.finding(
                    name,
                    f"{name} ({FEATURES[name].says}) is not stated in config.json, and what "
                    f"absence means differs from program to program.",
                    f"State what the training run used: --assume {name}=true or --assume {name}=false.",
                )


class E403_FlagAgainstTensors(Rule):
    """The config says a feature is on and its tensors are missing, or says it is off and its tensors are there.

    Why it matters: an engine runs the norm with weights of ones, or drops trained weights, without a word.
    How it happens: a config copied from another run, tensors dropped on the way.
    Fix: correct the flag, or take the tensors from the training run.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        for name, spec in FEATURES.items():
            fact = case.reading.feature(name)
            if spec.source != "both":
                continue
            tensors = feature_tensors(case, name)
            wanted = [case.reading.found(n) for n, s in case.drafter.table.items() if s.feature == name]
            present = set(tensors)
            missing = [n for n in wanted if n not in present]
            if fact.origin is Origin.DISPUTED and not fact.value:
                yield self.finding(
                    tensors[0], f"{tensors[0]} is in the checkpoint, but {fact.where} is false.",
                    f"If it was trained with it, say --assume {name}=true.",
                )  # fmt: skip
            elif fact.value and missing:
                yield self.finding(
                    missing[0],
                    f"{missing[0]} is missing from the checkpoint: {fact.where or name} says {name} "
                    f"({spec.says}){'' if len(missing) == 1 else f'; {len(missing)} tensors of it are missing'}.",
                    f"Export the drafter again, or correct {name} if it was trained without.",
                )
        if case.reading.feature("qk_norm").value:
            names = case.reading.names.names
            for name, tensor in case.drafter.table.items():
                if tensor.feature == "qk_norm" and name not in names:
                    found = case.reading.found(name)
                    yield self.finding(
                        found,
                        f"{found} is missing from the checkpoint; others of its q_norm and k_norm are there.",
                        "Export the drafter again.",
                    )


class W404_TensorsWithoutFlag(Rule):
    """The tensors of a feature are in the checkpoint and the config does not mention the feature.

    What happens: the tensors were trained, so the feature counts as on, and the output says so.
    Fix: set the flag in the source.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        for name, spec in FEATURES.items():
            fact = case.reading.feature(name)
            if spec.source == "both" and fact.value and fact.origin is Origin.TENSORS:
                tensors = feature_tensors(case, name)
                yield self.finding(
                    tensors[0],
                    f"{tensors[0]} is in the checkpoint and config.json does not say {name}; it counts as on.",
                    "Set the flag in the source's config.json, for its readers skip the tensor without it.",
                )


class W405_DisputedMeaning(Rule):
    """A field of the source's config has meant different things in different releases of its program.

    What happens: the meaning of the releases that the format file covers is followed.
    Fix: state the value in the engines' meaning with --assume.
    Reference: sgl-project/SpecForge#879.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        for name, rule in case.reading.schema.features.items():
            fact = case.reading.feature(name)
            if fact.origin is Origin.DISPUTED and rule.disputed_by and rule.dispute:
                stated = case.reading.checkpoint.config.get(rule.disputed_by[0])
                if name == "final_norm" and fact.value is True:
                    continue
                yield self.finding(
                    rule.disputed_by[0],
                    f"{rule.disputed_by[0]} is {_shown(stated)} in config.json: {rule.dispute}. {case.source} "
                    f"{case.reading.schema.releases[1]} is followed: {name} is {_shown(fact.value)}.",
                    f"If the drafter was trained with another meaning, say --assume {name}={_shown(not fact.value)}.",
                )


class E406_AssumptionRefuted(Rule):
    """Something stated with --assume is contradicted by what the checkpoint states or its tensors prove.

    Why it matters: an assumption fills a gap; it does not change how a drafter was trained.
    Fix: leave the assumption out.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        reading = case.reading
        for name, value in reading.statements.assume.items():
            spec = FEATURES.get(name)
            if spec is None:
                continue
            rule, stated = reading.schema.features[name], reading.config.stated.get(name)
            disputed = any(path in reading.checkpoint.config for path in rule.disputed_by)
            if disputed or (spec.kind == "window" and stated is not None and stated.value is None):
                continue
            if spec.source != "config":
                proof = bool(feature_tensors(type(case)(case.drafter), name)) if spec.source == "both" else None
                if proof is not None and proof != value:
                    yield self.finding(
                        name, f"--assume {name}={_shown(value)} contradicts the checkpoint's tensors.", "Leave it out."
                    )
            elif stated is not None and stated.value != value:
                yield self.finding(
                    name,
                    f"--assume {name}={_shown(value)} contradicts {stated.path}, which is {_shown(stated.value)}.",
                    "Leave it out; an assumption states what the source does not say.",
                )


class W407_StatedAgainstFormat(Rule):
    """The config states a value that its format's program ignores.

    What happens: the stated value counts as the way the drafter was trained.
    Fix: remove the field if it is a left-over.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        for name, rule in case.reading.schema.features.items():
            fact = case.reading.feature(name)
            if rule.is_fixed and fact.origin is Origin.STATED and fact.value != rule.fixed_value:
                yield self.finding(
                    fact.where,
                    f"{fact.where} is {_shown(fact.value)}, which {case.source} ignores ({rule.reason.rstrip('.')}); "
                    f"it is taken for the way the drafter was trained.",
                    "Remove the field if the drafter was trained without it.",
                )


class E408_ReleaseTooOld(Rule):
    """The release given with --engine-version reads less than this drafter needs.

    Fix: upgrade the engine, or leave --engine-version out and follow the lowest release that the plan states.
    """

    needs_destination = True

    def check(self, case: Case) -> Iterator[Finding]:
        dest = destination_of(case)
        if not dest.release:
            return
        for what, since in dest.requirements():
            if not holds(dest.release, since):
                yield self.finding(
                    what,
                    f"{what} needs {dest.schema.product} >= {since}; --engine-version is {dest.release}.",
                    "Upgrade the engine.",
                )
        if not holds(dest.release, dest.schema.releases[0]):
            yield self.finding(
                "--engine-version",
                f"{dest.schema.product} {dest.release} is older than all known of it ({dest.schema.releases[0]}).",
                "Use a newer release.",
            )


class W411_FeatureCaution(Rule):
    """The destination runs this behaviour in some of its configurations only.

    Fix: as the message says.
    """

    severity = Severity.WARNING
    needs_destination = True

    def check(self, case: Case) -> Iterator[Finding]:
        for name, rule in destination_of(case).schema.features.items():
            fact = case.reading.feature(name)
            if rule.caution and fact.known and fact.value != FEATURES[name].plain:
                yield self.finding(
                    name, f"{name} is {_shown(fact.value)} ({FEATURES[name].says}). {rule.caution}", feature=name
                )


class W409_WindowFlag(Rule):
    """The drafter slides, and the destination takes the window from a server flag only.

    Why it matters: without the flag the drafter attends to more than it was trained on once the text is longer than the
    window.
    Fix: start the server with the flag; the plan prints it.
    """

    severity = Severity.WARNING
    needs_destination = True

    def check(self, case: Case) -> Iterator[Finding]:
        dest = destination_of(case)
        rule, window = dest.schema.features["sliding_window"], case.reading.feature("sliding_window").value
        if rule.launch and isinstance(window, int):
            flag = rule.launch.format(window_minus_1=window - 1)
            yield self.finding(
                "sliding_window",
                f"sliding_window is {window}, which {dest.schema.product} does not read from a checkpoint.",
                f"Start the server with {flag} (its size does not count the query).",
                flag=flag,
            )
