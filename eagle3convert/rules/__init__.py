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
def all_rules(examined: bool = True) -> tuple[type[Rule], ...]:
    """Every rule, by code; without `examined` those that can find something in a conversion."""
    from eagle3convert.rules import aux_capture, aux_layers, config, features, files, keys, verifier, vocab

    modules: list[ModuleType] = [keys, vocab, aux_layers, aux_capture, features, config, files, verifier]
    if examined:  # a conversion is spared their import
        from eagle3convert.rules import served, served_config, values

        modules += [served, served_config, values]
    found = {
        item
        for module in modules
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Rule) and _CODE.match(item.__name__)
    }
    return tuple(sorted(found, key=lambda rule: (rule.code()[1:], rule.code())))


def lint(case: Case) -> tuple[Finding, ...]:
    """What every rule that applies finds, errors first."""
    found = [
        finding for rule in all_rules(case.examined) if rule().skip(case) is None for finding in rule().check(case)
    ]
    return tuple(sorted(found, key=lambda finding: _ORDER[finding.severity]))


def skipped(case: Case) -> dict[str, str]:
    """The codes of the rules that could not be checked, with the reason."""
    reasons = ((rule.code(), rule().skip(case)) for rule in all_rules(case.examined))
    return {code: reason for code, reason in reasons if reason is not None}


__all__ = ["Case", "Rule", "all_rules", "lint", "skipped"]
