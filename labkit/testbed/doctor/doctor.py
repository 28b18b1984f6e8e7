"""Examine the hosts of a testbed: one probe program on each host, over one connection, all at once."""

from __future__ import annotations

import time

from labkit.testbed.doctor.findings import (
    DoctorReport,
    Finding,
    HostExpectation,
    of_clock,
    of_facts,
    of_ports,
    of_reach,
    of_torch,
)
from labkit.testbed.doctor.probe import HostProbe, visit
from labkit.testbed.install.wheel import build
from labkit.testbed.inventory import Inventory, Machine
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.replies import EchoPort

CLOCK_ROUNDS = 5


def examine(fleet: Fleet, *, torch: bool = True) -> DoctorReport:
    """Check every host, and the connections from every host to every other.

    Parameters
    ----------
    fleet : Fleet
        The hosts.
    torch : bool
        Also import torch there, which takes seconds.

    Returns
    -------
    DoctorReport
        All findings; a host that cannot be reached has one.
    """
    hash = build().hash
    wanted = {machine.name: wanted_of(machine, hash) for machine in fleet.inventory}
    ports: dict[str, EchoPort] = {}

    def listen(probe: HostProbe) -> list[Finding]:
        ports[probe.machine.name] = probe.listen(probe.machine.address)
        return []

    with visit(fleet) as hosts:
        hosts.each(lambda probe: _clock(probe, wanted[probe.machine.name]))
        hosts.each(lambda probe: _facts(probe, wanted[probe.machine.name], torch=torch))
        hosts.each(listen)
        hosts.each(lambda probe: _connect(probe, wanted[probe.machine.name], fleet.inventory, ports))
    return DoctorReport(finding for found in hosts.findings.values() for finding in found)


def wanted_of(machine: Machine, hash: str) -> HostExpectation:
    """Return what the inventory says about a host and can be checked there."""
    host = machine.host
    return HostExpectation(
        machine.name, machine.python, machine.folder, host.gpus, host.cpus, host.memory_gb, hash,
        pretends=host.real_gpus < host.gpus, device_type=host.device_type,
    )  # fmt: skip


def _clock(probe: HostProbe, wanted: HostExpectation) -> list[Finding]:
    """Compare clocks; the fastest of several questions gives the smallest error."""
    rounds = []
    for _ in range(CLOCK_ROUNDS):
        before = time.time()  # noqa: TID251 - the two hosts' clocks are compared
        theirs = probe.clock().time_s
        after = time.time()  # noqa: TID251
        rounds.append((after - before, theirs - (before + after) / 2))
    trip_s, offset_s = min(rounds)
    reach = of_reach(wanted, trip_s=trip_s, noise=probe.noise)
    return [reach, of_clock(wanted, offset_s=offset_s, bound_s=trip_s / 2)]


def _facts(probe: HostProbe, wanted: HostExpectation, *, torch: bool) -> list[Finding]:
    facts = probe.facts()
    found = of_facts(wanted, facts)
    if torch:
        found.append(of_torch(wanted, probe.torch(), deployed=bool(facts.deployed.hash)))
    return found


def _connect(
    probe: HostProbe, wanted: HostExpectation, inventory: Inventory, ports: dict[str, EchoPort]
) -> list[Finding]:
    """Connect from a host to the ports of all others."""
    others = {machine.name: machine.address for machine in inventory if machine.name != wanted.name}
    peers = {
        name: (others[name], each.port, each.word)
        for name, each in ports.items()
        if name in others and each.port is not None
    }
    error = ports[wanted.name].error or ""
    return [of_ports(wanted, probe.machine.address, probe.dial(peers), error=error)]
