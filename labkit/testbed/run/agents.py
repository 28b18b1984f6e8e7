"""The agents of all hosts at once: start, stop, status, use; and the names that runs have there.

A run's name on hosts is its record's id plus eight hex digits, so that equal ids do not collide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from labkit.core.errors import InputError, unknown
from labkit.testbed.agent.client import Agent
from labkit.testbed.errors import AgentError, AgentGone, AgentRefused, HostError
from labkit.testbed.install import python_of
from labkit.testbed.inventory import Machine
from labkit.testbed.ssh.command import RemoteStream
from labkit.testbed.ssh.fleet import Fleet, together
from labkit.testbed.ssh.outcomes import NO_PROGRAM, HostOutcome, Outcomes, failure

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 50
"""Most letters of a record's name that are kept."""
BRIDGE = "labkit.testbed.agent.bridge"
NO_AGENT = "no agent runs"
NOT_ALLOWED = 126
"""Exit code of a shell for a program that may not be run."""
COLUMNS: Final = ("host", "run", "task", "n_processes", "cpu_percent", "memory_mb", "gpu_memory_mb")


def called(run: str, names: Iterable[str]) -> list[str]:
    """Return the names on hosts that `run` means: that very name, or else the names of the record of that name.

    >>> called("fifo-0", ["fifo-0-5b1e22aa", "fifo-0-more", "fifo-01"])
    ['fifo-0-5b1e22aa']
    """
    known = list(names)
    of_record = re.compile(re.escape(run[:LONGEST]) + "-[0-9a-f]{8}")
    return [run] if run in known else [name for name in known if of_record.fullmatch(name)]


def no_such(run: str, names: Iterable[str]) -> InputError:
    """Return the error for a run that no host has."""
    known = sorted(set(names))
    return unknown("run", run, known) if known else InputError(f"no host has a run '{run}', nor any other.")


class NotDeployedError(HostError):
    """A host has no labkit."""


class ForeignFolderError(HostError):
    """labkit's folder on a host belongs to another user than that of the login."""


def bridge_of(machine: Machine, *, start: bool = True) -> list[str]:
    """Return the command that connects its input and output to a machine's agent, and starts one if none runs."""
    return [python_of(machine), "-m", BRIDGE, machine.folder, *([] if start else ["--no-start"])]


def agent_of(fleet: Fleet, machine: Machine, *, start: bool = True, renew: bool = True) -> Agent:
    """Return a connection to the agent of a machine; close it after use.

    Parameters
    ----------
    fleet : Fleet
        Connections.
    machine : Machine
        The host.
    start : bool
        Start an agent if none runs; False: raise AgentRefused with the kind "no_agent".
    renew : bool
        Replace an agent of another labkit than the deployed one; its tasks go on.

    Raises
    ------
    NotDeployedError, ForeignFolderError
        If labkit is not there, or belongs to another user.
    HostError, AgentError
        If the host or its agent cannot be reached.
    """
    dialled: list[RemoteStream] = []

    def dial() -> RemoteStream:
        dialled.append(fleet.stream(machine, bridge_of(machine, start=start)))
        return dialled[-1]

    try:
        return Agent.connect(dial, renew=renew)
    except AgentGone:
        exited = dialled[-1].exited if dialled else None
        if exited == NO_PROGRAM:
            raise NotDeployedError(f"labkit is not on host {machine.name} yet: fab install.") from None
        if exited == NOT_ALLOWED:
            raise ForeignFolderError(
                f"{machine.user} may not run {python_of(machine)} on host {machine.name}: "
                "the folder belongs to another user"
            ) from None
        raise


def each(
    fleet: Fleet,
    do: Callable[[Machine, Agent], HostOutcome],
    *,
    start: bool = True,
    renew: bool = True,
    needed: bool = True,
) -> Outcomes:
    """Call a function with the agent of every host at once.

    Parameters
    ----------
    fleet : Fleet
        The hosts.
    do : callable
        Takes a machine and the connection to its agent.
    start, renew : bool
        As in `agent_of`; with start=False a host without an agent is no failure.
    needed : bool
        Whether a host without labkit is a failure.
    """

    def one(machine: Machine) -> HostOutcome:
        try:
            with agent_of(fleet, machine, start=start, renew=renew) as agent:
                return do(machine, agent)
        except (HostError, AgentError) as error:
            return _as_outcome(machine.name, error, start=start, needed=needed)

    return Outcomes.of(together(one, fleet.inventory, give_up=fleet.close))


def _as_outcome(host: str, error: HostError | AgentError, *, start: bool, needed: bool) -> HostOutcome:
    if isinstance(error, NotDeployedError):
        return HostOutcome(host, not needed, "labkit is not there", "fab install" if needed else "")
    if isinstance(error, ForeignFolderError):
        return HostOutcome(
            host, False, str(error), "name a folder of your own in the inventory: ssh = { folder = ... }"
        )
    if isinstance(error, HostError):
        return failure(host, error)
    if isinstance(error, AgentRefused) and error.kind == "no_agent" and not start:
        return HostOutcome(host, True, NO_AGENT)
    if isinstance(error, AgentRefused) and error.kind == "busy":
        return HostOutcome(host, False, str(error), "fab stop --end-runs ends them too")
    return HostOutcome(host, False, str(error), "its log is agent.log in labkit's folder there")


def start(fleet: Fleet) -> Outcomes:
    """Start an agent on every host that has none; an agent of another labkit than the deployed one is replaced."""

    def describe(machine: Machine, agent: Agent) -> HostOutcome:
        hello = agent.hello
        return HostOutcome(
            machine.name, True, f"agent {hello.pid}, labkit {hello.labkit}, {hello.n_runs} runs",
            numbers={"pid": hello.pid, "runs": hello.n_runs},
        )  # fmt: skip

    return each(fleet, describe)


def stop(fleet: Fleet, *, runs: bool | str = False) -> Outcomes:
    """End runs, agents, or both.

    Parameters
    ----------
    fleet : Fleet
        The hosts.
    runs : bool or str
        False: end agents that have no running task. True: end all runs, and the agents. A name of a run, or of its
        record here: end that run alone.
    """

    def end(machine: Machine, agent: Agent) -> HostOutcome:
        going = [listed.run for listed in agent.list() if not listed.over]
        names = called(runs, going) if isinstance(runs, str) else going if runs else []
        if isinstance(runs, str) and len(names) > 1:
            return HostOutcome(machine.name, False, f"several runs are called {runs}", f"name one: {', '.join(names)}")
        n_tasks = sum(len(agent.stop(name)) for name in names)
        did = f"ended {len(names)} runs ({n_tasks} tasks)" if names else "no run to end" if runs else ""
        if not isinstance(runs, str):
            agent.shutdown()
            did = f"{did}, agent ended" if names else "agent ended"
        return HostOutcome(machine.name, True, did, numbers={"runs": len(names), "tasks": n_tasks})

    return each(fleet, end, start=False, renew=False)


def status(fleet: Fleet) -> Outcomes:
    """Return the tasks that run on every host, and the resources in use."""

    def look(machine: Machine, agent: Agent) -> HostOutcome:
        runs, measured = agent.list(), agent.measure()
        here = measured.host
        going = [listed for listed in runs if not listed.over]
        tasks = [f"{each.run}/{name}" for each in going for name, task in each.tasks.items() if task.phase != "ended"]
        used = (
            f"{here.cpu_percent / 100:.1f} cores, "
            f"{(here.memory_mb - here.free_memory_mb) / 1e3:.1f} of {here.memory_mb / 1e3:.0f} GB"
        )
        gpus = [bool(gpu.held_by) for gpu in agent.hello.gpus]
        used += f", {sum(gpus)} of {len(gpus)} GPUs" if gpus else ""
        did = f"agent {agent.hello.pid}; {used} in use; {len(tasks)} tasks" + (f": {', '.join(tasks)}" if tasks else "")
        numbers = {"runs": len(going), "tasks": len(tasks), **asdict(here)}
        return HostOutcome(machine.name, True, did, numbers=numbers)

    return each(fleet, look, start=False, renew=False)


def usage(fleet: Fleet) -> pd.DataFrame:
    """Return a row per task that runs on a host; hosts that do not answer have none.

    Returns
    -------
    DataFrame
        host, run, task, n_processes, cpu_percent (100: one core), memory_mb, gpu_memory_mb (0 where there is no GPU).
    """
    import pandas as pd

    rows: dict[str, list[dict[str, object]]] = {name: [] for name in fleet.inventory.names}

    def look(machine: Machine, agent: Agent) -> HostOutcome:
        for task in agent.measure().tasks:
            values = {**asdict(task), "host": machine.name, "memory_mb": task.rss_mb}
            rows[machine.name].append({name: values[name] for name in COLUMNS})
        return HostOutcome(machine.name, True, f"{len(rows[machine.name])} tasks")

    each(fleet, look, start=False, renew=False)
    return pd.DataFrame([row for tasks in rows.values() for row in tasks], columns=list(COLUMNS))
