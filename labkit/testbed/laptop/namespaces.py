"""A network of its own for each host of a laptop testbed: as root, or inside a user namespace."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from labkit.testbed.errors import BedError
from labkit.testbed.laptop.plan import VARIABLE, BedPlan, Spot, write_private
from labkit.testbed.laptop.processes import BedProcess, await_that, process
from labkit.testbed.laptop.server import program
from labkit.testbed.laptop.shape import PREFIX, QDISCS, bridge, bridge_commands, host_commands, limit, port_of

NEEDED = ("ip", "tc", "nsenter", "unshare", "setsid")
PATIENCE_S = 10.0
FOR_EVER = "2147483647"
HOLD = 'echo "$$" > "$1.part" && mv "$1.part" "$1" && exec sleep ' + FOR_EVER
"""A script that keeps a namespace, and first writes its process number."""
DONE = "network"
"""A file of the bed's folder: its networks are whole."""
PIPE = Path(__file__).with_name("pipe.py")


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
    made = f"{program('ip')} link add name lka type veth peer name lkb && {program('ip')} link add name lkc type bridge"
    if error := _fails([*before, "sh", "-c", made]):
        sysctl = (
            ""
            if kind == "root"
            else "; user namespaces may be off: sysctl kernel.apparmor_restrict_unprivileged_userns"
        )
        return "", "", f"no networks of one's own here ({error}){sysctl}"
    for qdisc in QDISCS:
        limited = " && ".join(f"{program('tc')} {line}" for line in limit("lka", gbps=0.1, qdisc=qdisc))
        error = _fails([*before, "sh", "-c", f"{made} && {limited}"])
        if not error:
            return kind, qdisc, ""
    return "", "", f"this kernel has neither of {', '.join(QDISCS)} ({error})"


def free_subnet(token: str) -> int:
    """Return a network of 256 addresses that this machine does not use."""
    output = subprocess.run([program("ip"), "-4", "-o", "address"], capture_output=True, text=True, check=False).stdout
    first = int(token[:2], 16)
    return next(n % 256 for n in range(first, first + 256) if f" {PREFIX}.{n % 256}." not in output)


def build(plan: BedPlan, *, qdisc: str) -> None:
    """Make the hosts' networks, and the links between them.

    Raises
    ------
    BedError
        If the kernel refuses, with its error.
    """
    plan.make_folders()
    held = [hold(plan, spot) for spot in plan.spots] if plan.network == "root" else _held_by_user(plan)
    ip, tc = bridge_commands(plan, processes=[each.pid for each in held], qdisc=qdisc)
    _batch(outside(plan), ip, tc)
    for spot, each in zip(plan.spots, held, strict=True):
        _batch(_enter(each.pid, user=plan.network == "user"), *host_commands(plan, spot, qdisc=qdisc))
    write_private(plan.folder / DONE, f"{qdisc}\n")


def _held_by_user(plan: BedPlan) -> list[BedProcess]:
    keep = [program("unshare"), "--user", "--map-root-user", "--net"]
    _hold(plan, keep, plan.folder / "keeper")
    return [hold(plan, spot) for spot in plan.spots]


def hold(plan: BedPlan, spot: Spot) -> BedProcess:
    """Start the process that keeps a host's network."""
    return _hold(plan, [*outside(plan), program("unshare"), "--net"], plan.control(spot) / "holder")


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
    paths = [plan.control(spot) / "holder" for spot in plan.spots]
    paths += [plan.folder / "keeper"] if plan.network == "user" else []
    return all(keeper(path) is not None for path in paths)


def entry(plan: BedPlan) -> Callable[[Spot], list[str]]:
    """Return a function that gives the prefix of a command for a host's network."""

    def words(spot: Spot) -> list[str]:
        if plan.network == "loopback":
            return []
        enter = _enter(_pid(plan.control(spot) / "holder"), user=plan.network == "user")
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
        for name in [bridge(plan), *(port_of(plan, spot) for spot in plan.spots)]:
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
