"""The agents of all hosts: connected, connected again when a link breaks, and told apart from those that are gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from labkit.core.errors import InputError, LabkitError
from labkit.testbed.agent.client import Agent
from labkit.testbed.agent.errors import AgentError, AgentGone, AgentTimeout
from labkit.testbed.agents import agent_of
from labkit.testbed.errors import HostError
from labkit.testbed.fleet import Fleet
from labkit.testbed.provision import deploy

BEAT_S: Final = 1.0
"""Between two signs of life."""

PATIENCE_S: Final = 6.0
"""A host that cannot be reached for so long is gone."""


class Hosts:
    """The agents of a testbed, for one run.

    Parameters
    ----------
    fleet : Fleet
        Connections to the machines.
    run : str
        Whose lease is renewed while this lives.
    changed : callable
        Is told (host, True) when one is back and (host, False) when one is gone, in a thread of its own.
    lease_s : float
        So long does the run go on on a host after the last sign of life from here.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        run: str,
        changed: Callable[[str, bool], None] = lambda _host, _up: None,
        lease_s: float = 600.0,
    ) -> None:
        self.fleet, self.run, self.lease_s = fleet, run, lease_s
        self._changed = changed
        self._agents: dict[str, Agent] = {}
        self._locks = {machine.name: threading.Lock() for machine in fleet.inventory}
        self.up = dict.fromkeys(self._locks, True)
        self._over, self._closed = threading.Event(), False
        self._watchers: list[threading.Thread] = []

    def get_ready(self) -> None:
        """Bring this labkit to all hosts, and connect to their agents; nothing is begun unless all can be reached.

        Raises
        ------
        InputError
            If a host cannot be used: which, and why.
        """
        failed = (
            {row.host: row.why for row in self.fleet.connect() if not row.ok}
            or {row.host: row.did for row in deploy(self.fleet).rows if not row.ok}
            or self.connect()
        )
        if failed:
            told = "; ".join(f"{host}: {why}" for host, why in failed.items())
            raise InputError(
                f"{len(failed)} of {len(self._locks)} hosts cannot be used: {told} (labkit doctor --hosts)"
            )

    def connect(self) -> dict[str, str]:
        """Connect to all agents, starting those that do not run; return why some could not be reached."""
        failed: dict[str, str] = {}

        def one(name: str) -> None:
            try:
                self.agent(name)
            except (AgentError, HostError) as error:
                failed[name] = str(error)

        threads = [threading.Thread(target=one, args=(name,)) for name in self._locks]
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
            return agent

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

    def close(self, *, end_run: bool) -> None:
        """Look after nobody any more; end the run on all hosts, or leave it to itself."""
        self._over.set()
        for thread in self._watchers:
            thread.join()
        if end_run:
            stopping = [threading.Thread(target=self._end_run, args=(name,)) for name, up in self.up.items() if up]
            for thread in stopping:
                thread.start()
            for thread in stopping:
                thread.join()
        self._closed = True
        self.drop()

    def _end_run(self, host: str) -> None:
        """End the run there; where the connection breaks just then, over another one."""
        with suppress(LabkitError, OSError):
            agent = self.agent(host)
            try:
                agent.stop(self.run)
            except AgentGone:
                self.lost(host, agent)
                self.agent(host).stop(self.run)

    def _watch(self, host: str) -> None:
        """Renew the lease of the run, and notice when the host goes and comes."""
        heard_s = time.monotonic()
        while not self._over.wait(BEAT_S):
            if self._alive(host):
                heard_s = time.monotonic()
                if not self.up[host]:
                    self._note(host, up=True)
            elif time.monotonic() - heard_s >= PATIENCE_S and self.up[host]:
                self._note(host, up=False)

    def _note(self, host: str, *, up: bool) -> None:
        self.up[host] = up
        self._changed(host, up)

    def _alive(self, host: str) -> bool:
        try:
            agent = self.agent(host)
        except (LabkitError, OSError):
            return False
        try:
            agent.renew(self.run, lease_s=self.lease_s, wait_s=PATIENCE_S)
        except (AgentGone, AgentTimeout):
            self.lost(host, agent)
            return False
        except AgentError:
            return True  # it has no such run yet, or no more
        return True
