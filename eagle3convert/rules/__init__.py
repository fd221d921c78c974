"""The rules: one class per code, each a check of a drafter on its own or against a destination."""

from __future__ import annotations

import re
from functools import cache
from types import ModuleType

from eagle3convert.findings import Finding, Severity
from eagle3convert.rules.base import Case, Rule

_CODE = re.compile(r"[EWN]\d{3}_")  # the classes that are rules, and not what they share
_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


@cache
def all_rules() -> tuple[type[Rule], ...]:
    """Every rule, by code."""
    from eagle3convert.rules import aux_layers, config, features, files, keys, served, values, verifier, vocab

    modules: tuple[ModuleType, ...] = (keys, vocab, aux_layers, features, config, files, values, verifier, served)
    found = [
        item
        for module in modules
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Rule) and _CODE.match(item.__name__)
    ]
    return tuple(sorted(found, key=lambda rule: rule.code()[1:]))


def lint(case: Case) -> tuple[Finding, ...]:
    """What every rule that applies finds, errors first."""
    found = [finding for rule in all_rules() if rule().skip(case) is None for finding in rule().check(case)]
    return tuple(sorted(found, key=lambda finding: _ORDER[finding.severity]))


def skipped(case: Case) -> dict[str, str]:
    """The codes of the rules that could not be checked, with the reason."""
    reasons = ((rule.code(), rule().skip(case)) for rule in all_rules())
    return {code: reason for code, reason in reasons if reason is not None}


__all__ = ["Case", "Rule", "all_rules", "lint", "skipped"]
