"""Errors of a job: it is not done, does not answer, is over, or has failed.

JobError
├── NotDoneError    it is not over within the time given; it goes on
├── NoAnswerError   its controller is alive and does not answer; it goes on
└── OverError       it is over: there is nothing left to change
ChangedError        user's code has changed what all workers must have alike
"""

from __future__ import annotations

from pathlib import Path

from labkit.core.errors import InputError, LabkitError
from labkit.core.events import Cause


class JobError(LabkitError):
    """A job ended with an error.

    Parameters
    ----------
    message : str
        What happened, and what to do, in one line.
    cause : Cause
        Cause of the failure; UNKNOWN if it is not known.

    Attributes
    ----------
    reason : str
        The message without the log.
    log_file : Path, optional
        Log of the member that failed, which is kept.
    log : str
        Last lines of it, which follow the reason in the error's text.
    """

    def __init__(
        self, message: str = "", *, cause: Cause = Cause.UNKNOWN, log_file: Path | None = None, log: str = ""
    ) -> None:
        super().__init__(f"{message}\n{log_file} ends with:\n{log}" if log else message)
        self.reason, self.cause, self.log_file, self.log = message, cause, log_file, log


class NotDoneError(JobError):
    """A job is not over within the given time; it goes on."""


class NoAnswerError(JobError):
    """The controller of a job does not answer at present; training goes on without it."""


class OverError(JobError):
    """A request to a job that is over, which only a running job can carry out."""


class ChangedError(InputError):
    """The user's code has changed what all workers must have alike: a buffer, a parameter, or the number of samples."""
