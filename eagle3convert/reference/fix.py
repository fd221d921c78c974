"""Fix: how a drafter is converted under the reading that drafts best."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle3convert.canonical import FEATURES
from eagle3convert.formats import all_formats, load_format
from eagle3convert.nested import put
from eagle3convert.planning import make_plan
from eagle3convert.reading import Reading
from eagle3convert.reference.bench import Variant
from eagle3convert.reference.readings import Difference
from eagle3convert.schema import FormatSchema


@dataclass(frozen=True)
class Fix:
    """What to change by hand first, and the command that converts then; no command where no option can say it."""

    command: str | None = None
    edits: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()  # why the command's conversion is still refused

    def as_json(self) -> dict[str, Any]:
        return {"command": self.command, "edits": list(self.edits), "refused": list(self.refused)}

    def lines(self) -> list[str]:
        lines = [f"first: {edit}" for edit in self.edits]
        if self.command:
            lines.append(f"convert it so: {self.command}")
        return [*lines, *(f"  which is refused still: {reason}" for reason in self.refused)]


def fix_for(reading: Reading, variant: Variant, found: Sequence[Difference], for_format: str | None) -> Fix:
    """The command for a reading that differs from the declared one in these respects.

    What the config states already cannot be overridden by an option, so it has to be corrected there; the plan is made
    with the correction, so that the command is known to be accepted.
    """
    said = {d.subject for d in found}
    options: list[str] = []
    edits: list[str] = []
    statements, config = reading.statements, copy.deepcopy(reading.checkpoint.config)
    assume = dict(statements.assume)
    if "aux_layers" in said:
        options += ["--aux-layers", ",".join(map(str, variant.aux))]
        statements = replace(statements, aux_layers=variant.aux)
        if list(variant.aux) != sorted(variant.aux):
            options += ["--assume", "fc_order=as_listed"]
            assume["fc_order"] = "as_listed"
    if "d2t" in said:
        if variant.vocab in ("offset", "absolute"):
            options += ["--d2t-encoding", variant.vocab]
            statements = replace(statements, d2t_encoding=variant.vocab)  # type: ignore[arg-type]
        else:
            edits.append(_MAP_EDITS[variant.vocab])
    for name in sorted(said & FEATURES.keys()):
        value = bool(getattr(variant.form, name))
        stated = reading.config.stated.get(name)
        if stated is not None:
            edits.append(f"set {stated.path} to {str(value).lower()} in config.json")
            put(config, stated.path, value)
        else:
            options += ["--assume", f"{name}={str(value).lower()}"]
            assume[name] = value
    if "norms_swapped" in said:
        edits.append(
            "swap the tensors hidden_norm.weight and input_layernorm.weight of the first layer in the weights file"
        )
    if "fc" in said:
        edits.append("train fc: no engine runs an EAGLE-3 drafter past its fc on purpose")
        return Fix(None, tuple(edits))
    checkpoint = replace(reading.checkpoint, config=config)
    statements = replace(statements, assume=assume)
    plans = [
        (schema, make_plan(checkpoint, reading.schema, schema, statements))
        for schema in _candidates(reading, for_format)
    ]
    destination, plan = next(((s, p) for s, p in plans if not p.errors), plans[0])
    words = ["eagle3convert", reading.schema.name, destination.name, reading.checkpoint.label, "OUT", *options]
    by_hand = said & {"norms_swapped"} or ("d2t" in said and variant.vocab in _MAP_EDITS)
    return Fix(shlex.join(words), tuple(edits), () if by_hand else tuple(f.message for f in plan.errors))


_MAP_EDITS = {
    "t2d": "leave d2t out of the weights file, so that it is derived from t2d",
    "offset added twice": "subtract the draft id twice from each entry of d2t (d2t[i] - 2 * i is the offset)",
    "none": "leave d2t out of the weights file",
}


def _candidates(reading: Reading, for_format: str | None) -> list[FormatSchema]:
    """The destinations to choose from: the one asked for, else the engines', the source's own first."""
    if for_format is not None:
        return [load_format(for_format)]
    engines = [schema for schema in all_formats() if schema.role == "engine"]
    return sorted(engines, key=lambda schema: schema.name != reading.schema.name)
