"""The transforms of configs: between a format's config.json and canonical fields, and amendments of such fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from eagle3convert.fields import ConfigSpelling
from eagle3convert.nested import ABSENT, Change, patched
from eagle3convert.schema import FormatSchema
from eagle3convert.transforms import State, Step, Transform


@dataclass(frozen=True)
class MapConfig(Step):
    """A format's config.json to canonical fields ("decode"), or back ("encode").

    `patch` turns what `encode` writes into the config that was decoded, so that going back restores every field of it,
    also those that no canonical field holds.  `residue` holds canonical fields that the format has no place for
    (ABSENT: fields that it states and the drafter did not).
    """

    schema: FormatSchema
    decoder: str
    direction: Literal["decode", "encode"]
    patch: tuple[Change, ...] = ()
    residue: Mapping[str, Any] = field(default_factory=dict)

    reads = frozenset[str]()
    writes = frozenset({"fields", "aux"})

    def apply(self, state: State) -> State:
        spelling = ConfigSpelling(self.schema)
        if self.direction == "encode":
            return replace(state, config=patched(spelling.encode(state.config, self.decoder), list(self.patch)))
        fields = decoded_fields(spelling, state.config) | dict(self.residue)
        return replace(state, config={name: value for name, value in fields.items() if value is not ABSENT})

    def inverse(self) -> MapConfig:
        return replace(self, direction="encode" if self.direction == "decode" else "decode")

    def __str__(self) -> str:
        return f"config.json: {self.direction} {self.schema.name}"


def decoded_fields(spelling: ConfigSpelling, config: Mapping[str, Any]) -> dict[str, Any]:
    """The canonical fields that a config states; model_type is left out, for it follows from the kind of decoder."""
    stated = spelling.decode(config).stated
    fields = {name: s.value for name, s in stated.items() if name != "model_type"}
    if isinstance(fields.get("aux_layers"), list):
        fields["aux_layers"] = tuple(fields["aux_layers"])
    return fields


@dataclass(frozen=True)
class AmendConfig(Step):
    """Canonical fields that the source's config does not say, or says wrong: derived, assumed or corrected."""

    changes: tuple[tuple[str, Any, Any], ...]  # (field, before, after); ABSENT where it is not there

    reads = frozenset[str]()

    @property
    def writes(self) -> frozenset[str]:  # type: ignore[override]
        aux = any(name == "aux_layers" for name, _, _ in self.changes)
        return frozenset({"fields", "aux"} if aux else {"fields"})

    def apply(self, state: State) -> State:
        config = dict(state.config)
        for name, _, after in self.changes:
            if after is ABSENT:
                config.pop(name, None)
            else:
                config[name] = after
        return replace(state, config=config)

    def inverse(self) -> AmendConfig:
        return AmendConfig(tuple((name, after, before) for name, before, after in self.changes))

    def __str__(self) -> str:
        return "amend " + ", ".join(name for name, _, _ in self.changes)


@dataclass(frozen=True)
class Composite:
    """A path of transforms as one transform."""

    steps: tuple[Transform, ...]

    def apply(self, state: State) -> State:
        for step in self.steps:
            state = step.apply(state)
        return state

    def inverse(self) -> Composite:
        return Composite(tuple(step.inverse() for step in reversed(self.steps)))

    def simplified(self) -> Composite:
        """The same path in fewer steps: equal kinds merge or cancel wherever what lies between may be passed."""
        steps = list(self.steps)
        merged = True
        while merged:
            merged = _merge_once(steps)
        return Composite(tuple(steps))


def _merge_once(steps: list[Transform]) -> bool:
    for i, first in enumerate(steps):
        for j in range(i + 1, len(steps)):
            if type(steps[j]) is type(first):
                fewer = first.then(steps[j])
                if fewer is not None:
                    steps[j : j + 1] = list(fewer)
                    del steps[i]
                    return True
            if not _commute(first, steps[j]):
                break
    return False


def _commute(a: Transform, b: Transform) -> bool:
    return not (a.writes & (b.reads | b.writes)) and not (b.writes & a.reads)
