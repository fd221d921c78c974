"""Finding: one thing that is wrong, doubtful or worth knowing about a drafter, in a sentence with its remedy."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """What follows from a finding: an error refuses the conversion, a warning and a note do not."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Confidence(StrEnum):
    """How a rule knows: from what the files and the engine's source say, or by an inference from them."""

    FACT = "fact"
    INFERENCE = "inference"


@dataclass(frozen=True)
class Finding:
    """What one rule says: the thing first, then why it matters, then the remedy."""

    code: str
    severity: Severity
    subject: str  # the tensor, field or file that it is about
    message: str
    remedy: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    confidence: Confidence = Confidence.FACT

    def __str__(self) -> str:
        return f"{self.code} {self.severity}: {self.message}" + (f" {self.remedy}" if self.remedy else "")

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code, "severity": str(self.severity), "subject": self.subject, "message": self.message,
            "remedy": self.remedy, "confidence": str(self.confidence), "data": self.data,
        }  # fmt: skip
