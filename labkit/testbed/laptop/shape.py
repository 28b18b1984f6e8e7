"""Links of limited rate for a laptop testbed: the commands for the kernel, as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from labkit.core.errors import InputError
from labkit.testbed.laptop.plan import BedPlan, Spot

UNITS = {"kbit": 1e-6, "mbit": 1e-3, "gbit": 1.0}
SLOWEST_GBPS, FASTEST_GBPS = 1e-4, 100.0
QDISCS = ("tbf", "htb")
"""Queues that hold a rate, in the order of preference; kernels may lack either, and netem."""
BURST_S = 0.005
LEAST_BURST = 64 << 10
"""Bytes: as large as the packets that the kernel hands over at once."""
LATENCY_MS = 50
PREFIX = "198.18"
"""Addresses that are kept for measurements between networks: RFC 2544."""
PORT = 2222
DEVICE = "eth0"


def rate_gbps(rate: str | float) -> float:
    """Return a rate in Gbps, from Gbps or as `tc` writes it.

    >>> rate_gbps("200mbit"), rate_gbps(0.5)
    (0.2, 0.5)

    Raises
    ------
    InputError
        If it is no rate.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmg]bit)?\s*", str(rate).lower())
    gbps = float(found[1]) * UNITS[found[2] or "gbit"] if found else 0.0
    if not SLOWEST_GBPS <= gbps <= FASTEST_GBPS:
        raise InputError(f"rate is {rate!r}; expected 100kbit to 100gbit, such as 200mbit or 1gbit.")
    return gbps


def addresses(n_hosts: int, *, subnet: int) -> list[str]:
    """Return the addresses of hosts on a bridge; the bridge has the first address of the network."""
    return [f"{PREFIX}.{subnet}.{i + 2}" for i in range(n_hosts)]


def gateway(plan: BedPlan) -> str:
    """Return the bridge's address."""
    return plan.spots[0].address.rpartition(".")[0] + ".1"


def bridge(plan: BedPlan) -> str:
    """Return the bridge's name; the kernel allows 15 characters."""
    return f"lk{plan.token[:8]}"


def port_of(plan: BedPlan, spot: Spot) -> str:
    """Return the name of the bridge's end of a host's link."""
    return f"{bridge(plan)}{spot.name}"


def bridge_commands(plan: BedPlan, *, processes: Sequence[int], qdisc: str) -> tuple[list[str], list[str]]:
    """Return the lines for `ip -batch` and `tc -batch` that make a bridge with a limited link to each host.

    Parameters
    ----------
    processes : sequence of int
        A process in each host's network, in the hosts' order.
    """
    ip = [f"link add name {bridge(plan)} type bridge", f"address add {gateway(plan)}/24 dev {bridge(plan)}"]
    tc: list[str] = []
    for spot, pid in zip(plan.spots, processes, strict=True):
        port = port_of(plan, spot)
        ip.append(f"link add name {port} type veth peer name {DEVICE} netns {pid}")
        ip.append(f"link set dev {port} master {bridge(plan)} up")
        tc += limit(port, gbps=plan.shaped_gbps or FASTEST_GBPS, qdisc=qdisc)
    return [*ip, f"link set dev {bridge(plan)} up", "link set dev lo up"], tc


def host_commands(plan: BedPlan, spot: Spot, *, qdisc: str) -> tuple[list[str], list[str]]:
    """Return the lines for `ip -batch` and `tc -batch` inside a host's network."""
    ip = [
        "link set dev lo up",
        f"address add {spot.address}/24 dev {DEVICE}",
        f"link set dev {DEVICE} up",
    ]
    return ip, limit(DEVICE, gbps=plan.shaped_gbps or FASTEST_GBPS, qdisc=qdisc)


def limit(device: str, *, gbps: float, qdisc: str) -> list[str]:
    """Return the lines for `tc -batch` that hold what leaves through a device to a rate.

    >>> limit("eth0", gbps=0.2, qdisc="tbf")
    ['qdisc add dev eth0 root tbf rate 200000kbit burst 125000 latency 50ms']
    """
    rate, burst = f"{round(gbps * 1e6)}kbit", max(LEAST_BURST, round(gbps * 1e9 / 8 * BURST_S))
    if qdisc == "tbf":
        return [f"qdisc add dev {device} root tbf rate {rate} burst {burst} latency {LATENCY_MS}ms"]
    return [
        f"qdisc add dev {device} root handle 1: htb default 1",
        f"class add dev {device} parent 1: classid 1:1 htb rate {rate} burst {burst} cburst {burst}",
    ]
