"""Logs of the tasks of a run, from all hosts at once, while it runs or afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from labkit.testbed.agent.client import Agent
from labkit.testbed.agent.errors import AgentError, AgentGone, AgentRefused
from labkit.testbed.agent.shapes import ListedRun
from labkit.testbed.inventory import Machine
from labkit.testbed.run.agents import each
from labkit.testbed.run.names import called, no_such
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.outcomes import HostOutcome, Outcomes

LOG = "log"
TAIL_BYTES = 1 << 20
OnLine = Callable[[str, str], None]


def logs(
    fleet: Fleet,
    *,
    on_line: OnLine,
    run: str = "",
    task: str = "",
    lines: int = 20,
    follow: bool = False,
) -> Outcomes:
    """Pass on lines that tasks have written, and lines that they write until they have ended.

    Parameters
    ----------
    fleet : Fleet
        The hosts.
    on_line : callable
        Takes (host, line); a line begins with the name of its task.
    run : str
        Name of the run; by default the latest of each host.
    task : str
        Name of the task; by default all.
    lines : int
        Number of last lines of each task to begin with.
    follow : bool
        Go on until no task of the run runs any more.

    Returns
    -------
    Outcomes
        One row per host: how each task ended, or that it runs.

    Raises
    ------
    InputError
        If every host answers, and none has such a run.
    """
    known: set[str] = set()

    def one(machine: Machine, agent: Agent) -> HostOutcome:
        there = agent.list()
        known.update(listed.run for listed in there)
        found = _run_of(there, run)
        if found is None:
            return HostOutcome(machine.name, True, f"no run {run}" if run else "no run")
        reader = _Reader(agent, found.run, lambda line: on_line(machine.name, line), lines=lines)
        wanted = [name for name in found.tasks if task in ("", name)]
        if follow:
            reader.follow(wanted, since=found.last_event, task=task)
        else:
            for name in wanted:
                reader.tail(name)
        return HostOutcome(machine.name, True, _ends(agent, found.run, task))

    outcomes = each(fleet, one, start=False, renew=False)
    if run and outcomes.ok and not called(run, known):
        raise no_such(run, known)
    return outcomes


def _run_of(there: Sequence[ListedRun], run: str) -> ListedRun | None:
    """Return the run of that name on a host; of several the one that is not over, else the one that began last."""
    meant = called(run, (listed.run for listed in there))
    found = [listed for listed in there if not run or listed.run in meant]
    return max(found, key=lambda listed: (not listed.over, _began_s(listed)), default=None)


def _began_s(listed: ListedRun) -> float:
    return max((task.started_s or 0.0 for task in listed.tasks.values()), default=0.0)


def _ends(agent: Agent, run: str, task: str) -> str:
    """Return how each task of a run ended, or that it runs."""
    (found,) = agent.list(run)
    ends = [f"{name} {each.how or each.phase}" for name, each in found.tasks.items() if task in ("", name)]
    return f"{run}: {', '.join(ends) or 'no task'}"


class _Reader:
    """The logs of one run on one host."""

    def __init__(self, agent: Agent, run: str, on_line: Callable[[str], None], *, lines: int) -> None:
        self._agent, self._run, self._on_line, self._lines = agent, run, on_line, lines
        self._threads: list[threading.Thread] = []

    def tail(self, task: str, *, whole: bool = False) -> int:
        """Pass on the last lines of a task; return the offset behind them. `whole`: complete lines only."""
        try:
            size = self._agent.read(self._run, task=task, file=LOG, n_bytes=0).size
            first = max(0, size - TAIL_BYTES)
            piece = self._agent.read(self._run, task=task, file=LOG, offset=first, n_bytes=size - first)
        except AgentRefused as error:
            if error.kind != "no_file":
                raise
            return 0
        rest = piece.data.rpartition(b"\n")[2] if whole else b""
        last = piece.data.removesuffix(rest).splitlines()[-self._lines :] if self._lines else []
        for line in last:
            self._on_line(f"{task}: {line.decode(errors='replace')}")
        return piece.offset + len(piece.data) - len(rest)

    def follow(self, tasks: list[str], *, since: int, task: str) -> None:
        """Pass on lines of tasks, also of tasks that start meanwhile, until none of them runs."""
        for name in tasks:
            self._follow(name)
        with self._agent.watch(self._run, since=since) as events:
            waker = threading.Thread(target=self._wait, args=(events.close,), daemon=True)
            waker.start()
            for event in events:
                if event.kind == "started" and event.task and task in ("", event.task):
                    self._follow(event.task)
        waker.join()

    def _wait(self, done: Callable[[], None]) -> None:
        """Wait until all followed tasks have ended, then stop waiting for new ones."""
        for thread in self._threads:  # new tasks are appended meanwhile
            thread.join()
        done()

    def _follow(self, task: str) -> None:
        thread = threading.Thread(target=self._carry, args=(task, self.tail(task, whole=True)), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _carry(self, task: str, offset: int) -> None:
        try:
            for line in self._agent.follow(self._run, task=task, file=LOG, offset=offset):
                self._on_line(f"{task}: {line}")
        except AgentGone:
            return  # the stream of events ends too, and reports it
        except AgentError as error:
            self._on_line(f"{task}: {error}")
