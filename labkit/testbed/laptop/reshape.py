"""Change the link rates of a shaped laptop testbed while it is up; its processes go on."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import replace

from labkit.core.errors import InputError
from labkit.testbed.errors import BedError
from labkit.testbed.laptop.bed import Bed
from labkit.testbed.laptop.namespaces import entry, outside
from labkit.testbed.laptop.plan import BedPlan, alone, write_private
from labkit.testbed.laptop.server import program
from labkit.testbed.laptop.shape import DEVICE, QDISCS, limit, port_of, rate_gbps


def rates(bed: Bed) -> dict[str, str]:
    """Return the rate of each host's link according to the kernel: to the host, and from it.

    Raises
    ------
    InputError
        If the bed's links have no limits.
    """
    plan = _shaped(bed)
    found = {}
    for spot in plan.spots:
        down, up = _rate(outside(plan), port_of(plan, spot)), _rate(entry(plan)(spot), DEVICE)
        found[spot.name] = f"{down} to it, {up} from it"
    return found


def reshape(bed: Bed, rate: str | float, *, hosts: Collection[str]) -> float:
    """Set the link rate of some hosts, in both directions, and write it into the inventory.

    Parameters
    ----------
    bed : Bed
        Up, and shaped.
    rate : str or float
        Gbps, or as `tc` writes it: "200mbit".
    hosts : collection of str
        Their names.

    Returns
    -------
    float
        Gbps.

    Raises
    ------
    InputError
        If it is no rate, or the bed's links have no limits.
    BedError
        If the kernel refuses.
    """
    gbps = rate_gbps(rate)
    with alone(bed.folder):
        plan = _shaped(bed)
        for spot in plan.spots:
            if spot.name in hosts:
                _limit(outside(plan), port_of(plan, spot), gbps)
                _limit(entry(plan)(spot), DEVICE, gbps)
        if all(spot.name in hosts for spot in plan.spots):
            replace(plan, shaped_gbps=gbps).write()
        write_private(plan.hosts_file, _written(plan.hosts_file.read_text(), gbps, hosts=hosts))
    return gbps


def _shaped(bed: Bed) -> BedPlan:
    plan = BedPlan.read(bed.folder)
    if plan is None or plan.shaped_gbps is None:
        raise InputError(
            f"the links of the laptop testbed in {bed.folder} have no limits; labkit bed down, then: "
            "labkit bed up --shaped 1gbit."
        )
    return plan


def _limit(before: Sequence[str], device: str, gbps: float) -> None:
    """Replace the queue of a device by one of the same kind with another rate."""
    kind = next((kind for kind in QDISCS if f" {kind} " in _said(before, "qdisc", device)), None)
    if kind is None:
        raise BedError(f"link {device} has no limit that could be changed; labkit bed down, then up.")
    for line in limit(device, gbps=gbps, qdisc=kind):
        if kind == "tbf" or line.startswith("class"):
            _tc(before, line.replace(" add ", " change ", 1).split())


def _tc(before: Sequence[str], words: Sequence[str]) -> str:
    done = subprocess.run([*before, program("tc"), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BedError(f"tc refuses {' '.join(words)!r}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _said(before: Sequence[str], what: str, device: str) -> str:
    return _tc(before, [what, "show", "dev", device])


def _rate(before: Sequence[str], device: str) -> str:
    found = re.search(r"\brate (\S+)", _said(before, "qdisc", device) + _said(before, "class", device))
    return found[1] if found else "no limit"


def _written(text: str, gbps: float, *, hosts: Collection[str]) -> str:
    r"""Return an inventory with other rates for some hosts.

    >>> _written('[ssh]\n\n[[hosts]]\nname = "h0"\nlink_gbps = 1.0\n', 0.5, hosts=["h0"]).splitlines()[-1]
    'link_gbps = 0.5'
    """
    head, *tables = text.split("[[hosts]]")

    def changed(table: str) -> str:
        name = re.search(r'^name = "(.*)"$', table, re.MULTILINE)
        if name is None or name[1] not in hosts:
            return table
        return re.sub(r"^link_gbps = .*$", f"link_gbps = {gbps!r}", table, flags=re.MULTILINE)

    return "[[hosts]]".join([head, *map(changed, tables)])
