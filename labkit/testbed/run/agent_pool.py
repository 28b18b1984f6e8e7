"""The agents of all hosts: connected, connected again when a link breaks, and told apart from those that are gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from labkit.core.errors import InputError, LabkitError
from labkit.testbed.agent.client import Agent
from labkit.testbed.agent.errors import AgentError, AgentGone, AgentTimeout
from labkit.testbed.errors import HostError
from labkit.testbed.install.provision import deploy
from labkit.testbed.run.agents import NotDeployedError, agent_of
from labkit.testbed.ssh.fleet import Fleet

BEAT_S: Final = 1.0
"""Between two signs of life."""

PATIENCE_S: Final = 6.0
"""A host that cannot be reached for so long is gone."""

SLEPT_S: Final = 3.0
"""A beat that comes so much too late: this process was stopped, or this machine suspended."""

SAVING_S: Final = 15.0
"""For jobs that are ended to save what they have."""

Changed = Callable[[str, bool, str], None]


class AgentPool:
    """The agents of a testbed, for one run.

    Parameters
    ----------
    fleet : Fleet
        Connections to the machines.
    run : str
        Whose lease is renewed while this lives.
    changed : callable
        Is told (host, True, "") when one is back and (host, False, why) when one is gone, in some thread; one that was
        restarted is gone and back.
    lease_s : float
        Seconds a host keeps the run alive without a sign of life from this process.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        run: str,
        changed: Changed = lambda _host, _up, _why: None,
        lease_s: float = 600.0,
    ) -> None:
        self.fleet, self.run, self.lease_s = fleet, run, lease_s
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
        """Bring this labkit to all hosts, and connect to their agents; nothing is begun unless all can be reached.

        Parameters
        ----------
        some : bool
            Be content with some of them: the others are not `up`, until they can be reached.

        Raises
        ------
        InputError
            If a host cannot be used, or none: which, and why.
        """
        failed = {row.host: row.why for row in self.fleet.connect() if not row.ok}
        if not failed and not self.fleet.here:
            failed = {row.host: row.did for row in deploy(self.fleet).rows if not row.ok}
        if not failed or some:
            failed |= self.connect(but=failed)
        if some and 0 < len(failed) < len(self._locks):
            self.up |= dict.fromkeys(failed, False)
            self.absent = failed
        elif failed:
            told = "; ".join(f"{host}: {why}" for host, why in failed.items())
            raise InputError(
                f"{len(failed)} of {len(self._locks)} hosts cannot be used: {told} (labkit doctor --hosts)"
            )

    def connect(self, *, but: Collection[str] = ()) -> dict[str, str]:
        """Connect to all agents, starting those that do not run; return why some could not be reached."""
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
        """Look after all hosts from now on, until `close`."""
        for name in self._locks:
            thread = threading.Thread(target=self._watch, args=(name,), name=f"host {name}", daemon=True)
            self._watchers.append(thread)
            thread.start()

    def agent(self, host: str) -> Agent:
        """Return the agent of a host, connected.

        Raises
        ------
        AgentError, HostError
            If it cannot be reached.
        """
        with self._locks[host]:
            agent = self._agents.get(host)
            if agent is None and self._closed:
                raise AgentGone("the run is over here")
            if agent is None:
                agent = self._agents[host] = agent_of(self.fleet, self.fleet.inventory[host])
                self._compare(host, agent.hello.boot)
            return agent

    def _compare(self, host: str, boot: str) -> None:
        """Tell that a host was restarted, where it has another boot id than before: what ran there is gone."""
        before = self._boots.get(host, boot)
        self._boots[host] = boot
        if before != boot and self.up[host]:
            self._changed(host, False, "it was restarted")
            self._changed(host, True, "")

    def lost(self, host: str, agent: Agent) -> None:
        """Connect anew the next time: this connection is gone."""
        with self._locks[host]:
            if self._agents.get(host) is agent:
                del self._agents[host]
        agent.close()

    def drop(self) -> None:
        """End all connections, and with them what is waited for; who asks next connects anew."""
        for host, agent in list(self._agents.items()):
            self.lost(host, agent)

    def leave(self) -> None:
        """Look after nobody any more: leases are not renewed, and what becomes of hosts is not told."""
        self._over.set()
        for thread in self._watchers:
            thread.join()

    def close(self) -> None:
        """Leave the hosts, and connect to none again; what runs there goes on until its lease ends."""
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
        """End the run there; where the connection breaks just then, over another one."""
        with suppress(LabkitError, OSError):
            agent = self.agent(host)
            try:
                agent.stop(run or self.run, grace_s=SAVING_S)
            except AgentGone:
                self.lost(host, agent)
                self.agent(host).stop(run or self.run, grace_s=SAVING_S)

    def _watch(self, host: str) -> None:
        """Renew the lease of the run, and notice when the host goes and comes."""
        heard_s = time.monotonic()
        while not self._over.wait(BEAT_S):
            now_s = time.monotonic()
            if now_s - self._beat_s.get(host, now_s) > BEAT_S + SLEPT_S:
                heard_s = now_s  # nobody listened here: that says nothing of the host
            why = self._silent(host)
            self._beat_s[host] = time.monotonic()
            if not why:
                heard_s = self._beat_s[host]
                if not self.up[host]:
                    self._note(host, up=True)
            elif self._beat_s[host] - heard_s >= PATIENCE_S and self.up[host]:
                self._note(host, up=False, why=why)

    def _note(self, host: str, *, up: bool, why: str = "") -> None:
        self.up[host] = up
        self._changed(host, up, why)

    def _silent(self, host: str) -> str:
        """Renew the lease of the run on a host; return why that cannot be done, nothing where it can."""
        try:
            agent = self.agent(host)
        except NotDeployedError:
            return self._deploy_again(host) or "labkit was not there any more"
        except (LabkitError, OSError) as error:
            return str(error)
        try:
            agent.renew(self.run, lease_s=self.lease_s, wait_s=PATIENCE_S)
        except (AgentGone, AgentTimeout) as error:
            self.lost(host, agent)
            return str(error)
        except AgentError:
            return ""  # it has no such run yet, or no more: the next task opens it
        return ""

    def _deploy_again(self, host: str) -> str:
        """Bring labkit to a host that has lost it; return why that fails."""
        with Fleet(self.fleet.inventory.only([host])) as alone:
            return next((row.did for row in deploy(alone).rows if not row.ok), "")
