"""The pages of the codes: each is the docstring of its rule."""

from __future__ import annotations

import inspect
from typing import Any

from eagle3convert.errors import UsageError
from eagle3convert.rules import Rule, all_rules


def title(rule: type[Rule]) -> str:
    """The first paragraph of a rule's page, on one line."""
    return " ".join(inspect.cleandoc(rule.__doc__ or "").split("\n\n")[0].split())


def listing() -> dict[str, str]:
    """Every code with what it means."""
    return {rule.code(): title(rule) for rule in all_rules()}


def explanation(code: str) -> dict[str, Any]:
    """The page of one code; an unknown one is a UsageError."""
    rule = next((r for r in all_rules() if r.code() == code.upper()), None)
    if rule is None:
        raise UsageError(f"{code}: there is no such code. `eagle3convert explain` lists them.")
    page = inspect.cleandoc(rule.__doc__ or "")
    return {
        "code": rule.code(),
        "severity": str(rule.severity),
        "confidence": str(rule.confidence),
        "title": title(rule),
        "text": f"{rule.code()} ({rule.severity})\n\n{page}",
        "source": f"{rule.__module__}.{rule.__name__}",
    }
