"""How fast the links between hosts are, measured."""

from __future__ import annotations

from itertools import permutations
from math import nan
from typing import TYPE_CHECKING, Any

from labkit.testbed.doctor.findings import Finding
from labkit.testbed.doctor.probe import PATIENCE_S, HostProbe, visit
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
        For each pair.

    Returns
    -------
    DataFrame
        One row per pair: source, target, gbps, rtt_ms, error; and one for each host that could not be reached.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    with visit(fleet) as hosts:
        doors: dict[str, list[Any]] = {}

        def open_door(examiner: HostProbe) -> list[Finding]:
            machine = examiner.machine
            said = examiner.ask("listen", host=machine.address)
            if "port" in said:
                doors[machine.name] = [machine.address, said["port"], said["word"]]
            return []

        hosts.each(open_door)
        names = [machine.name for machine in fleet.inventory if machine.name in hosts.examiners]
        for source, target in permutations(names, 2):
            if target in doors:
                rows.append(_row(source, target, **_pair(hosts.examiners[source], doors[target], seconds)))
        rows += [_row(host, error=each.found) for host, said in hosts.findings.items() for each in said]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(source: str, target: str = "", *, gbps: float = nan, rtt_ms: float = nan, error: str = "") -> dict[str, Any]:
    return {"source": source, "target": target, "gbps": gbps, "rtt_ms": rtt_ms, "error": error}


def _pair(examiner: HostProbe, door: list[Any], seconds: float) -> dict[str, Any]:
    try:
        dialled = examiner.ask("dial", peers=[["it", *door]])["it"]
        if "error" in dialled:
            return {"error": dialled["error"]}
        poured = examiner.ask("pour", peer=door, seconds=seconds, patience_s=PATIENCE_S + 40 * seconds)
    except HostError as error:
        return {"error": str(error)}
    if "error" in poured:
        return {"error": poured["error"]}
    return {"gbps": 8e-9 * poured["bytes"] / poured["seconds"], "rtt_ms": 1e3 * dialled["rtt_s"]}
