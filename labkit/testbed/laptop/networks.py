"""A network of its own for each host of a laptop testbed, with links of limited rate: as root or not."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from labkit.core.errors import InputError
from labkit.system.private_files import write_private
from labkit.testbed.errors import BedError
from labkit.testbed.laptop.plan import VARIABLE, BedPlan, HostSlot, alone
from labkit.testbed.laptop.processes import BedProcess, await_that, process
from labkit.testbed.laptop.server import program

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
NEEDED = ("ip", "tc", "nsenter", "unshare", "setsid")
PATIENCE_S = 10.0
FOR_EVER = "2147483647"
HOLD = 'echo "$$" > "$1.part" && mv "$1.part" "$1" && exec sleep ' + FOR_EVER
"""A script that keeps a namespace, and first writes its process number."""
DONE = "network"
"""A file of the bed's folder: its networks are whole."""
PIPE = Path(__file__).with_name("pipe.py")


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
    return plan.slots[0].address.rpartition(".")[0] + ".1"


def bridge(plan: BedPlan) -> str:
    """Return the bridge's name; the kernel allows 15 characters."""
    return f"lk{plan.token[:8]}"


def port_of(plan: BedPlan, slot: HostSlot) -> str:
    """Return the name of the bridge's end of a host's link."""
    return f"{bridge(plan)}{slot.name}"


def bridge_commands(plan: BedPlan, *, processes: Sequence[int], qdisc: str) -> tuple[list[str], list[str]]:
    """Return the lines for `ip -batch` and `tc -batch` that make a bridge with a limited link to each host.

    `processes`: A process in each host's network, in the hosts' order.
    """
    ip = [f"link add name {bridge(plan)} type bridge", f"address add {gateway(plan)}/24 dev {bridge(plan)}"]
    tc: list[str] = []
    for slot, pid in zip(plan.slots, processes, strict=True):
        port = port_of(plan, slot)
        ip.append(f"link add name {port} type veth peer name {DEVICE} netns {pid}")
        ip.append(f"link set dev {port} master {bridge(plan)} up")
        tc += limit(port, gbps=plan.shaped_gbps or FASTEST_GBPS, qdisc=qdisc)
    return [*ip, f"link set dev {bridge(plan)} up", "link set dev lo up"], tc


def host_commands(plan: BedPlan, slot: HostSlot, *, qdisc: str) -> tuple[list[str], list[str]]:
    """Return the lines for `ip -batch` and `tc -batch` inside a host's network."""
    ip = [
        "link set dev lo up",
        f"address add {slot.address}/24 dev {DEVICE}",
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


def possible() -> tuple[str, str, str]:
    """Return the kind of namespaces and the queue that work on this machine, or "" and the reason if none does.

    Each is tried in a temporary namespace: a kernel or container has no other way to report what it allows.
    """
    if missing := [name for name in NEEDED if not program(name)]:
        return "", "", f"{', '.join(missing)} missing (apt-get install iproute2 util-linux)"
    kind = "root" if os.getuid() == 0 else "user"
    before = (
        [program("unshare"), "--net"] if kind == "root" else [program("unshare"), "--user", "--map-root-user", "--net"]
    )
    links = (
        f"{program('ip')} link add name lka type veth peer name lkb && {program('ip')} link add name lkc type bridge"
    )
    if error := _fails([*before, "sh", "-c", links]):
        sysctl = (
            ""
            if kind == "root"
            else "; user namespaces may be off: sysctl kernel.apparmor_restrict_unprivileged_userns"
        )
        return "", "", f"no networks of one's own here ({error}){sysctl}"
    for qdisc in QDISCS:
        limited = " && ".join(f"{program('tc')} {line}" for line in limit("lka", gbps=0.1, qdisc=qdisc))
        error = _fails([*before, "sh", "-c", f"{links} && {limited}"])
        if not error:
            return kind, qdisc, ""
    return "", "", f"this kernel has neither of {', '.join(QDISCS)} ({error})"


def free_subnet(token: str) -> int:
    """Return a network of 256 addresses that this machine does not use."""
    output = subprocess.run([program("ip"), "-4", "-o", "address"], capture_output=True, text=True, check=False).stdout
    first = int(token[:2], 16)
    return next(n % 256 for n in range(first, first + 256) if f" {PREFIX}.{n % 256}." not in output)


def build(plan: BedPlan, *, qdisc: str) -> None:
    """Make the hosts' networks, and the links between them; BedError if the kernel refuses, with its error."""
    plan.make_folders()
    held = [hold(plan, slot) for slot in plan.slots] if plan.network == "root" else _held_by_user(plan)
    ip, tc = bridge_commands(plan, processes=[each.pid for each in held], qdisc=qdisc)
    _batch(outside(plan), ip, tc)
    for slot, each in zip(plan.slots, held, strict=True):
        _batch(_enter(each.pid, user=plan.network == "user"), *host_commands(plan, slot, qdisc=qdisc))
    write_private(plan.folder / DONE, f"{qdisc}\n")


def _held_by_user(plan: BedPlan) -> list[BedProcess]:
    keep = [program("unshare"), "--user", "--map-root-user", "--net"]
    _hold(plan, keep, plan.folder / "keeper")
    return [hold(plan, slot) for slot in plan.slots]


def hold(plan: BedPlan, slot: HostSlot) -> BedProcess:
    """Start the process that keeps a host's network."""
    return _hold(plan, [*outside(plan), program("unshare"), "--net"], plan.control(slot) / "holder")


def _hold(plan: BedPlan, before: Sequence[str], path: Path) -> BedProcess:
    """Start a process that keeps a namespace; return it once it has written its number."""
    line = shlex.join([program("setsid"), *before, "sh", "-c", HOLD, "sh", str(path)])
    environment = os.environ | {VARIABLE: plan.token}
    log = path.with_name(f"{path.name}.log")
    started = subprocess.run(
        ["sh", "-c", f"{line} </dev/null >{shlex.quote(str(log))} 2>&1 &"], env=environment, check=False
    )
    found: list[BedProcess | None] = [None]

    def kept() -> bool:
        found[0] = keeper(path)  # in the middle of an exec a process shows nothing of itself
        return found[0] is not None or (log.exists() and log.stat().st_size > 0)

    if started.returncode or not await_that(kept, timeout_s=PATIENCE_S) or found[0] is None:
        log_text = log.read_text(errors="replace").strip() if log.exists() else ""
        raise BedError(f"the process that keeps a network does not start: {log_text or before}.")
    return found[0]


def keeper(path: Path) -> BedProcess | None:
    """Return the process that keeps a namespace; None if it is gone."""
    try:
        found = process(int(path.read_text()))
    except (OSError, ValueError):
        return None
    return found if found is not None and (FOR_EVER in found.command or str(path) in found.command) else None


def whole(plan: BedPlan) -> bool:
    """Return whether all networks of a bed exist."""
    if plan.network == "loopback":
        return True
    if not (plan.folder / DONE).exists():
        return False
    paths = [plan.control(slot) / "holder" for slot in plan.slots]
    paths += [plan.folder / "keeper"] if plan.network == "user" else []
    return all(keeper(path) is not None for path in paths)


def entry(plan: BedPlan) -> Callable[[HostSlot], list[str]]:
    """Return a function that gives the prefix of a command for a host's network."""

    def words(slot: HostSlot) -> list[str]:
        if plan.network == "loopback":
            return []
        enter = _enter(_pid(plan.control(slot) / "holder"), user=plan.network == "user")
        if plan.network == "root":
            return enter
        # sshd as "root" of a user namespace dies, for it may not change groups: so it is the ordinary user again
        return [*enter, program("unshare"), "--user", f"--map-user={os.getuid()}", f"--map-group={os.getgid()}"]

    return words


def outside(plan: BedPlan) -> list[str]:
    """Return the prefix of a command for the network of the bridge."""
    return [] if plan.network == "root" else _enter(_pid(plan.folder / "keeper"), user=True)


def proxy_command(plan: BedPlan, *, python: str) -> str:
    """Return the proxy program for the hosts' servers; empty if they can be reached directly."""
    if plan.network != "user":
        return ""
    return shlex.join([*outside(plan), python, "-I", "-S", str(PIPE), "%h", "%p"])


def remove(plan: BedPlan) -> None:
    """Remove the bridge and its ends of links; the rest ends with the processes that keep it."""
    if plan.network == "root":
        for name in [bridge(plan), *(port_of(plan, slot) for slot in plan.slots)]:
            subprocess.run([program("ip"), "link", "delete", "dev", name], capture_output=True, check=False)


def _enter(pid: int, *, user: bool) -> list[str]:
    return [program("nsenter"), "-t", str(pid), "--net", *(["--user", "--preserve-credentials"] if user else [])]


def _pid(path: Path) -> int:
    found = keeper(path)
    if found is None:
        raise BedError(f"the process that keeps a network of the bed is gone ({path}); labkit bed down, then up.")
    return found.pid


def _batch(before: Sequence[str], ip: Sequence[str], tc: Sequence[str]) -> None:
    for name, lines in (("ip", ip), ("tc", tc)):
        done = subprocess.run(
            [*before, program(name), "-batch", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BedError(f"{name} refuses a command: {done.stderr.strip() or done.stdout.strip()}")


def _fails(command: Sequence[str]) -> str:
    """Return the error output of a command; empty if it succeeds."""
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else ""
    return "no answer"


def rates(folder: Path) -> dict[str, str]:
    """Return the rate of each host's link according to the kernel: to the host, and from it.

    Raise InputError if the bed's links have no limits.
    """
    plan = _shaped(folder)
    found = {}
    for slot in plan.slots:
        down, up = _rate(outside(plan), port_of(plan, slot)), _rate(entry(plan)(slot), DEVICE)
        found[slot.name] = f"{down} to it, {up} from it"
    return found


def reshape(folder: Path, rate: str | float, *, hosts: Collection[str]) -> float:
    """Set the link rate of some hosts, in both directions, and write it into the inventory.

    Raise InputError if it is no rate, or the bed's links have no limits; BedError if the kernel refuses.

    Parameters
    ----------
    folder : Path
        Of a bed that is up, and shaped.
    rate : str or float
        Gbps, or as `tc` writes it: "200mbit".
    hosts : collection of str
        Their names.

    Returns
    -------
    float
        Gbps.
    """
    gbps = rate_gbps(rate)
    with alone(folder):
        plan = _shaped(folder)
        for slot in plan.slots:
            if slot.name in hosts:
                _limit(outside(plan), port_of(plan, slot), gbps)
                _limit(entry(plan)(slot), DEVICE, gbps)
        if all(slot.name in hosts for slot in plan.slots):
            replace(plan, shaped_gbps=gbps).write()
        write_private(plan.hosts_file, _with_rates(plan.hosts_file.read_text(), gbps, hosts=hosts))
    return gbps


def _shaped(folder: Path) -> BedPlan:
    plan = BedPlan.read(folder)
    if plan is None or plan.shaped_gbps is None:
        raise InputError(
            f"the links of the laptop testbed in {folder} have no limits; labkit bed down, then: "
            "labkit bed up --shaped 1gbit."
        )
    return plan


def _limit(before: Sequence[str], device: str, gbps: float) -> None:
    """Replace the queue of a device by one of the same kind with another rate."""
    kind = next((kind for kind in QDISCS if f" {kind} " in _tc_show(before, "qdisc", device)), None)
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


def _tc_show(before: Sequence[str], what: str, device: str) -> str:
    return _tc(before, [what, "show", "dev", device])


def _rate(before: Sequence[str], device: str) -> str:
    found = re.search(r"\brate (\S+)", _tc_show(before, "qdisc", device) + _tc_show(before, "class", device))
    return found[1] if found else "no limit"


def _with_rates(text: str, gbps: float, *, hosts: Collection[str]) -> str:
    r"""Return an inventory with other rates for some hosts.

    >>> _with_rates('[ssh]\n\n[[hosts]]\nname = "h0"\nlink_gbps = 1.0\n', 0.5, hosts=["h0"]).splitlines()[-1]
    'link_gbps = 0.5'
    """
    head, *tables = text.split("[[hosts]]")

    def changed(table: str) -> str:
        name = re.search(r'^name = "(.*)"$', table, re.MULTILINE)
        if name is None or name[1] not in hosts:
            return table
        return re.sub(r"^link_gbps = .*$", f"link_gbps = {gbps!r}", table, flags=re.MULTILINE)

    return "[[hosts]]".join([head, *map(changed, tables)])
