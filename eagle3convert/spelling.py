"""TensorSpelling: the names of the canonical tensors in one format, for a number of layers and aux states."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from eagle3convert.canonical import COMPANION_SUFFIXES, VOCAB_TENSORS, concrete_table
from eagle3convert.patterns import Pattern
from eagle3convert.schema import FormatSchema, Spelling

_COMPANION = re.compile(rf"^(?P<module>.+)\.(?P<suffix>{'|'.join(COMPANION_SUFFIXES)})$")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_FC_NORM = re.compile(r"(?:^|\.)fc_norm\.(\d+)\.")


def layers_named(names: Iterable[str]) -> int:
    """How many decoder layers the names speak of; at least one, for the first may have a name without a number."""
    return _count_named(_LAYER, names, default=1)


def fc_norms_named(names: Iterable[str]) -> int:
    """How many aux states the names of the fc_norms speak of; three, the usual number, where there are none."""
    return _count_named(_FC_NORM, names, default=3)


def _count_named(numbered: re.Pattern[str], names: Iterable[str], default: int) -> int:
    """One more than the highest number in the names.

    There cannot be more layers or states than names, so a number beyond them is a stray one.
    """
    known = tuple(names)
    found = (int(hit[1]) for name in known if (hit := numbered.search(name)))
    return max((i + 1 for i in found if i < len(known)), default=default)


class TensorSpelling:
    """Both directions of a format's tensor names: `canonical` reads a name, `written` spells one."""

    def __init__(self, schema: FormatSchema, layers: int, aux: int) -> None:
        self.schema = schema
        self._rules = sorted(
            ((Pattern(canonical), spelling) for canonical, spelling in schema.spellings().items()),
            key=lambda rule: rule[0].weight,
            reverse=True,
        )
        self._read: dict[str, str] = {}
        names = (*(name for name, _ in concrete_table(layers, aux)), *VOCAB_TENSORS)
        for accepted in (False, True):  # a written name is never shadowed by another tensor's accepted one
            for name in names:
                rule, bound = self._rule(name)
                for pattern in rule.accepts if accepted else (rule.write,):
                    self._read.setdefault(Pattern(pattern).fill(bound), name)

    def _rule(self, canonical: str) -> tuple[Spelling, dict[str, str]]:
        for pattern, spelling in self._rules:
            bound = pattern.match(canonical)
            if bound is not None:
                return spelling, bound
        return Spelling.model_construct(write=canonical, accepts=(), since=None, accepts_since=None), {}

    def written(self, canonical: str) -> str:
        """The name under which this format writes a canonical tensor or a companion of one."""
        companion = _COMPANION.match(canonical)
        if companion:
            return self.written(f"{companion['module']}.weight").removesuffix("weight") + companion["suffix"]
        rule, bound = self._rule(canonical)
        return Pattern(rule.write).fill(bound)

    def since(self, canonical: str, spelled: str) -> str | None:
        """The first engine release that reads `spelled` for this tensor; None: all that the format covers."""
        rule, bound = self._rule(canonical)
        return rule.since if Pattern(rule.write).fill(bound) == spelled else rule.accepts_since

    def canonical(self, name: str) -> str | None:
        """The canonical name of a tensor of this format, wrapper prefixes stripped; None where it has none."""
        companion = _COMPANION.match(name)
        if companion:
            weight = self.canonical(f"{companion['module']}.weight")
            return weight and weight.removesuffix("weight") + companion["suffix"]
        found = self._read.get(name)
        if found is not None:
            return found
        for wrapper in self.schema.wrappers:
            if name.startswith(wrapper):
                return self.canonical(name.removeprefix(wrapper))
        return None


@dataclass(frozen=True)
class NameReading:
    """The names of a checkpoint under one format's spelling."""

    names: dict[str, str] = field(default_factory=dict)  # canonical -> as found
    unexpected: tuple[str, ...] = ()
    doubled: tuple[tuple[str, tuple[str, ...]], ...] = ()  # canonical, the names that all mean it


def read_names(spelling: TensorSpelling, names: Iterable[str]) -> NameReading:
    """Bind every found name to a canonical one; what stays over is `unexpected`."""
    bound: dict[str, list[str]] = {}
    unexpected = []
    for name in names:
        canonical = spelling.canonical(name)
        if canonical is None:
            unexpected.append(name)
        else:
            bound.setdefault(canonical, []).append(name)
    doubled = tuple((canonical, tuple(found)) for canonical, found in bound.items() if len(found) > 1)
    return NameReading({c: found[0] for c, found in bound.items()}, tuple(unexpected), doubled)
