"""Other hosts of a job: messages of their launchers, and the time within which a launcher must connect."""

from __future__ import annotations

import threading
from typing import assert_never

from labkit.elastic.controller.event_loop import ControllerRuntime
from labkit.elastic.controller.member_processes import MemberProcesses
from labkit.elastic.controller.resource_use import ResourceUse
from labkit.elastic.process.remote_launcher import RemoteLauncher
from labkit.elastic.process.time_limits import PATIENCE_LEASES
from labkit.elastic.protocol.messages.launchers import (
    Hosting,
    LauncherReport,
    Leaving,
    MemberEnded,
    MemberStarted,
    StartFailed,
    UsageMeasured,
)
from labkit.elastic.protocol.sites import Site
from labkit.elastic.transport import Channel

RETURN_LEASES = 2
"""Leases within which a launcher connects again before its host counts as lost."""


class RemoteHosts:
    """Launchers of other hosts.

    Parameters
    ----------
    runtime : ControllerRuntime
        Shared by all parts.
    processes : MemberProcesses
        With the launchers, and the processes that they start.
    resources : ResourceUse
        Takes what launchers measure.
    """

    def __init__(self, runtime: ControllerRuntime, processes: MemberProcesses, resources: ResourceUse) -> None:
        self._runtime, self._processes, self._resources = runtime, processes, resources
        self._launchers = processes.remote

    def expect_for(self, site: Site) -> None:
        """Let the host of a site count as lost if its launcher is not connected and does not connect in time."""
        for launcher in self._launchers.values():
            if launcher.host == site.host and launcher.channel is None:
                self._expect(launcher, leases=PATIENCE_LEASES)

    def expect_all(self) -> None:
        """Wait for all launchers of an earlier controller to connect to this one."""
        for launcher in self._launchers.values():
            self._expect(launcher, leases=RETURN_LEASES if launcher.busy else PATIENCE_LEASES)

    def end(self) -> None:
        """Tell the launchers that the job is over."""
        for launcher in self._launchers.values():
            launcher.end()

    def on_report(self, name: str, channel: Channel, report: LauncherReport) -> None:
        """Handle a report of a launcher: its first one names the members that run on its host."""
        launcher = self._launchers[name]
        if isinstance(report, Hosting):
            self._runtime.events.write("host", {"host": launcher.host, "running": sorted(report.running)})
            self._runtime.execute(self._runtime.machine.host_back(launcher.host))
            launcher.here(channel, report.running)
        elif channel is launcher.channel:
            self._handle(launcher, report)

    def _handle(
        self, launcher: RemoteLauncher, report: MemberStarted | MemberEnded | StartFailed | UsageMeasured | Leaving
    ) -> None:
        match report:
            case MemberStarted():
                launcher.started(report.name, report.pid)
            case MemberEnded():
                launcher.ended(report.name, report.code)
            case StartFailed():
                if not launcher.wait(report.name, timeout_s=0):
                    self._processes.on_unable(report.name, report.why)
            case UsageMeasured():
                self._resources.on_remote_readings(report.readings)
            case Leaving():
                launcher.channel = None
                self._on_missed(launcher, launcher.turn)
            case _:
                assert_never(report)

    def on_closed(self, name: str, channel: Channel) -> bool:
        """Handle the end of a launcher's connection; False if the name is none of a launcher."""
        launcher = self._launchers.get(name)
        if launcher is None:
            return False
        if launcher.away(channel):
            self._expect(launcher, leases=RETURN_LEASES)
        return True

    def _expect(self, launcher: RemoteLauncher, *, leases: int) -> None:
        """Let a host count as lost if its launcher does not connect in time, and members should run there."""
        timeout_s = leases * self._runtime.lease.base_s
        timer = threading.Timer(timeout_s, self._runtime.loop.post, [self._on_missed, launcher, launcher.turn])
        timer.daemon, timer.name = True, f"waiting for {launcher.host}"
        timer.start()

    def _on_missed(self, launcher: RemoteLauncher, turn: int) -> None:
        if launcher.turn != turn or launcher.channel is not None:
            return
        members = launcher.lost()
        if not members:
            return
        why = "its launcher has not reconnected" if launcher.seen else "its launcher has not connected"
        for member in members:
            self._processes.lose(member)
        self._runtime.execute(self._runtime.machine.host_lost(launcher.host, why=why))
