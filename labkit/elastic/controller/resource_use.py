"""Cores and memory of members: what they use, and the limits that they are given."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from labkit.core.errors import InputError
from labkit.core.events import Cause
from labkit.elastic.controller.event_loop import ControllerRuntime
from labkit.elastic.controller.job_files import now
from labkit.elastic.controller.member_processes import MemberProcesses
from labkit.elastic.process.limits import Amounts
from labkit.elastic.process.usage import EVERY_S, Gauge, MemberUsage, UsageReading, decode_readings, readings
from labkit.elastic.protocol.messages.clients import MemberLimit
from labkit.elastic.protocol.messages.launchers import MeasuredUsage
from labkit.elastic.protocol.messages.orders import SetLimits


class ResourceUse:
    """Measures what members use, and passes on their limits; a `MemberObserver`.

    Parameters
    ----------
    runtime : ControllerRuntime
        Shared by all parts.
    processes : MemberProcesses
        Of the members.
    """

    def __init__(self, runtime: ControllerRuntime, processes: MemberProcesses) -> None:
        self._runtime, self._processes = runtime, processes
        self._limits: dict[str, Amounts] = {}
        self._used: dict[str, MemberUsage] = {}
        self._remote: dict[str, UsageReading] = {}
        """Latest readings of members on other hosts, from their launchers."""
        self._status_gauge, self._event_gauge = Gauge(), Gauge()
        """One for a status and one for events: their intervals differ."""
        self._next_look_s = self._next_event_s = 0.0
        self._short_gb = math.inf
        """Memory limit of the last process that ran out of memory; infinite: none did."""

    def used(self, name: str) -> MemberUsage:
        """Return what a member used in the last second."""
        return self._used.get(name, MemberUsage())

    def limit(self, name: str) -> Amounts:
        """Return the limits of a member."""
        return self._limits.get(name, Amounts())

    # --- limits

    def resize(self, asked: Mapping[str, MemberLimit]) -> None:
        """Give members other limits; one that has not joined gets them when it does.

        Parameters
        ----------
        asked : mapping
            Cores and GB of memory by name of the member; None: no limit.

        Raises
        ------
        InputError
            If a member is unknown or leaving, or an amount is not finite and above 0.
        """
        members = [name for name, member in self._runtime.machine.job.members.items() if not member.leaving]
        amounts = {}
        for name, given in asked.items():
            if name not in members:
                raise InputError(f"no '{name[:40]}' to resize; there are {', '.join(sorted(members))}.")
            amounts[name] = Amounts(*given)
        if any(one.memory_gb is None or one.memory_gb > self._short_gb for one in amounts.values()):
            self._runtime.machine.forgive_shortages()
        self._limits.update(amounts)
        for name in amounts:
            self._send(name)

    def _send(self, name: str) -> None:
        limit = self._limits[name]
        self._processes.send(name, SetLimits(limit.cpus, limit.memory_gb))

    def on_joined(self, name: str) -> None:
        """Send a member its limits."""
        if name in self._limits:
            self._send(name)

    def on_ended(self, name: str, cause: Cause) -> None:
        """Forget a member; if it ran out of memory, remember its limit: with more, the next one may not."""
        limit = self._limits.pop(name, Amounts())
        if cause == Cause.OUT_OF_MEMORY:
            self._short_gb = limit.memory_gb or 0.0
        self._remote.pop(name, None)

    # --- measurements

    def measure(self) -> None:
        """Read what members use once a second, and record events at the interval that the job asks for."""
        now_s, every_s = time.monotonic(), self._runtime.spec.measure_every_s
        event_due = bool(every_s) and now_s >= self._next_event_s
        if not event_due and now_s < self._next_look_s:
            return
        found = self._readings()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + EVERY_S
            self._used = self._status_gauge.used(found)
        if event_due:
            self._next_event_s = now_s + every_s
            self._record(self._event_gauge.used(found))

    def on_remote_readings(self, sent: Mapping[str, MeasuredUsage]) -> None:
        """Take the readings that the launcher of another host has sent."""
        self._remote.update(decode_readings(sent))

    def _readings(self) -> dict[str, UsageReading]:
        """Return what each running member has used so far, on all hosts."""
        running = set(self._processes.running())
        remote = {name: reading for name, reading in self._remote.items() if name in running}
        return {**readings(self._processes.local_pids()), **remote}

    def _record(self, found: dict[str, MemberUsage]) -> None:
        when = now()
        for name, used in found.items():
            limit = self.limit(name)
            columns = {**used._asdict(), "most_cores": limit.cpus, "most_gb": limit.memory_gb}
            self._runtime.events.write("used", {"name": name, **columns}, when=when)
