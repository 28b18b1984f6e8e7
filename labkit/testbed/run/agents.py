"""The agents of all hosts: start, stop, status, use; and those of a run, which one process leads and watches.

A run's name on hosts is its record's id plus eight hex digits, so that equal ids do not collide.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from labkit.core.errors import InputError, LabkitError, TakenOverError, unknown
from labkit.testbed.agent import fences
from labkit.testbed.agent.client import Agent
from labkit.testbed.agent.fences import MOST_TEXT
from labkit.testbed.agent.messages import Leader, YardstickReading, readable
from labkit.testbed.errors import AgentError, AgentGone, AgentRefused, AgentTimeout, HostError
from labkit.testbed.install import install, python_of
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
LOOK_S: Final = 0.25
GONE_S: Final = 10.0
"""Seconds in which a process that is gone must be seen to be: its connections end, or nothing more comes over them."""
BEAT_S: Final = 1.0
"""Seconds between two heartbeats."""
PATIENCE_S: Final = 6.0
"""Seconds without contact after which a host is lost."""
SLEPT_S: Final = 3.0
"""Delay of a heartbeat from which this process is taken to have been stopped or suspended."""
SAVING_S: Final = 15.0
"""Seconds that jobs get to save their state when the run ends."""
Changed = Callable[[str, bool, str], None]
OnReading = Callable[[str, YardstickReading], None]
"""Takes (host, reading), in some thread."""


def called(run: str, names: Iterable[str]) -> list[str]:
    """Return the names on hosts that `run` means: that very name, or else the names of the record of that name.

    >>> called("fifo-0", ["fifo-0-5b1e22aa", "fifo-0-more", "fifo-01"])
    ['fifo-0-5b1e22aa']
    """
    known = list(names)
    of_record = re.compile(re.escape(run[:LONGEST]) + "-[0-9a-f]{8}")
    return [run] if run in known else [name for name in known if of_record.fullmatch(name)]


def unknown_run(run: str, names: Iterable[str]) -> InputError:
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

    Raise NotDeployedError, ForeignFolderError if labkit is not there, or belongs to another user; HostError, AgentError
    if the host or its agent cannot be reached. `start`: start an agent if none runs; False: raise AgentRefused with the
    kind "no_agent". `renew`: replace an agent of another labkit than the deployed one; its tasks go on.
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
    do: Callable[[Machine, Agent], HostOutcome],  # takes a machine and the connection to its agent
    *,
    start: bool = True,
    renew: bool = True,
    needed: bool = True,  # whether a host without labkit is a failure
) -> Outcomes:
    """Call a function with the agent of every host at once.

    `start` and `renew`: as in `agent_of`; with start=False a host without an agent is no failure.
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

    `runs`: False: end agents that have no running task. True: end all runs, and the agents. A name of a run, or of its
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
    table = pd.DataFrame([row for tasks in rows.values() for row in tasks], columns=list(COLUMNS))
    return table.astype({name: "int64" if name == "n_processes" else "float64" for name in COLUMNS[3:]})


class RunFence:
    """The right to drive a run, once `take` has returned, until another process takes it.

    Parameters
    ----------
    name : str
        The run's first name on the hosts, which copies of its folder have too.
    run : str
        Its id here, for messages.
    after : int
        The generation that last drove it from this folder; 0: none.
    take_over : bool
        Take it from a process that drives it now.
    """

    def __init__(self, name: str, *, run: str, after: int = 0, take_over: bool = False) -> None:
        # `generation`: of this process; 0: it does not drive the run yet; `taken_by`: which process has taken it over;
        # empty: none
        self.name, self.run, self.generation, self.taken_by = name, run, 0, ""
        self._after, self._take_over, self._token = after, take_over, secrets.token_hex(8)
        self._by = f"process {os.getpid()} on {socket.gethostname()}"

    def take(self, agents: Mapping[str, Agent]) -> None:
        """Lead the agents that can be reached: first one of them alone, which decides between two that try at once.

        Raise InputError if another process drives the run: which one; TakenOverError if one took it meanwhile.
        """
        leaders = {host: agent.leader(self.name) for host, agent in agents.items()}
        if not self._take_over:
            self._refuse_living(agents, leaders)
        self.generation = 1 + max([self._after, *(led.generation for led in leaders.values())])
        for _, agent in sorted(agents.items()):
            self.lead(agent)

    def lead(self, agent: Agent) -> None:
        """Lead one agent, if this process drives the run already; TakenOverError if another process does."""
        if not self.generation:
            return
        agent.on_fenced = self.lost
        try:
            agent.lead(fences.Fence(self.name, self.generation, self._token, self._by))
        except AgentRefused as error:
            if error.kind == fences.FENCED:
                raise TakenOverError(self.run, str(error)) from None
            raise

    def lost(self, by: str) -> None:
        """Note which process drives the run now."""
        self.taken_by = self.taken_by or by

    def refuse_lost(self) -> None:
        """Raise if another process drives the run now; TakenOverError: which one."""
        if self.taken_by:
            raise TakenOverError(self.run, self.taken_by)

    def _refuse_living(self, agents: Mapping[str, Agent], leaders: Mapping[str, Leader]) -> None:
        """Raise if the process that led last still does: an order of it came just now, or its connections stay open."""
        looked, still = threading.Event(), {host: led for host, led in leaders.items() if led.there}
        for _ in range(round(GONE_S / LOOK_S)):
            if not still:
                return
            looked.wait(LOOK_S)
            now = {host: agents[host].leader(self.name) for host in still}
            if any(led.n_orders > still[host].n_orders for host, led in now.items()):
                break
            still = {host: led for host, led in now.items() if led.there}
        if still:
            by = readable(next(iter(still.values())).by)[:MOST_TEXT]
            raise InputError(
                f"run '{self.run}' is driven by {by}, from another copy of its folder; stop that process, or take the "
                "run from it: --take-over (take_over=True)."
            )


class AgentPool:
    """The agents of a testbed, for one run."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        run: str,  # run whose lease is renewed while hosts are watched
        # called with (host, True, "") when a host returns, and with (host, False, why) when it is lost, in some thread;
        # a host that was restarted is lost and returns
        changed: Changed = lambda _host, _up, _why: None,
        lease_s: float = 600.0,
        fence: RunFence | None = None,  # the right to drive the run, which is taken once all agents are connected
        on_reading: OnReading = lambda _host, _reading: None,  # takes each reading of the yardstick of a host once
    ) -> None:
        self._on_reading = on_reading
        self._heard_s: dict[str, float] = {}
        """Up to when, on the clock of each host, readings are known."""
        self.fleet, self.run, self.lease_s, self.fence = fleet, run, lease_s, fence
        self._changed = changed
        self._agents: dict[str, Agent] = {}
        self._boots: dict[str, str] = {}
        self._locks = {machine.name: threading.Lock() for machine in fleet.inventory}
        self.up = dict.fromkeys(self._locks, True)
        self.absent: dict[str, str] = {}
        """Hosts that could not be reached at first, and why."""
        self._beat_s: dict[str, float] = {}
        self._over, self._closed = threading.Event(), False
        self._watchers: list[threading.Thread] = []

    def get_ready(self, *, some: bool = False) -> None:
        """Deploy this labkit to all hosts, and connect to their agents; nothing is started unless all can be reached.

        Raise InputError if a host, or with `some` every host, cannot be used: which, and why. `some`: start with the
        hosts that can be reached; the others are not `up` until they can.
        """
        failed = {row.host: row.why for row in self.fleet.connect() if not row.ok}
        if not failed and not self.fleet.here:
            failed = {row.host: row.did for row in install(self.fleet).rows if not row.ok}
        if not failed or some:
            failed |= self.connect(but=failed)
        if self.fence is not None and self._agents and (some or not failed):
            self.fence.take(dict(self._agents))
        if some and 0 < len(failed) < len(self._locks):
            self.up |= dict.fromkeys(failed, False)
            self.absent = failed
        elif failed:
            reasons = "; ".join(f"{host}: {why}" for host, why in failed.items())
            raise InputError(
                f"{len(failed)} of {len(self._locks)} hosts cannot be used: {reasons} (labkit doctor --testbed)"
            )

    def connect(self, *, but: Collection[str] = ()) -> dict[str, str]:
        """Connect to all agents, and start those that do not run; return why some could not be reached."""
        failed: dict[str, str] = {}

        def one(name: str) -> None:
            try:
                self.agent(name)
            except (AgentError, HostError) as error:
                failed[name] = str(error)

        threads = [threading.Thread(target=one, args=(name,)) for name in self._locks if name not in but]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failed

    def watch(self) -> None:
        """Watch all hosts from now on, until `close`."""
        for name in self._locks:
            thread = threading.Thread(target=self._watch, args=(name,), name=f"host {name}", daemon=True)
            self._watchers.append(thread)
            thread.start()

    def agent(self, host: str) -> Agent:
        """Return the agent of a host, connected; AgentError, HostError if it cannot be reached."""
        with self._locks[host]:
            agent = self._agents.get(host)
            if agent is None and self._closed:
                raise AgentGone("the run is over here")
            if agent is None:
                agent = agent_of(self.fleet, self.fleet.inventory[host])
                self._lead(agent)
                self._agents[host] = agent
                self._compare(host, agent.hello.boot)
            return agent

    def _lead(self, agent: Agent) -> None:
        """Lead an agent that is connected anew; it may know that another process drives the run by now."""
        if self.fence is None:
            return
        try:
            self.fence.lead(agent)
        except BaseException as error:
            if isinstance(error, TakenOverError):
                self.fence.lost(error.by)
            agent.close()
            raise

    def _compare(self, host: str, boot: str) -> None:
        """Report a host as lost and returned if its boot id has changed: its processes are gone."""
        before = self._boots.get(host, boot)
        self._boots[host] = boot
        if before != boot and self.up[host]:
            self._changed(host, False, "it was restarted")
            self._changed(host, True, "")

    def drop_connection(self, host: str, agent: Agent) -> None:
        """Close a connection that broke; the next call of `agent` makes a new one."""
        with self._locks[host]:
            if self._agents.get(host) is agent:
                del self._agents[host]
        agent.close()

    def drop(self) -> None:
        """Close all connections, which fails pending requests; the next call of `agent` makes new ones."""
        for host, agent in list(self._agents.items()):
            self.drop_connection(host, agent)

    def leave(self) -> None:
        """End the watch: leases are not renewed, and lost hosts are not reported."""
        self._over.set()
        for thread in self._watchers:
            thread.join()

    def close(self) -> None:
        """Close all connections for good; processes on hosts go on until the lease ends."""
        self.leave()
        self._closed = True
        self.drop()

    def end(self, run: str) -> None:
        """End a run of that name on all hosts that can be reached."""
        there = [name for name, up in self.up.items() if up]
        stopping = [threading.Thread(target=self._end_run, args=(name, run), daemon=True) for name in there]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()

    def _end_run(self, host: str, run: str = "") -> None:
        """End a run on a host; if the connection breaks meanwhile, over a new one."""
        with suppress(LabkitError, OSError):
            agent = self.agent(host)
            try:
                agent.stop(run or self.run, grace_s=SAVING_S)
            except AgentGone:
                self.drop_connection(host, agent)
                self.agent(host).stop(run or self.run, grace_s=SAVING_S)

    def _watch(self, host: str) -> None:
        """Renew the lease of the run, and note when the host is lost or returns."""
        contact_s = time.monotonic()
        while not self._over.wait(BEAT_S):
            now_s = time.monotonic()
            if now_s - self._beat_s.get(host, now_s) > BEAT_S + SLEPT_S:
                contact_s = now_s  # this process did not listen: that says nothing about the host
            why = self._renew(host)
            self._beat_s[host] = time.monotonic()
            if not why:
                contact_s = self._beat_s[host]
                if not self.up[host]:
                    self._note(host, up=True)
            elif self._beat_s[host] - contact_s >= PATIENCE_S and self.up[host]:
                self._note(host, up=False, why=why)

    def _note(self, host: str, *, up: bool, why: str = "") -> None:
        self.up[host] = up
        self._changed(host, up, why)

    def _renew(self, host: str) -> str:
        """Renew the lease of the run on a host; return why that failed, empty if it did not."""
        try:
            agent = self.agent(host)
        except NotDeployedError:
            return self._deploy_again(host) or "labkit was not there any more"
        except (LabkitError, OSError) as error:
            return str(error)
        try:
            self._hear(host, agent, agent.renew(self.run, lease_s=self.lease_s, wait_s=PATIENCE_S))
        except (AgentGone, AgentTimeout) as error:
            self.drop_connection(host, agent)
            return str(error)
        except AgentError:
            return ""  # it has no such run, or no longer: the next task opens it
        return ""

    def _hear(self, host: str, agent: Agent, readings: Sequence[YardstickReading]) -> None:
        """Pass new readings on; those from before the connection are of another run."""
        for reading in readings:
            if reading.boot_s > self._heard_s.get(host, agent.hello.boot_s):
                self._heard_s[host] = reading.boot_s
                self._on_reading(host, reading)

    def _deploy_again(self, host: str) -> str:
        """Deploy labkit to a host that has lost it; return why that failed."""
        with Fleet(self.fleet.inventory.only([host])) as alone:
            return next((row.did for row in install(alone).rows if not row.ok), "")
