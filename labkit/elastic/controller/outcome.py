"""The end of a job, as its controller decides it."""

from __future__ import annotations

from labkit.core.events import Cause
from labkit.elastic.controller.command_buffer import CommandBuffer
from labkit.elastic.controller.controller_state import ControllerState
from labkit.elastic.controller.scaling_requests import ScalingQueue
from labkit.elastic.protocol.commands import Over


class JobOutcome:
    """Ends the job, and knows how it ended.

    Attributes
    ----------
    failure : str
        Why the job failed; empty: it did not.
    cause : Cause
        Of the failure.
    """

    def __init__(self, job: ControllerState, out: CommandBuffer, requests: ScalingQueue) -> None:
        self._job, self._out, self._requests = job, out, requests
        self.failure, self.cause = "", Cause.UNKNOWN

    def end(self, failure: str, *, cause: Cause = Cause.ERROR) -> None:
        """End the job and all its members; an empty `failure`: it ends as it should."""
        if self._job.phase == "over":
            return
        self._job.phase, self.failure, self.cause = "over", failure, cause if failure else Cause.UNKNOWN
        self._requests.note_end()
        for member in self._job.members.values():
            member.leaving = True
            self._out.end(member.name)
        self._out.add(Over(failure, self.cause))
