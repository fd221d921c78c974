"""Pattern: tensor-name patterns whose wildcards both sides of a spelling must bind alike.

`{i}` is a layer number, `{i>=1}` one of a later layer, `{j}` another number, and a trailing `*` the rest of the name.
"""

from __future__ import annotations

import re
from functools import cached_property

_WILDCARD = re.compile(r"\{([a-z])(>=1)?\}|\*$")


class Pattern:
    """A tensor-name pattern: `match` binds its wildcards, `fill` is the inverse."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def wildcards(self) -> frozenset[str]:
        return frozenset(found[1] or "*" for found in _WILDCARD.finditer(self.text))

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        pieces, at = [], 0
        for found in _WILDCARD.finditer(self.text):
            pieces.append(re.escape(self.text[at : found.start()]))
            number = r"[1-9]\d*" if found[2] else r"\d+"
            pieces.append(f"(?P<{found[1]}>{number})" if found[1] else "(?P<rest>.+)")
            at = found.end()
        return re.compile("".join(pieces) + re.escape(self.text[at:]))

    @property
    def literal(self) -> bool:
        return not self.wildcards

    @property
    def weight(self) -> tuple[bool, bool, int]:
        """Sort key: a literal beats a number, a number beats `*`, a longer text beats a shorter one."""
        return (self.literal, "*" not in self.wildcards, len(self.text))

    def match(self, name: str) -> dict[str, str] | None:
        if self.literal:
            return {} if name == self.text else None
        found = self._regex.fullmatch(name)
        return found.groupdict() if found else None

    def fill(self, bound: dict[str, str]) -> str:
        return _WILDCARD.sub(lambda found: bound[found[1] or "rest"], self.text)
