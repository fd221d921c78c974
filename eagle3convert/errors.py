"""The errors that eagle3convert raises on purpose, each a full sentence for the person who reads it."""

from __future__ import annotations

from typing import ClassVar


class Eagle3ConvertError(Exception):
    """The base of every error whose message is meant for the user: the thing, why, and the remedy.

    ``exit_code`` is what the command line returns when such an error ends it.
    """

    exit_code: ClassVar[int] = 1


class CheckpointError(Eagle3ConvertError):
    """A file of a checkpoint is missing, damaged or of a kind that is not read; nothing was written."""


class OutputError(Eagle3ConvertError):
    """The output cannot be written where it was asked for; what was there before is unchanged."""


class UsageError(Eagle3ConvertError):
    """The request itself makes no sense: an unknown name, two options that exclude each other."""

    exit_code: ClassVar[int] = 2


class FormatError(UsageError):
    """A format is unknown, or its file says something that no format file may say."""


class Refused(Eagle3ConvertError):
    """A conversion that would change what the drafter computes, or whose source is unsound; nothing was written.

    ``reasons`` are the findings of severity error, all of them.
    """

    def __init__(self, message: str, reasons: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


class VerificationFailed(Eagle3ConvertError):
    """What was written is not what the plan promised; the output was taken away again."""
