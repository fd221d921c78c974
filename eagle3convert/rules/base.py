"""Rule: one check with a stable code; its docstring is the page that explains the code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from eagle3convert.destination import Destination
from eagle3convert.drafter import Drafter
from eagle3convert.findings import Finding, Severity
from eagle3convert.reading import Reading


@dataclass(frozen=True)
class Case:
    """What a rule looks at: a source drafter, and the destination where there is one."""

    drafter: Drafter
    destination: Destination | None = None

    @property
    def reading(self) -> Reading:
        return self.drafter.reading

    @property
    def source(self) -> str:
        """The source program's own name."""
        return self.reading.schema.product


class Rule:
    """A check; subclasses set `severity` and yield findings from `check`.  The code is the class name's first part."""

    severity: ClassVar[Severity] = Severity.ERROR
    needs_destination: ClassVar[bool] = False

    @classmethod
    def code(cls) -> str:
        return cls.__name__.split("_", 1)[0]

    def applies(self, case: Case) -> bool:
        return not self.needs_destination or case.destination is not None

    def check(self, case: Case) -> Iterator[Finding]:
        raise NotImplementedError

    def finding(self, subject: str, message: str, remedy: str = "", **data: Any) -> Finding:
        return Finding(self.code(), self.severity, subject, message, remedy, data)


def destination_of(case: Case) -> Destination:
    """The destination of a case, for rules that need one."""
    if case.destination is None:
        raise ValueError("this rule needs a destination")
    return case.destination
