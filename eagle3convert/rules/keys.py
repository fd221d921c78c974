"""E1xx: the tensors of the drafter against the closed table, both ways."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3convert.canonical import COMPANION_SUFFIXES, fold_layers
from eagle3convert.findings import Finding, Severity
from eagle3convert.reading import MLA_TENSORS
from eagle3convert.rules.base import Case, Rule, destination_of

# Tensors of drafters that draft in another way than EAGLE-3, and what they are.
OTHER_METHODS = {
    "mask_hidden": "the mask state of a P-EAGLE drafter, which drafts all tokens in one parallel pass",
    "parallel_draft_heads": "the Medusa-style heads of a parallel drafter",
    "medusa_layers": "the Medusa-style heads of a parallel drafter",
}


def other_method(name: str) -> str | None:
    return next((what for part, what in OTHER_METHODS.items() if part in name.split(".")), None)


def quantised(case: Case, canonical: str) -> bool:
    """Whether a quantised module keeps something else in place of this weight."""
    module = canonical.rsplit(".", 1)[0]
    return any(f"{module}.{suffix}" in case.reading.names.names for suffix in COMPANION_SUFFIXES)


class E101_MissingTensor(Rule):
    """A tensor that every drafter of these sizes and features has is not in the file.

    Why it matters: engines start all the same. SGLang and vLLM leave the parameter as it was initialised, without a
    message, and nothing that the drafter proposes is accepted.
    How it happens: a rename that missed a key, an exporter that skipped one, a shard that was left out.
    Fix: export the drafter again; where a key is only misspelt, E102 names the other half.
    Reference: vllm-project/speculators#1114, sgl-project/sglang#27829.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        reading = case.reading
        if reading.decoder == "mla":
            return
        missing = [
            name
            for name, spec in case.drafter.table.items()
            if name not in reading.names.names and not spec.optional and not spec.feature and not quantised(case, name)
        ]
        if reading.feature("narrow").value and "embed_tokens.weight" not in reading.names.names:
            missing.append("embed_tokens.weight")
        for name in fold_layers([reading.found(n) for n in missing]):
            yield self.finding(
                name,
                f"{name} is missing from the checkpoint: {self._why(case, name)}",
                "Export the drafter again, or correct the name of the tensor that stands in its place.",
            )

    @staticmethod
    def _why(case: Case, name: str) -> str:
        dims = case.reading.dims
        if name.endswith("lm_head.weight"):
            return f"draft_vocab_size is {dims.DV} of {dims.V}, so the verifier's head cannot stand in for it."
        if name.endswith("embed_tokens.weight"):
            return f"the drafter is {dims.H} wide and its verifier {dims.T}, so the verifier's embedding does not fit."
        return "an engine would leave this weight at its random start and accept nothing."


class E102_UnexpectedTensor(Rule):
    """A tensor of the checkpoint belongs to nothing that an EAGLE-3 drafter consists of.

    Why it matters: SGLang drops a name it does not know without a word; vLLM stops with an error. A tensor that is
    dropped was trained, so the drafter that is served is another one.
    How it happens: a misspelt key, a wrapper's prefix, a drafter of another kind, weights of the verifier.
    Fix: correct the name, or remove the tensor where it is not part of the drafter.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        strays = [n for n in case.reading.names.unexpected if other_method(n) is None]
        if case.reading.decoder == "mla":
            return
        for name in fold_layers(strays):
            yield self.finding(
                name,
                f"{name} is no tensor of a {case.source} EAGLE-3 drafter of {case.reading.dims.L} decoder layer(s); "
                f"it would be dropped, and what it holds was trained.",
                "Correct its name, or remove it from the file where it does not belong to the drafter.",
            )


class E103_DoubledTensor(Rule):
    """Two tensors of the checkpoint are spellings of one and the same weight.

    Why it matters: which of them an engine keeps depends on the order in which it happens to read them.
    How it happens: a rename that copied instead of moving, two exports in one folder.
    Fix: remove the wrong one.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        for canonical, names in case.reading.names.doubled:
            yield self.finding(
                names[0],
                f"{' and '.join(names)} are both the drafter's {canonical}; only one of them can be used.",
                "Remove the one that was not trained.",
            )


class E104_WrongShape(Rule):
    """A tensor's shape contradicts the sizes that the config states.

    Why it matters: the engine stops at start, or reads the weight as something else.
    How it happens: a config copied from the verifier, a drafter trained with other sizes.
    Fix: correct the config field, or use the weights that belong to it.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        reading, dims = case.reading, case.reading.dims
        wrong_heads = any(True for _ in head_dim_conflict(case))
        for name, spec in case.drafter.table.items():
            found, wanted = reading.shape(name), dims.shape(spec)
            if found is None or name == "fc.weight" or (wrong_heads and ".self_attn." in name):
                continue
            if quantised(case, name):
                continue
            fits = len(found) == len(wanted) and all(w is None or f == w for f, w in zip(found, wanted, strict=True))
            if not fits:
                shape = "[" + ", ".join("?" if w is None else str(w) for w in wanted) + "]"
                yield self.finding(
                    reading.found(name),
                    f"{reading.found(name)} has the shape {list(found)}; {' x '.join(spec.shape)} of the config "
                    f"makes {shape} ({_sizes(case, spec.shape)}).",
                    "Correct the config field that is wrong, or take the weights that belong to this config.",
                )
        mask = reading.shape("t2d")
        if mask is not None and dims.V is not None and mask != (dims.V,):
            yield self.finding(
                reading.found("t2d"),
                f"{reading.found('t2d')} has the shape {list(mask)}; vocab_size is {dims.V}.",
                "vocab_size is the verifier's vocabulary: correct it, or use the t2d of this verifier.",
            )


_FIELD_OF = {
    "H": "hidden_size", "T": "target_hidden_size", "A": "aux layers", "Q": "num_attention_heads",
    "K": "num_key_value_heads", "D": "head_dim", "I": "intermediate_size", "V": "vocab_size",
    "DV": "draft_vocab_size",
}  # fmt: skip


def _sizes(case: Case, shape: tuple[str, ...]) -> str:
    symbols = dict.fromkeys(s for axis in shape for s in axis.split("*") if not s.isdigit())
    return ", ".join(f"{s} = {_FIELD_OF[s]} = {getattr(case.reading.dims, s)}" for s in symbols)


def head_dim_conflict(case: Case) -> Iterator[tuple[int, int, int]]:
    """(head_dim stated, q_proj rows, heads) where they contradict each other."""
    dims, rows = case.reading.dims, case.reading.shape("layers.0.self_attn.q_proj.weight")
    if rows and dims.Q and dims.D and rows[0] != dims.Q * dims.D:
        yield dims.D, rows[0], dims.Q


class E105_OtherDraftMethod(Rule):
    """The checkpoint is a drafter, but not an EAGLE-3 one.

    Why it matters: SGLang loads a P-EAGLE drafter without a word and drops what makes it one.
    How it happens: P-EAGLE, Medusa-style heads and EAGLE-1/2 heads use many of the same names.
    Fix: serve it with an engine that runs its method; there is nothing to convert it to.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        for name in case.reading.names.unexpected:
            what = other_method(name)
            if what is not None:
                yield self.finding(
                    name,
                    f"{name} is {what}; an EAGLE-3 drafter has no such tensor, and eagle3convert "
                    f"converts none of that method.",
                    "Serve it with the engine that it was trained for.",
                )
        width = case.reading.shape("layers.0.self_attn.q_proj.weight") or ()
        has_fc = "fc.weight" in case.reading.names.names
        if len(width) == 2 and width[1] == case.reading.dims.H and has_fc:
            name = case.reading.found("layers.0.self_attn.q_proj.weight")
            yield self.finding(
                name,
                f"{name} takes {width[1]} inputs, once the hidden size; the first layer of an EAGLE-3 drafter takes "
                f"twice as many (embedding and state). This is an EAGLE-1 or EAGLE-2 head.",
                "Nothing converts between the two methods: retrain the drafter as EAGLE-3.",
            )


class E106_Mla(Rule):
    """The drafter's attention is MLA (DeepSeek's), for which this project has no tensor table yet.

    Why it matters: converting only what is known would drop the rest.
    Fix: serve it as it is; SGLang and vLLM know such drafters as Eagle3DeepseekV2ForCausalLM.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        if case.reading.decoder != "mla":
            return
        name = next(n for n in case.reading.checkpoint.tensors if any(part in n for part in MLA_TENSORS))
        yield self.finding(
            name,
            f"{name} belongs to an MLA decoder layer; eagle3convert has no tensor table for MLA drafters yet.",
            "Serve it as it is: SGLang (>= 0.5.12) and vLLM run it as Eagle3DeepseekV2ForCausalLM.",
        )


class W107_QuantisedDrafter(Rule):
    """The drafter is quantised: scales stand beside its weights.

    What happens: scales travel with their weights under the new names; quantization_config is kept as it is, and
    module names inside it are not translated.
    Fix: check the ignore list in quantization_config after the conversion.
    """

    severity = Severity.WARNING
    needs_destination = True

    def check(self, case: Case) -> Iterator[Finding]:
        scales = [n for n in case.reading.names.names if n.rsplit(".", 1)[-1] in COMPANION_SUFFIXES]
        dest = destination_of(case)
        moved = [n for n in scales if dest.spelling.written(n) != case.reading.found(n)]
        if moved and "quantization_config" in case.drafter.fields:
            yield self.finding(
                "quantization_config",
                f"quantization_config is kept as it is, but {len(moved)} quantised tensors get new names, such as "
                f"{case.reading.found(moved[0])} -> {dest.spelling.written(moved[0])}.",
                "Look for module names in its ignore and targets lists and rename them.",
            )
