"""What a job tells its user when it is not done, does not answer, or has failed.

JobError
├── NotDoneError    it is not over within the time given; it goes on
├── NoAnswerError   its controller is alive and does not answer; it goes on
└── OverError       it is over: there is nothing left to change
"""

from __future__ import annotations

from labkit.core.errors import LabkitError
from labkit.core.events import Cause


class JobError(LabkitError):
    """A job ended with an error.

    Parameters
    ----------
    message : str
        What happened, and what to do.
    cause : Cause
        What lies behind it, as far as anybody knows.
    """

    def __init__(self, message: str = "", *, cause: Cause = Cause.UNKNOWN) -> None:
        super().__init__(message)
        self.cause = cause


class NotDoneError(JobError):
    """A job is not over within the time given; it goes on as if nobody had waited."""


class NoAnswerError(JobError):
    """The controller of a job does not answer for now; training goes on without it."""


class OverError(JobError):
    """A job is over, and something was asked of it that only a running one can do."""
