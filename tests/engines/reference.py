"""The reference forward pass as a judge, where the speculators library has no such drafter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle3convert.checkpoint.source import open_checkpoint
from eagle3convert.drafter import Drafter
from eagle3convert.formats import load_format
from eagle3convert.reading import Reading
from eagle3convert.reference.cache import Packed
from eagle3convert.reference.forward import DraftModel
from eagle3convert.reference.interpretation import as_trained


def trained_logits(folder: Path, source_format: str, hidden: Tensor, input_ids: Tensor, **changes: Any) -> list[Tensor]:
    """The logits of three draft steps of a drafter as it was trained, or with some of its form changed.

    `tests/reference/test_forward.py` holds this forward pass against the library's logits.
    """
    with open_checkpoint(folder) as checkpoint:
        one = as_trained(Drafter(Reading(checkpoint, load_format(source_format))))
        model = DraftModel(replace(one.form, **changes), one.model().weights)
        aux = hidden.chunk(one.form.aux_count, dim=-1)
        return list(model.draft_rows(aux, input_ids, Packed(len(input_ids)), 3, "anchored"))
