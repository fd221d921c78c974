"""Subject: a drafter and a captured text that go together, and all that is needed to run the one on the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle3convert.drafter import Drafter
from eagle3convert.errors import CheckpointError, UsageError
from eagle3convert.reading import Reading
from eagle3convert.reference.as_served import read_layers
from eagle3convert.reference.bench import Variant
from eagle3convert.reference.interpretation import Interpretation, as_trained
from eagle3convert.reference.states import CapturedStates
from eagle3convert.reference.verifier_ends import VerifierEnds
from eagle3convert.reference.weights import Rows, Weights
from eagle3convert.vocab import from_targets, targets_of, to_targets


@dataclass(frozen=True)
class Subject:
    """What is measured: the drafter, its weights, the text, the right tokens and the readings of its vocab map.

    `declared` is the drafter as its config declares it and its format's reader takes it, without any repair: d2t by the
    format's own encoding.  `choices` [T] are the verifier's greedy tokens, None where nothing says them.
    """

    drafter: Drafter
    trained: Interpretation
    weights: Weights
    states: CapturedStates
    maps: dict[str, Tensor]
    declared: Variant
    choices: Tensor | None
    judged_by: str
    lent: Rows | None  # the verifier's embeddings, where they are known

    @property
    def where(self) -> str:
        return self.drafter.reading.checkpoint.label

    @property
    def targets(self) -> Tensor:
        """The target ids as a conversion writes them: by the encoding that the files decide."""
        return self.trained.target_ids(len(next(iter(self.maps.values()))))


def prepare(
    reading: Reading, states: CapturedStates, verifier: VerifierEnds | None, dtype: torch.dtype, device: str
) -> Subject:
    """Bring a drafter and captured states together; UsageError or CheckpointError where they do not fit."""
    reading = _with_layer_count(reading, states)
    drafter = Drafter(reading)
    trained = as_trained(drafter)
    _check_fit(trained, states, reading.checkpoint.label)
    head = None
    if trained.needs_head:
        if verifier is None:
            raise UsageError(
                f"{reading.checkpoint.label}: the drafter has no lm_head of its own. Give the verifier's folder, "
                f"weights and all, with --verifier."
            )
        head = verifier.lm_head()
    lent = _embeddings(trained, states, verifier)
    if trained.needs_embedding and lent is None:
        raise UsageError(
            f"{reading.checkpoint.label}: the drafter has no embed_tokens of its own, and the capture lacks the "
            f"embedding output (hidden_states.0). Give the verifier's folder, weights and all, with --verifier."
        )
    weights = trained.model(dtype, device, None, lent, head).weights
    maps = _maps(drafter, trained, head.shape[0] if head is not None else trained.form.draft_vocab_size)
    choices, judged_by = _choices(reading, states, verifier)
    declared = _declared(reading, trained, states, maps)
    return Subject(drafter, trained, weights, states, maps, declared, choices, judged_by, lent)


def nearest(aux: tuple[int, ...], held: Sequence[int]) -> tuple[int, ...]:
    """The list of aux layers with each that was not captured replaced by the nearest one that was."""
    free, chosen = list(held), list[int]()
    for k in aux:
        if not free:
            raise CheckpointError(f"The capture holds {len(held)} hidden states, and the drafter takes {len(aux)}.")
        chosen.append(min(free, key=lambda h, k=k: (abs(h - k), h)))  # type: ignore[misc]
        free.remove(chosen[-1])
    return tuple(chosen)


def _with_layer_count(reading: Reading, states: CapturedStates) -> Reading:
    """The reading with the verifier's layer count taken from a capture that holds every state from 0 on."""
    count = len(states.states)
    whole = states.numbered and set(states.states) == set(range(count)) and count > (reading.dims.A or 3) + 1
    if reading.verifier.num_hidden_layers is not None or not whole:
        return reading
    facts = replace(reading.statements.verifier, num_hidden_layers=count - 1)
    return Reading(reading.checkpoint, reading.schema, replace(reading.statements, verifier=facts))


def _check_fit(trained: Interpretation, states: CapturedStates, where: str) -> None:
    form, file = trained.form, states.files[0]
    remedy = "Capture the states of the verifier that the drafter was trained for."
    width = next(iter(states.states.values())).shape[1]
    if width != form.target_hidden_size:
        raise CheckpointError(
            f"{file}: the captured states are {width} wide, and fc of {where} takes states of "
            f"{form.target_hidden_size}. {remedy}"
        )
    largest = int(states.token_ids.max()) if states.length else 0
    if largest >= form.vocab_size:
        raise CheckpointError(
            f"{file}: token id {largest} is outside the vocabulary of {form.vocab_size} that {where} has. {remedy}"
        )


def _declared(reading: Reading, trained: Interpretation, states: CapturedStates, maps: dict[str, Tensor]) -> Variant:
    if not states.numbered:
        layers: tuple[int, ...] | None = tuple(states.states)
    else:
        layers = trained.aux_layers or read_layers(reading, reading.schema.releases[1])
    if layers is None:
        raise UsageError(
            f"{reading.checkpoint.label}: config.json does not state the aux layers, and the default list depends on "
            f"the verifier's layer count. Give the verifier's config.json with --verifier-config, or --aux-layers."
        )
    stated = reading.statements.d2t_encoding or reading.schema.vocab_map.encoding
    return Variant(trained.form, layers, stated if stated in maps else next(iter(maps)))


def _choices(reading: Reading, states: CapturedStates, verifier: VerifierEnds | None) -> tuple[Tensor | None, str]:
    """The right tokens, from the best source there is, and which that is."""
    if states.argmax is not None:
        return states.argmax, "the verifier's greedy choices in the capture"
    n = reading.verifier.num_hidden_layers
    last = not states.numbered or (n is not None and n in states.states)
    if verifier is not None and last and states.output is not None:
        return verifier.choices(states.output, states.output_normed), "the verifier's head on its last states"
    return None, "the text's next tokens"


def _maps(drafter: Drafter, trained: Interpretation, size: int) -> dict[str, Tensor]:
    """Every reading of the vocab map by its name, each [draft vocabulary] of target ids."""
    vocab = drafter.reading.vocab
    values, mask = vocab.values, vocab.mask
    found: dict[str, tuple[int, ...]] = {}
    if values is not None:
        found = {"offset": tuple(to_targets(values, "offset")), "absolute": tuple(values)}
        less = tuple(from_targets(values, "offset"))
        if min(less, default=-1) >= 0 and len(set(less)) == len(less):
            found["offset added twice"] = less
    if mask is not None and sum(mask) == size and tuple(targets_of(mask)) not in found.values():
        found["t2d"] = tuple(targets_of(mask))
    if not found:
        found["none"] = trained.targets or tuple(range(size))
    return {name: replace(trained, targets=targets).target_ids(size) for name, targets in found.items()}


def _embeddings(trained: Interpretation, states: CapturedStates, verifier: VerifierEnds | None) -> Rows | None:
    """The verifier's embeddings, from its folder or from the captured hidden_states 0; None where neither is there."""
    if verifier is not None:
        return verifier.embed
    table = states.states.get(0) if states.numbered else None
    if table is None or trained.form.hidden_size != trained.form.target_hidden_size:
        return None
    captured = table.float()
    place = {token: i for i, token in enumerate(states.token_ids.tolist())}

    def rows(ids: Tensor) -> Tensor:
        at = torch.tensor([place.get(i, -1) for i in ids.tolist()])
        return torch.where((at >= 0)[:, None], captured[at.clamp(min=0)], torch.zeros(()))

    return rows
