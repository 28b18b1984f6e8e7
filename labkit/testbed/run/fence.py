"""Driving a run alone: this process leads its hosts' agents, or learns which other process does."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Mapping
from typing import Final

from labkit.core.errors import InputError, TakenOverError
from labkit.testbed.agent import fences
from labkit.testbed.agent.client import Agent
from labkit.testbed.agent.errors import AgentRefused
from labkit.testbed.agent.fences import MOST_TEXT
from labkit.testbed.agent.shapes import Leader, readable

LOOK_S: Final = 0.25
GONE_S: Final = 10.0
"""Seconds in which a process that is gone must be seen to be: its connections end, or nothing more comes over them."""


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

    Attributes
    ----------
    generation : int
        Of this process; 0: it does not drive the run yet.
    taken_by : str
        Which process has taken it over; empty: none.
    """

    def __init__(self, name: str, *, run: str, after: int = 0, take_over: bool = False) -> None:
        self.name, self.run, self.generation, self.taken_by = name, run, 0, ""
        self._after, self._take_over, self._token = after, take_over, secrets.token_hex(8)
        self._by = f"process {os.getpid()} on {socket.gethostname()}"

    def take(self, agents: Mapping[str, Agent]) -> None:
        """Lead the agents that can be reached: first one of them alone, which decides between two that try at once.

        Raises
        ------
        InputError
            If another process drives the run: which one.
        TakenOverError
            If one took it meanwhile.
        """
        leaders = {host: agent.leader(self.name) for host, agent in agents.items()}
        if not self._take_over:
            self._refuse_living(agents, leaders)
        self.generation = 1 + max([self._after, *(led.generation for led in leaders.values())])
        for _, agent in sorted(agents.items()):
            self.lead(agent)

    def lead(self, agent: Agent) -> None:
        """Lead one agent, if this process drives the run already.

        Raises
        ------
        TakenOverError
            If another process does.
        """
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
        """Raise if another process drives the run now.

        Raises
        ------
        TakenOverError
            Which one.
        """
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
