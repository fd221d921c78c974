"""Signals that would end the program turned into exceptions, so that what was begun can be cleared away."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Final

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


class Terminated(SystemExit):
    """A signal asked the program to end; its exit code is 128 plus the signal's number, as in a shell."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


class Signals:
    """Handlers for SIGTERM and SIGHUP for as long as something is being written, in the main thread only.

    Only a signal that would end the program at once is handled: one that is ignored (nohup) or that the
    program has its own handler for stays as it is.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._held: list[int] = []

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.signal(number, _raise)

    def hold(self) -> None:
        """From now on the signals, Ctrl-C among them, are noted and not acted on."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)
        for number in self._before:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._held.append(number)

    def restore(self) -> None:
        """Puts the handlers back that were there before ``install``."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def deliver(self, done: str) -> None:
        """Acts on the first signal that was noted, as when it came; a KeyboardInterrupt says what is ``done``."""
        if self._held:
            number = self._held[0]
            self._held.clear()
            if number == signal.SIGINT:
                raise KeyboardInterrupt(done)
            raise Terminated(number)
