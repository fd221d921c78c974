"""Doing again what may succeed a little later, a bounded number of times and never in silence for long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from eagle3convert.hub.errors import is_transient, status_of

T = TypeVar("T")

WAITS: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each further try."""

LONGEST_WAIT: Final = 120.0
"""The longest wait that a Hub may ask for; where it asks for more, the error is shown instead."""

pause = time.sleep


def asked_wait(error: BaseException) -> float | None:
    """The seconds that the Hub asks to wait, or None where it does not say."""
    headers = getattr(getattr(error, "response", None), "headers", None)
    if headers is None or status_of(error) not in (429, 503):
        return None
    for item in (headers.get("ratelimit") or "").split(";"):
        if item.strip().startswith("t=") and item.strip()[2:].isdigit():
            return float(item.strip()[2:]) + 1
    after = headers.get("retry-after") or ""
    return float(after) + 1 if after.isdigit() else None


def wait_before(error: BaseException, wait: float) -> bool:
    """Waits before another try, as long as planned or as the Hub asks; False where it asks for too long."""
    seconds = max(wait, asked_wait(error) or 0.0)
    if seconds > LONGEST_WAIT:
        return False
    pause(seconds)
    return True


def retried(action: Callable[[], T], waits: tuple[float, ...] = WAITS) -> T:
    """What ``action`` returns; it must be safe to do twice. The last error is raised as it is."""
    for wait in waits:
        try:
            return action()
        except Exception as error:
            if not is_transient(error) or not wait_before(error, wait):
                raise
    return action()
