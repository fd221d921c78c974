"""Engine releases and the spans that facts hold for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from packaging.version import InvalidVersion, Version

from eagle3convert.errors import UsageError


@cache
def version(text: str) -> Version:
    """A release number as a comparable version; anything else is a UsageError."""
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(f"{text!r} is no release number; one looks like 0.5.23.") from None


def holds(release: str, since: str | None = None, until: str | None = None) -> bool:
    """Whether a fact with these bounds (both inclusive, None = open) holds in a release."""
    return (since is None or version(release) >= version(since)) and (
        until is None or version(release) <= version(until)
    )


def newest(releases: Iterable[str | None]) -> str | None:
    """The highest of some releases; None where there is none."""
    return max((r for r in releases if r is not None), key=version, default=None)


def lowest_serving(oldest: str, last: str, bounds: Iterable[str | None], serves: Callable[[str], bool]) -> str | None:
    """The lowest release from which on every later one serves, or None where the last one does not.

    Facts change only at `bounds`, so only these releases (and the ends of the span) need asking.
    """
    steps = {r for r in bounds if r is not None and holds(r, oldest, last)} | {oldest, last}
    found = None
    for release in sorted(steps, key=version, reverse=True):
        if not serves(release):
            break
        found = release
    return found
