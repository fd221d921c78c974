"""Rule: one check with a stable code; its docstring is the page that explains the code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from eagle3convert.destination import Destination
from eagle3convert.drafter import Drafter
from eagle3convert.findings import Confidence, Finding, Severity
from eagle3convert.reading import Reading
from eagle3convert.verifier_weights import NO_WEIGHTS, VerifierWeights

if TYPE_CHECKING:
    from eagle3convert.served import ServedReading
    from eagle3convert.values import ValueStats


@dataclass(frozen=True)
class Case:
    """What a rule looks at: a source drafter, and the destination where there is one."""

    drafter: Drafter
    destination: Destination | None = None
    served: ServedReading | None = None  # the folder as the destination's engine takes it without a conversion
    values: Mapping[str, ValueStats] | None = None  # of every float tensor, where the data were scanned
    weights_of_verifier: VerifierWeights = NO_WEIGHTS
    examined: bool = False  # a doctor asks, and not a conversion

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
    confidence: ClassVar[Confidence] = Confidence.FACT
    needs_destination: ClassVar[bool] = False

    @classmethod
    def code(cls) -> str:
        return cls.__name__.split("_", 1)[0]

    def skip(self, case: Case) -> str | None:
        """Why the rule cannot be checked here, or None."""
        return "no destination is named" if self.needs_destination and case.destination is None else None

    def check(self, case: Case) -> Iterator[Finding]:
        raise NotImplementedError

    def finding(
        self, subject: str, message: str, remedy: str = "", severity: Severity | None = None, **data: Any
    ) -> Finding:
        return Finding(self.code(), severity or self.severity, subject, message, remedy, data, self.confidence)


def destination_of(case: Case) -> Destination:
    """The destination of a case, for rules that need one."""
    if case.destination is None:
        raise ValueError("this rule needs a destination")
    return case.destination


def served_of(case: Case) -> ServedReading:
    """The folder as the engine takes it, for rules that need it."""
    if case.served is None:
        raise ValueError("this rule needs a folder as an engine takes it")
    return case.served


class ExaminedRule(Rule):
    """A rule about a folder as it stands, before any conversion; a conversion mends what it would find."""

    needs_destination = True

    def skip(self, case: Case) -> str | None:
        return super().skip(case) or (None if case.examined else "a conversion mends it")


class ServedRule(Rule):
    """A rule about a folder as an engine takes it without a conversion."""

    needs_destination = True

    def skip(self, case: Case) -> str | None:
        if case.served is None:
            return "no engine is named that reads this folder as it stands"
        return super().skip(case)
