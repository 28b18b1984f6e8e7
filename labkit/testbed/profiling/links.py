"""Measure the links between hosts."""

from __future__ import annotations

from itertools import permutations
from math import nan
from typing import TYPE_CHECKING, NamedTuple

from labkit.testbed.doctor.findings import Finding
from labkit.testbed.doctor.probe import HostProbe, Peer, visit
from labkit.testbed.errors import HostError
from labkit.testbed.ssh.fleet import Fleet

if TYPE_CHECKING:
    import pandas as pd


class Link(NamedTuple):
    """What was measured between two hosts, or why nothing was; without a target: why a host could not be reached."""

    source: str
    target: str = ""
    gbps: float = nan
    rtt_ms: float = nan
    error: str = ""


def measure_links(fleet: Fleet, *, seconds: float = 1.0) -> pd.DataFrame:
    """Send from every host to every other, one pair after the other, over one TCP connection without encryption.

    Parameters
    ----------
    fleet : Fleet
        The hosts.
    seconds : float
        Seconds for each pair.

    Returns
    -------
    DataFrame
        One row per pair: source, target, gbps, rtt_ms, error; and one for each host that could not be reached.
    """
    import pandas as pd

    rows: list[Link] = []
    with visit(fleet) as hosts:
        peers: dict[str, Peer] = {}

        def listen(probe: HostProbe) -> list[Finding]:
            machine = probe.machine
            echo = probe.listen(machine.address)
            if echo.port is not None:
                peers[machine.name] = (machine.address, echo.port, echo.word)
            return []

        hosts.each(listen)
        names = [machine.name for machine in fleet.inventory if machine.name in hosts.probes]
        for source, target in permutations(names, 2):
            if target in peers:
                rows.append(_measured(Link(source, target), hosts.probes[source], peers[target], seconds))
        rows += [Link(host, error=each.found) for host, found in hosts.findings.items() for each in found]
    return pd.DataFrame(rows, columns=Link._fields)


def _measured(link: Link, probe: HostProbe, peer: Peer, seconds: float) -> Link:
    """Return a link with what its source measures, or with the reason why it does not."""
    try:
        dialled = probe.dial({"it": peer})["it"]
        if dialled.rtt_s is None:
            return link._replace(error=dialled.error or "no answer")
        poured = probe.pour(peer, seconds=seconds)
    except HostError as error:
        return link._replace(error=str(error))
    if poured.bytes is None or not poured.seconds:
        return link._replace(error=poured.error or "no answer")
    return link._replace(gbps=8e-9 * poured.bytes / poured.seconds, rtt_ms=1e3 * dialled.rtt_s)
