"""Examine the hosts of a testbed: one program on each, asked over one connection, all at once."""

from __future__ import annotations

import time
from typing import Any

from labkit.testbed.doctor.findings import (
    DoctorReport,
    Finding,
    HostExpectation,
    of_clock,
    of_doors,
    of_facts,
    of_reach,
    of_torch,
)
from labkit.testbed.doctor.probe import HostProbe, visit
from labkit.testbed.install.wheel import build
from labkit.testbed.inventory import Inventory, Machine
from labkit.testbed.ssh.fleet import Fleet

TORCH_S = 90.0
CLOCK_ROUNDS = 5


def examine(fleet: Fleet, *, torch: bool = True) -> DoctorReport:
    """Look at every host, and from every host at every other.

    Parameters
    ----------
    fleet : Fleet
        The hosts.
    torch : bool
        Import torch there, which takes seconds; False leaves it out.

    Returns
    -------
    DoctorReport
        All findings; a host that cannot be reached has one.
    """
    hash = build().hash
    wanted = {machine.name: wanted_of(machine, hash) for machine in fleet.inventory}
    doors: dict[str, dict[str, Any]] = {}

    def open_door(examiner: HostProbe) -> list[Finding]:
        doors[examiner.machine.name] = examiner.ask("listen", host=examiner.machine.address)
        return []

    with visit(fleet) as hosts:
        hosts.each(lambda examiner: _clock(examiner, wanted[examiner.machine.name]))
        hosts.each(lambda examiner: _facts(examiner, wanted[examiner.machine.name], torch=torch))
        hosts.each(open_door)
        hosts.each(lambda examiner: _knock(examiner, wanted[examiner.machine.name], fleet.inventory, doors))
    return DoctorReport(finding for found in hosts.findings.values() for finding in found)


def wanted_of(machine: Machine, hash: str) -> HostExpectation:
    """Return what the inventory says of a host that can be checked there."""
    host = machine.host
    return HostExpectation(
        machine.name, machine.python, machine.folder, host.gpus, host.cpus, host.memory_gb, hash,
        pretends=host.real_gpus < host.gpus, device_type=host.device_type,
    )  # fmt: skip


def _clock(examiner: HostProbe, wanted: HostExpectation) -> list[Finding]:
    """Compare clocks: the quickest of some questions bounds the offset best."""
    rounds = []
    for _ in range(CLOCK_ROUNDS):
        before = time.time()  # noqa: TID251 - the two hosts' clocks are compared
        theirs = examiner.ask("clock")["time_s"]
        after = time.time()  # noqa: TID251
        rounds.append((after - before, theirs - (before + after) / 2))
    trip_s, offset_s = min(rounds)
    reach = of_reach(wanted, trip_s=trip_s, noise=examiner.noise)
    return [reach, of_clock(wanted, offset_s=offset_s, bound_s=trip_s / 2)]


def _facts(examiner: HostProbe, wanted: HostExpectation, *, torch: bool) -> list[Finding]:
    facts = examiner.ask("facts")
    found = of_facts(wanted, facts)
    if torch:
        said = examiner.ask("torch", patience_s=TORCH_S)
        found.append(of_torch(wanted, said, deployed=bool(facts["deployed"]["hash"])))
    return found


def _knock(
    examiner: HostProbe, wanted: HostExpectation, inventory: Inventory, doors: dict[str, dict[str, Any]]
) -> list[Finding]:
    """Let a host knock at the doors of all others."""
    own = doors[wanted.name]
    peers = [
        [machine.name, machine.address, doors[machine.name]["port"], doors[machine.name]["word"]]
        for machine in inventory
        if machine.name != wanted.name and "port" in doors.get(machine.name, {})
    ]
    said = examiner.ask("dial", peers=peers)
    return [of_doors(wanted, examiner.machine.address, said, error=own.get("error", ""))]
