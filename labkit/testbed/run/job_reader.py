"""Events and result of one start of a job, read on its home host over as many connections as that takes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from typing import Final

from labkit.core.events import Cause
from labkit.elastic.process import causes
from labkit.testbed.agent.client import Agent
from labkit.testbed.agent.errors import AgentGone, AgentRefused, AgentTimeout
from labkit.testbed.errors import HostError
from labkit.testbed.run.agent_pool import AgentPool
from labkit.testbed.run.job_events import JobEvent, JobResult, event_of, result_of
from labkit.testbed.run.job_launcher import NOTHING_THERE
from labkit.testbed.run.orders import StatusOrder, message_of

EVENTS: Final = "job/events.jsonl"
LOG_TAIL: Final = 500
"""Bytes of the log that stand for the failure of a job without a result."""
START_S: Final = 120.0
"""Seconds that the process of a job may take until it accepts orders."""


class JobReader:
    """Reads what one start of a job writes.

    Parameters
    ----------
    hosts : AgentPool
        Agents of the run.
    task : str
        The job, as agents know it.
    home : str
        Host of the job's process.
    is_current : callable
        Whether this start of the job is the current one; reading ends once it is not.
    pause : callable
        Waits before the next attempt after a connection was lost.
    """

    def __init__(
        self,
        hosts: AgentPool,
        *,
        task: str,
        home: str,
        is_current: Callable[[], bool],
        pause: Callable[[], None],
    ) -> None:
        self._hosts, self._task, self.home = hosts, task, home
        self._is_current, self._pause = is_current, pause

    def follow(
        self,
        on_event: Callable[[JobEvent, bool], None],
        on_end: Callable[[JobResult], None],
        *,
        from_start: bool,
    ) -> None:
        """Pass on the events of the job until it has ended, then its result; nothing once it is not current any more.

        Parameters
        ----------
        on_event : callable
            Takes an event, and whether it was there before this call.
        on_end : callable
            Takes the result; called again if it loses a connection.
        from_start : bool
            Report all events as new; False: those that are in the file by now are old.

        Raises
        ------
        LabkitError, OSError, ValueError
            If the host sends what labkit does not write, or has no such job.
        """
        offset, known, caught_up = 0, 0, from_start
        while self._is_current():
            agent = None
            try:
                agent = self._hosts.agent(self.home)
                self._await_start(agent)
                if not caught_up:
                    known = agent.read(self._hosts.run, task=self._task, file=EVENTS, n_bytes=1).size
                lines = agent.follow(self._hosts.run, task=self._task, file=EVENTS, offset=offset)
                for line in takewhile(lambda _: self._is_current(), lines):
                    offset = lines.last
                    on_event(event_of(line), offset < known)
                    caught_up = caught_up or offset >= known
                if self._is_current():
                    on_end(self._result())
                return
            except (AgentGone, AgentTimeout, HostError):
                if agent is not None:
                    self._hosts.drop_connection(self.home, agent)
                self._pause()

    def blamed(self, error: Exception) -> str:
        """Return the host to blame for an error of `follow`: none if the task was ended from elsewhere."""
        return "" if isinstance(error, AgentRefused) and error.kind in NOTHING_THERE else self.home

    def _await_start(self, agent: Agent) -> None:
        """Wait until the job accepts orders, or has ended: then the events of an earlier start have another name."""
        with suppress(AgentRefused):
            agent.tell(self._hosts.run, task=self._task, message=message_of(StatusOrder()), timeout_s=START_S)

    def _result(self) -> JobResult:
        """Return the result of the job; if it wrote none, the end of its log is its failure."""
        agent, run = self._hosts.agent(self.home), self._hosts.run
        try:
            return result_of(agent.read(run, task=self._task, file="result.json").data)
        except AgentRefused as error:
            if error.kind != "no_file":
                raise
        size = agent.read(run, task=self._task, file="log", n_bytes=1).size
        log = agent.read(run, task=self._task, file="log", offset=max(size - LOG_TAIL, 0)).data.decode(errors="replace")
        why = f"it died: {log.strip()[-LOG_TAIL:] or 'its log is empty'}"
        return JobResult(failure=why, cause=causes.name_of(self._cause_of_exit(agent)))

    def _cause_of_exit(self, agent: Agent) -> Cause:
        """Return why the job's process ended without a result, as its agent saw it."""
        tasks = next((listed.tasks for listed in agent.list(self._hosts.run)), {})
        how = (tasks[self._task].how or "") if self._task in tasks else ""
        name = how.removeprefix("killed by ")
        if name == how:
            return Cause.ERROR if how.startswith("exited with") else Cause.UNKNOWN
        number = getattr(signal.Signals, name, None)
        return Cause.KILLED if number is None else causes.of_exit(-number)
