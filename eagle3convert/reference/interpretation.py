"""Interpretation: one drafter as one reader takes it, ready to be run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3convert.canonical import COMPANION_SUFFIXES, FEATURES, concrete_table
from eagle3convert.checkpoint.stored import StoredTensor
from eagle3convert.drafter import Drafter
from eagle3convert.errors import CheckpointError
from eagle3convert.reading import Reading
from eagle3convert.reference.form import Form, form_of
from eagle3convert.reference.forward import DraftModel
from eagle3convert.reference.weights import Rows, Weights
from eagle3convert.schema import FormatSchema
from eagle3convert.transforms import Row
from eagle3convert.vocab import Encoding, to_targets

NEVER_READ = frozenset({"d2t", "t2d"})


@dataclass(frozen=True)
class Interpretation:
    """What a reader computes with a checkpoint: form, states fed, target ids, and the tensors that it loads.

    `aux_layers` are hidden_states indices in the order of fc's blocks, None where nobody can know them.  `targets`
    are the target ids of the draft ids; an id outside the verifier's vocabulary stays as it is and is never right.
    `missing` are canonical tensors that the reader wants and does not find, `dropped` names that it does not load.
    """

    reader: str
    form: Form
    aux_layers: tuple[int, ...] | None
    targets: tuple[int, ...] | None
    rows: Mapping[str, Row]
    stored: Mapping[str, StoredTensor]
    missing: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def needs_embedding(self) -> bool:
        return "embed_tokens.weight" not in self.rows

    @property
    def needs_head(self) -> bool:
        """The drafter drafts with the verifier's lm_head."""
        return "lm_head.weight" not in self.rows and "lm_head.weight" not in self.missing

    def model(
        self,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        rounded: Mapping[str, str] | None = None,
        lent: Rows | None = None,
        head: Tensor | None = None,
    ) -> DraftModel:
        """The model of this interpretation; weights are read when they are first needed.

        `lent` and `head` are the verifier's embeddings and lm_head for a drafter without its own.
        """
        weights = Weights(self.rows, self.stored, dtype, device, rounded, lent, head if self.needs_head else None)
        return DraftModel(self.form, weights)

    def target_ids(self, size: int) -> Tensor:
        """The target ids [size] of the draft ids; the draft ids themselves where there is no map."""
        if self.targets is None:
            return torch.arange(size)
        found = torch.tensor(self.targets, dtype=torch.int64)
        return torch.cat([found, torch.full((max(0, size - len(found)),), -1)])[:size]


def as_trained(drafter: Drafter) -> Interpretation:
    """The drafter as its source says that it was trained; the vocab map as the files decide it."""
    form = form_of(drafter)
    rows, missing, dropped = loaded_rows(drafter, form)
    targets = drafter.targets or raw_targets(drafter.reading, drafter.reading.schema.vocab_map.encoding)
    return Interpretation(
        drafter.reading.schema.product, form, drafter.reading.aux.ascending, targets, rows,
        drafter.reading.checkpoint.tensors, missing, dropped, _guesses(form),
    )  # fmt: skip


def _guesses(form: Form) -> tuple[str, ...]:
    said = {True: "true", False: "false"}
    return tuple(
        f"{name} is stated nowhere; {said.get(bool(FEATURES[name].plain))} is taken for it." for name in form.guessed
    )


def loaded_rows(drafter: Drafter, form: Form) -> tuple[dict[str, Row], tuple[str, ...], tuple[str, ...]]:
    """(the tensors that this form runs on, those it wants and are not there, names that are never loaded)."""
    wanted = wanted_tensors(drafter, form)
    state = drafter.canonical_state.tensors
    refuse_quantised(drafter, state)
    bound = drafter.reading.names.names  # a name that this reader does not read may look like a canonical one
    rows = {name: row for name, row in state.items() if name in wanted and name in bound}
    optional = {name for name, spec in drafter.table.items() if spec.optional}
    missing = tuple(name for name in wanted if name not in rows and name not in optional)
    dropped = tuple(str(row.origin) for name, row in state.items() if name not in rows and name not in NEVER_READ)
    return rows, missing, dropped


def wanted_tensors(drafter: Drafter, form: Form) -> tuple[str, ...]:
    """The canonical tensors that a drafter of this form has."""
    names = []
    for name, spec in concrete_table(form.layers, form.aux_count):
        if spec.feature and not getattr(form, spec.feature):
            continue
        if name == "lm_head.weight" and drafter.reading.feature("shared_lm_head").value:
            continue
        names.append(name)
    return tuple(names)


def refuse_quantised(drafter: Drafter, rows: Mapping[str, Row]) -> None:
    for name, row in rows.items():
        if name.rsplit(".", 1)[-1] in COMPANION_SUFFIXES:
            raise CheckpointError(
                f"{drafter.reading.checkpoint.label}: tensor '{row.origin}' belongs to a quantised weight, and the "
                f"reference forward pass computes with plain floats only. Use the drafter before it was quantised."
            )


def raw_targets(reading: Reading, encoding: Encoding) -> tuple[int, ...] | None:
    """The target ids that d2t gives under an encoding, whatever they are worth; None where there is no d2t."""
    values = reading.vocab.values
    return tuple(to_targets(values, encoding)) if values is not None else None


def schema_targets(reading: Reading, schema: FormatSchema) -> tuple[int, ...] | None:
    """The target ids that a reader of this format takes, which checks nothing."""
    stated = reading.statements.d2t_encoding
    return raw_targets(reading, stated or schema.vocab_map.encoding)
