"""E5xx: the fields of config.json."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3convert.canonical import Origin, is_whole
from eagle3convert.findings import Finding, Severity
from eagle3convert.nested import ABSENT, get
from eagle3convert.rules.base import Case, Rule, destination_of
from eagle3convert.rules.keys import head_dim_conflict
from eagle3convert.vocab import LARGEST_VOCABULARY

REQUIRED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
NUMERIC = (*REQUIRED, "num_key_value_heads", "head_dim", "num_hidden_layers", "draft_vocab_size", "target_hidden_size")


class E501_FieldMissing(Rule):
    """A size without which nobody can build the drafter is in neither the config nor the tensors, or is no number.

    Fix: add the field; the values are those of the training run.
    Reference: NVIDIA-NeMo/Automodel#2260.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        reading = case.reading
        for name in NUMERIC:
            value = reading.fact(name).value
            place = (reading.schema.places(name) or (name,))[0]
            if value is None and name in REQUIRED:
                yield self.finding(
                    place, f"{place} is not in config.json and nothing else tells it.",
                    f"Add it, or say --assume {name}=N.",
                )  # fmt: skip
            elif value is not None and not (is_whole(value) and value > 0):
                yield self.finding(place, f"{place} is {value!r}; a whole number above 0 is wanted.", "Correct it.")
            elif isinstance(value, int) and value > LARGEST_VOCABULARY:
                yield self.finding(place, f"{place} is {value}; no drafter is so large.", "Correct it.")


class W502_LayerCountCopied(Rule):
    """num_hidden_layers is the verifier's and not the drafter's.

    Why it matters: SGLang before 0.5.12 refuses more than one layer; later releases build layers that no weight fills.
    How it happens: the drafter's config was copied from the verifier's.
    What happens: the output states the layers that are in the checkpoint.
    Fix: correct num_hidden_layers in the source.
    Reference: sgl-project/sglang#33966, sgl-project/SpecForge#129.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        fact = case.reading.fact("num_hidden_layers")
        if fact.origin is Origin.DISPUTED:
            stated = case.reading.config.value("num_hidden_layers")
            yield self.finding(
                fact.where,
                f"{fact.where} is {stated}, and the checkpoint holds {fact.value} decoder layer(s): the number is the "
                f"verifier's. A conversion writes {fact.value}.",
                "Correct the source's config.json.",
            )


class W503_TiedWordEmbeddings(Rule):
    """tie_word_embeddings is true, and the drafter has an lm_head of its own.

    Why it matters: SGLang takes the embedding for the head then, and a head of draft_vocab_size rows is thrown away.
    How it happens: the field was copied from a verifier with tied embeddings.
    What happens: the output says false.
    Fix: set tie_word_embeddings to false in the source.
    Reference: sgl-project/SpecForge#140, vllm-project/speculators#74.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        stated = case.reading.config.stated.get("tie_word_embeddings")
        if stated is not None and stated.value is True and "lm_head.weight" in case.reading.names.names:
            yield self.finding(
                "tie_word_embeddings",
                f"{stated.path} is true, but the checkpoint has an lm_head of its own with {case.reading.dims.DV} "
                f"rows; a conversion writes false.",
                "Correct the source's config.json.",
            )


class E504_TiedWithoutHead(Rule):
    """tie_word_embeddings is true and there is no lm_head: the drafter's own embedding would be its head.

    Fix: write lm_head.weight into the checkpoint.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        stated = case.reading.config.stated.get("tie_word_embeddings")
        if stated is not None and stated.value is True and case.reading.feature("shared_lm_head").value:
            yield self.finding(
                "tie_word_embeddings",
                f"{stated.path} is true and the checkpoint has no lm_head.weight; whose embedding is the head, the "
                f"drafter's or the verifier's, differs between engines.",
                "Save lm_head.weight in the checkpoint.",
            )


class W505_RopeSpellings(Rule):
    """The two spellings of rope in the config contradict each other.

    Why it matters: an engine on transformers 4 and one on transformers 5 would turn q and k by different angles.
    What happens: rope_parameters is followed, as transformers 5 does.
    Fix: make the two spellings of the source agree.
    Reference: vllm-project/speculators#574.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        for conflict in case.reading.config.rope_conflicts:
            yield self.finding(
                "rope_parameters", f"rope_parameters: {conflict}; rope_parameters is followed.",
                "Make the two spellings of the source's config.json agree.",
            )  # fmt: skip


class W506_DtypeField(Rule):
    """The dtype that the config names is not the one that the weights are stored in.

    Why it matters: an engine casts the drafter on load, or meets a verifier of another dtype.
    What happens: nothing is cast unless --dtype asks for it; the output names the stored dtype.
    Fix: correct the field in the source, or cast with --dtype.
    Reference: vllm-project/speculators#136.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        stated, stored = case.reading.config.stated.get("dtype"), case.drafter.dtype
        asked = case.destination is not None and case.destination.dtype is not None
        if stated is not None and stored is not None and stated.value != stored and not asked:
            yield self.finding(
                stated.path,
                f"{stated.path} is {stated.value}, but the weights are stored in {stored}; a conversion writes that "
                f"and casts nothing.",
                f"To cast them, say --dtype {stated.value}.",
            )


class E507_HeadDim(Rule):
    """head_dim times the number of heads is not the number of rows of q_proj.

    Why it matters: attention would be cut into other heads than were trained, or the engine stops at start.
    How it happens: head_dim copied from another model of the family.
    Fix: correct head_dim; `--assume head_dim=N` states it.
    Reference: Tencent/AngelSlim#5, vllm-project/speculators#134.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        for dim, rows, heads in head_dim_conflict(case):
            name = case.reading.found("layers.0.self_attn.q_proj.weight")
            fits = f" {rows} rows are {heads} heads of {rows // heads}." if rows % heads == 0 else ""
            remedy = (
                f"Correct it, or say --assume head_dim={rows // heads}." if fits else "Correct head_dim or the heads."
            )
            yield self.finding(
                "head_dim",
                f"head_dim is {dim}, but {name} has {rows} rows for num_attention_heads {heads}, which is not "
                f"{heads} x {dim} = {heads * dim}.{fits}",
                remedy,
            )


class W508_VerifierPath(Rule):
    """The source names its verifier by a path of the machine it was trained on.

    Why it matters: `vllm serve DRAFTER` takes that path for the model to serve, and the Hub refuses a card with it.
    Fix: `--verifier ORG/MODEL`.
    Reference: vllm-project/speculators#1065, huggingface/autotrain-advanced#648.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        dest, said = case.destination, case.reading.config.value("verifier.name")
        recorded = dest is not None and "verifier.name" not in dest.schema.config.unsaid
        name = case.reading.verifier.name
        if name is not None and is_path(name) and (name == said or recorded):
            yield self.finding(
                "verifier",
                f"the verifier is named {name}, a path that other machines do not have.",
                "Name it with --verifier ORG/MODEL.",
            )


def is_path(name: str) -> bool:
    """Whether a verifier's name is a place on a disk rather than a repository of the Hub."""
    return name.startswith(("/", "~", "./", "../")) or "\\" in name or name.count("/") > 1


class W509_VerifierUnnamed(Rule):
    """The destination records the verifier's name, and nothing tells it.

    Why it matters: `vllm serve DRAFTER` reads it to know which model to serve.
    Fix: `--verifier ORG/MODEL`.
    """

    severity = Severity.WARNING
    needs_destination = True

    def check(self, case: Case) -> Iterator[Finding]:
        schema = destination_of(case).schema
        if "verifier.name" not in schema.config.unsaid and case.reading.verifier.name is None:
            place = schema.config.places["verifier.name"][0]
            yield self.finding(
                place, f"{place} is written as null: nothing names the verifier.", "Name it with --verifier ORG/MODEL."
            )


class E510_GuardedField(Rule):
    """A field of the config has a value that means a drafter which is not converted.

    Fix: as the message says.
    """

    def check(self, case: Case) -> Iterator[Finding]:
        for guard in case.reading.schema.config.guards:
            value = get(case.reading.checkpoint.config, guard.path)
            if value is not ABSENT and value is not None and value not in guard.allowed:
                yield self.finding(
                    guard.path, f"{guard.path} is {value!r}, not {guard.allowed[0]!r}: {guard.reason}",
                    "Serve the drafter with the program that it was made for.",
                )  # fmt: skip


class N511_UnknownFields(Rule):
    """Fields of the config whose meaning is not known here.

    What happens: they are kept in the receipt, so that the way back restores them; the destination does not get them.
    Fix: nothing, unless a field is one that an engine ought to get.
    """

    severity = Severity.NOTE

    def check(self, case: Case) -> Iterator[Finding]:
        unknown = sorted(case.reading.config.unknown)
        if unknown:
            yield self.finding(
                unknown[0],
                f"{', '.join(unknown)}: no meaning known here; kept in the receipt and not passed on.",
            )


class W512_MaxPositions(Rule):
    """The drafter's max_position_embeddings is below the verifier's.

    Why it matters: SGLang refuses a drafter with a shorter context unless told otherwise; other engines stop at it.
    How it happens: the length of the training sequences was written.
    Fix: raise it where the drafter's rope reaches as far: --assume max_position_embeddings=N.
    Reference: sgl-project/SpecForge#249, vllm-project/vllm#48894.
    """

    severity = Severity.WARNING

    def check(self, case: Case) -> Iterator[Finding]:
        mine, verifier = case.reading.fact("max_position_embeddings").value, case.reading.verifier
        longest = verifier.max_position_embeddings
        if isinstance(mine, int) and longest is not None and mine < longest:
            yield self.finding(
                "max_position_embeddings",
                f"max_position_embeddings is {mine}, the verifier's {longest}.",
                f"If the drafter's rope reaches as far, say --assume max_position_embeddings={longest}.",
            )
