"""Measure the links between hosts."""

from __future__ import annotations

from itertools import permutations
from math import nan
from typing import TYPE_CHECKING, Any

from labkit.testbed.doctor.findings import Finding
from labkit.testbed.doctor.probe import HostProbe, Peer, visit
from labkit.testbed.errors import HostError
from labkit.testbed.ssh.fleet import Fleet

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("source", "target", "gbps", "rtt_ms", "error")


def measure(fleet: Fleet, *, seconds: float = 1.0) -> pd.DataFrame:
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

    rows: list[dict[str, Any]] = []
    with visit(fleet) as hosts:
        peers: dict[str, Peer] = {}

        def listen(probe: HostProbe) -> list[Finding]:
            machine = probe.machine
            echo = probe.listen(machine.address)
            if echo.port is not None:
                peers[machine.name] = (machine.address, echo.port, echo.word)
            return []

        hosts.each(listen)
        names = [machine.name for machine in fleet.inventory if machine.name in hosts.examiners]
        for source, target in permutations(names, 2):
            if target in peers:
                rows.append(_row(source, target, **_pair(hosts.examiners[source], peers[target], seconds)))
        rows += [_row(host, error=each.found) for host, found in hosts.findings.items() for each in found]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(source: str, target: str = "", *, gbps: float = nan, rtt_ms: float = nan, error: str = "") -> dict[str, Any]:
    return {"source": source, "target": target, "gbps": gbps, "rtt_ms": rtt_ms, "error": error}


def _pair(probe: HostProbe, peer: Peer, seconds: float) -> dict[str, Any]:
    try:
        dialled = probe.dial({"it": peer})["it"]
        if dialled.rtt_s is None:
            return {"error": dialled.error or "no answer"}
        poured = probe.pour(peer, seconds=seconds)
    except HostError as error:
        return {"error": str(error)}
    if poured.bytes is None or not poured.seconds:
        return {"error": poured.error or "no answer"}
    return {"gbps": 8e-9 * poured.bytes / poured.seconds, "rtt_ms": 1e3 * dialled.rtt_s}
