"""Examine the hosts of a testbed: a probe program on each answers questions, and findings are made from its facts.

The program needs no labkit there, and ends with the connection.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import TYPE_CHECKING, Any, Final, TypeVar

from labkit.testbed.errors import CutError, HostError, HostMessageError
from labkit.testbed.install import build
from labkit.testbed.inventory import Inventory, Machine
from labkit.testbed.onhost import source
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.host_messages import (
    BandwidthResult,
    Clock,
    ConnectResult,
    Deployed,
    EchoPort,
    HostFacts,
    HostMessages,
    Torch,
    decoded,
)
from labkit.testbed.ssh.outcomes import failure, plain_table, readable

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

OLDEST_PYTHON = (3, 11)
ROOM_GB, LITTLE_ROOM_GB = 0.5, 5.0
LATE_S, WRONG_TIME_S = 0.1, 3600.0
"""Clock offsets from which events look out of order, and from which certificates of a job may not hold."""
ANY_TYPE = "gpu"
"""Values of `device_type` that name no kind of GPU."""
WORD = re.compile(r"[a-z0-9]+")
MEMORY_SLACK = 0.9
"""What a machine sold as 64 GB shows of it."""
ReplyT = TypeVar("ReplyT")
PATIENCE_S: Final = 20.0
TORCH_S: Final = 90.0
Peer = tuple[str, int, str]
"""Address, port and word of a host's echo port."""
CLOCK_ROUNDS = 5


class Severity(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    NOTE = "note"
    """Jobs run; something is missing, or not as the inventory says."""
    FAULT = "fault"
    """Jobs cannot run there."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check on one host.

    Attributes
    ----------
    host, check : str
        The host, and the check: a heading of the table.
    state : Severity
        Its severity.
    found : str
        The result in a few words.
    hint : str
        Remedy; empty if all is well.
    """

    host: str
    check: str
    state: Severity
    found: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class HostExpectation:
    """What the inventory says about a host, as far as it can be checked."""

    name: str
    python: str
    folder: str
    """`python` and `folder`: its interpreter and labkit's folder there."""
    gpus: int
    cpus: float
    memory_gb: float
    """`cpus` and `memory_gb`: as the inventory has them."""
    hash: str
    """Hash of the labkit here."""
    pretends: bool = False
    """Whether its GPUs are not real: device_type is laptop, cpu or none."""
    device_type: str = ANY_TYPE


class DoctorReport:
    """Findings of all hosts; a notebook shows them as a table."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)

    @property
    def ok(self) -> bool:
        """Return whether jobs can run on every host."""
        return all(finding.state != Severity.FAULT for finding in self.findings)

    @property
    def hosts(self) -> list[str]:
        """Return the names of the hosts."""
        return list(dict.fromkeys(finding.host for finding in self.findings))

    @property
    def faulty(self) -> list[str]:
        """Return the names of the hosts on which jobs cannot run."""
        return list(dict.fromkeys(each.host for each in self.findings if each.state == Severity.FAULT))

    def df(self) -> pd.DataFrame:
        """Return one row per finding: host, check, state, found, hint."""
        import pandas as pd

        columns = ("host", "check", "state", "found", "hint")
        return pd.DataFrame([[str(getattr(each, name)) for name in columns] for each in self.findings], columns=columns)

    def table(self) -> Table:
        """Return a row per host for a terminal."""
        from rich.text import Text

        styles = {Severity.OK: "", Severity.NOTE: "yellow", Severity.FAULT: "bold red"}
        checks = list(dict.fromkeys(finding.check for finding in self.findings))
        cells = {(each.host, each.check): each for each in self.findings}
        shown = plain_table("host", *checks)
        for host in self.hosts:
            row = [cells.get((host, check)) for check in checks]
            shown.add_row(Text(host), *(Text(each.found, styles[each.state]) if each else Text("–") for each in row))
        return shown

    def hints(self) -> Table:
        """Return findings that are not well, the worst first, each with its remedy."""
        from rich.text import Text

        shown = plain_table("", "host", "what", "hint")
        styles = {Severity.FAULT: "bold red", Severity.NOTE: "yellow"}
        for state in styles:
            for each in self.findings:
                if each.state == state:
                    shown.add_row(
                        Text(state, styles[state]),
                        Text(each.host),
                        Text(f"{each.check}: {each.found}"),
                        Text(each.hint),
                    )
        return shown

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(str(part))}</td>" for part in row) + "</tr>"
            for row in self.df().itertuples(index=False)
        )
        return f"<table><tr><th>host<th>check<th>state<th>found<th>hint</tr>{rows}</table>"


def check_facts(wanted: HostExpectation, facts: HostFacts) -> list[Finding]:
    """Return findings from the facts of one host and the inventory."""
    return [
        _python(wanted, facts),
        _folder(wanted, facts),
        _disk(wanted, facts),
        _deployed(wanted, facts.deployed),
        _gpus(wanted, facts.gpus),
        _cores(wanted, facts),
        _memory(wanted, facts),
        *([Finding(wanted.name, "limits", Severity.OK, facts.limits)] if facts.limits else []),
        _agent(wanted, facts.agent),
    ]


def _python(wanted: HostExpectation, facts: HostFacts) -> Finding:
    parts = tuple(int(part) for part in facts.python.split(".")[:2])
    if parts >= OLDEST_PYTHON:
        return Finding(wanted.name, "python", Severity.OK, facts.python)
    oldest = ".".join(map(str, OLDEST_PYTHON))
    hint = f'name Python {oldest} or newer in the inventory: ssh = {{ python = "python{oldest}" }}'
    return Finding(wanted.name, "python", Severity.FAULT, facts.python, hint)


def _folder(wanted: HostExpectation, facts: HostFacts) -> Finding:
    mode = facts.mode
    if not facts.writable:
        hint = "give the host a folder in the inventory that its user may write"
        return Finding(wanted.name, "folder", Severity.FAULT, f"{facts.folder} cannot be written", hint)
    if mode is not None and mode & 0o077:
        hint = f"on the host: chmod 700 {facts.folder}"
        return Finding(wanted.name, "folder", Severity.FAULT, f"{facts.folder} is open to others ({mode:o})", hint)
    return Finding(wanted.name, "folder", Severity.OK, "private" if mode is not None else "new")


def _disk(wanted: HostExpectation, facts: HostFacts) -> Finding:
    free = facts.free_gb
    state = Severity.FAULT if free < ROOM_GB else Severity.NOTE if free < LITTLE_ROOM_GB else Severity.OK
    hint = (
        "make room there (`fab gc`), or give the host another folder in the inventory" if state != Severity.OK else ""
    )
    return Finding(wanted.name, "disk", state, f"{free:.1f} GB free", hint)


def _deployed(wanted: HostExpectation, deployed: Deployed) -> Finding:
    if not deployed.hash:
        return Finding(wanted.name, "labkit", Severity.NOTE, "not deployed", "fab install")
    if deployed.hash != wanted.hash:
        return Finding(wanted.name, "labkit", Severity.NOTE, f"{deployed.hash[:8]}, not as here", "fab install")
    return Finding(wanted.name, "labkit", Severity.OK, f"{deployed.hash[:8]}, as here")


def _gpus(wanted: HostExpectation, found: Sequence[str]) -> Finding:
    kinds = sorted({line.split(",")[0].strip() for line in found})
    found_text = f"{len(found)}" + (f" {', '.join(kinds)}" if kinds else "")
    if wanted.pretends:
        unused = f', {len(found)} real ones left alone: device_type = "{wanted.device_type}"' if found else ""
        return Finding(wanted.name, "GPUs", Severity.OK, f"{wanted.gpus} in the inventory only{unused}")
    if len(found) < wanted.gpus:
        hint = f"the inventory says {wanted.gpus}; on the host: nvidia-smi, or correct the inventory"
        return Finding(wanted.name, "GPUs", Severity.FAULT, found_text, hint)
    hints = [f"the inventory says {wanted.gpus}; the others are left alone"] if len(found) > wanted.gpus else []
    hints += [other_type(wanted.device_type, kind) for kind in kinds if wanted.gpus]
    hint = "; ".join(filter(None, hints))
    return Finding(wanted.name, "GPUs", Severity.NOTE if hint else Severity.OK, found_text, hint)


def other_type(device_type: str, name: str) -> str:
    """Return how a GPU differs from the inventory's type; empty if its name has all words of the type.

    >>> other_type("v100", "Tesla V100-SXM2-16GB"), other_type("a100-80gb", "NVIDIA A100-SXM4-80GB")
    ('', '')
    >>> other_type("t4", "Tesla V100-SXM2-16GB")
    "the inventory calls them t4, the driver 'Tesla V100-SXM2-16GB': speeds by type will be those of t4"
    """
    known = "".join(WORD.findall(name.casefold()))
    if device_type == ANY_TYPE or all(word in known for word in WORD.findall(device_type.casefold())):
        return ""
    return f"the inventory calls them {device_type}, the driver {name!r}: speeds by type will be those of {device_type}"


def _cores(wanted: HostExpectation, facts: HostFacts) -> Finding:
    short = facts.cores < wanted.cpus
    hint = f"the inventory says {wanted.cpus:g}; jobs will share cores" if short else ""
    return Finding(wanted.name, "cores", Severity.NOTE if short else Severity.OK, f"{facts.cores}", hint)


def _memory(wanted: HostExpectation, facts: HostFacts) -> Finding:
    short = facts.memory_gb < MEMORY_SLACK * wanted.memory_gb
    hint = f"the inventory says {wanted.memory_gb:g} GB; correct it" if short else ""
    return Finding(wanted.name, "memory", Severity.NOTE if short else Severity.OK, f"{facts.memory_gb:.0f} GB", hint)


def _agent(wanted: HostExpectation, state: str) -> Finding:
    if state == "dead":
        return Finding(wanted.name, "agent", Severity.NOTE, "ended, socket left", "fab start starts it again")
    return Finding(wanted.name, "agent", Severity.OK, "alive" if state == "alive" else "starts when needed")


def check_torch(wanted: HostExpectation, torch: Torch, *, deployed: bool) -> Finding:
    """Return a finding from an import of torch."""
    if torch.error:
        state, hint = (Severity.FAULT, "look at what failed; ") if deployed else (Severity.NOTE, "")
        return Finding(wanted.name, "torch", state, torch.error, hint + "`fab install` installs it")
    if torch.gpus < wanted.gpus and not wanted.pretends:
        hint = f"it should see {wanted.gpus}: install a build of torch for this driver"
        return Finding(wanted.name, "torch", Severity.FAULT, f"{torch.version} sees {torch.gpus} GPUs", hint)
    return Finding(wanted.name, "torch", Severity.OK, torch.version)


def check_reach(wanted: HostExpectation, *, trip_s: float, noise: bytes = b"") -> Finding:
    """Return a finding on a host that was reached; `noise`: output of its login shell before each command."""
    found_text = f"{trip_s * 1e3:.1f} ms"
    if not noise.strip():
        return Finding(wanted.name, "reach", Severity.OK, found_text)
    line = readable(noise.strip().splitlines()[0])[:60]
    hint = "labkit drops it; scp and rsync may not. In the shell's rc file, write only to a terminal: [ -t 1 ]"
    return Finding(wanted.name, "reach", Severity.NOTE, f"{found_text}; its login shell writes {line!r}", hint)


def check_clock(wanted: HostExpectation, *, offset_s: float, bound_s: float) -> Finding:
    """Return a finding on the clock of a host against the one here, known to half a round trip.

    `wanted`: the host. `offset_s`: time of the host minus the time here. `bound_s`: largest error of the offset.
    """
    beyond = abs(offset_s) - bound_s
    state = Severity.FAULT if beyond > WRONG_TIME_S else Severity.NOTE if beyond > LATE_S else Severity.OK
    found_text = f"{offset_s * 1e3:+.1f} ms ± {bound_s * 1e3:.1f}" if abs(offset_s) < 1 else f"{offset_s:+.1f} s"
    hint = "set it there: `timedatectl set-ntp true`, or chrony" if state != Severity.OK else ""
    return Finding(wanted.name, "clock", state, found_text, hint)


def check_ports(
    wanted: HostExpectation, address: str, trips: Mapping[str, ConnectResult], *, error: str = ""
) -> Finding:
    """Return a finding on the connections of a host to all others, at any port.

    Parameters
    ----------
    wanted : HostExpectation
        The host.
    address : str
        Address that it listened on.
    trips : mapping
        Host -> round trip to it, or why it failed.
    error : str
        Why it could not listen.
    """
    if error:
        hint = f"{address} must be an address of the host itself: jobs listen there; correct the inventory"
        return Finding(wanted.name, "ports", Severity.FAULT, error, hint)
    shut = [f"{name} ({each.error})" for name, each in trips.items() if each.error is not None]
    if shut:
        hint = "open TCP between the hosts (a firewall?), or name addresses of a network that they share"
        return Finding(wanted.name, "ports", Severity.FAULT, f"cannot reach {', '.join(shut)}", hint)
    slowest = max((each.rtt_s or 0.0 for each in trips.values()), default=0.0)
    found_text = f"{len(trips)} of {len(trips)} within {slowest * 1e3:.1f} ms" if trips else "no other host"
    return Finding(wanted.name, "ports", Severity.OK, found_text)


class HostProbe:
    """The probe program on one host; it answers one question at a time.

    Raise HostError if the host cannot be reached. `fleet`: connections. `machine`: the host.
    """

    def __init__(self, fleet: Fleet, machine: Machine) -> None:
        self.machine = machine
        self._stream = fleet.stream(machine, [machine.python, "-c", source("examine"), machine.folder])
        self._frames = HostMessages(self._stream)

    @property
    def noise(self) -> bytes:
        """Output of the login shell before the program began."""
        return self._stream.noise

    def clock(self) -> Clock:
        """Return the time of the host."""
        return self._ask("clock", Clock)

    def facts(self) -> HostFacts:
        """Return facts about the host."""
        return self._ask("facts", HostFacts)

    def torch(self) -> Torch:
        """Return the result of an import of torch, which takes seconds."""
        return self._ask("torch", Torch, patience_s=TORCH_S)

    def listen(self, address: str) -> EchoPort:
        """Open an echo port at an address of the host."""
        return self._ask("listen", EchoPort, host=address)

    def dial(self, peers: Mapping[str, Peer]) -> dict[str, ConnectResult]:
        """Connect to the echo ports of other hosts; return the round trips by name."""
        return self._ask("dial", dict[str, ConnectResult], peers=[[name, *peer] for name, peer in peers.items()])

    def pour(self, peer: Peer, *, seconds: float) -> BandwidthResult:
        """Send bytes to the echo port of another host for some seconds."""
        return self._ask(
            "pour", BandwidthResult, patience_s=PATIENCE_S + 40 * seconds, peer=list(peer), seconds=seconds
        )

    def _ask(self, what: str, kind: type[ReplyT], *, patience_s: float = PATIENCE_S, **more: Any) -> ReplyT:
        """Return the answer to a question; HostError if no answer, or one of another form, arrives in time."""
        self._stream.within(patience_s)
        try:
            self._stream.write(json.dumps({"ask": what, **more}).encode() + b"\n")
            return decoded(self._frames.message(), kind)
        except TimeoutError:
            raise CutError(f"no answer to '{what}' within {patience_s:g} s") from None
        except HostMessageError as error:
            if self._stream.wait(0.0) is None:
                raise HostMessageError(f"'{what}': {error}") from None
        except BrokenPipeError:
            pass  # its error output has the reason
        last = self._stream.errors.strip().splitlines()[-1:]
        raise HostError(f"{self.machine.python} ended" + "".join(f": {readable(line)}" for line in last))

    def close(self) -> None:
        """End the program."""
        self._stream.close()


class DoctorSession:
    """All hosts that answer, and the findings so far."""

    def __init__(self, fleet: Fleet, pool: ThreadPoolExecutor) -> None:
        self.fleet, self._pool = fleet, pool
        self.findings: dict[str, list[Finding]] = {machine.name: [] for machine in fleet.inventory}
        self.probes: dict[str, HostProbe] = {}

    def start(self) -> None:
        """Start the program on every host."""

        def one(machine: Machine) -> None:
            try:
                self.probes[machine.name] = HostProbe(self.fleet, machine)
            except HostError as error:
                outcome = failure(machine.name, error)
                finding = Finding(machine.name, "reach", Severity.FAULT, outcome.did, outcome.hint)
                self.findings[machine.name] = [finding]

        list(self._pool.map(one, self.fleet.inventory))

    def each(self, look: Callable[[HostProbe], list[Finding]]) -> None:
        """Run a check on every host at once; a host that fails to answer is left out from then on."""

        def one(name: str) -> list[Finding]:
            try:
                return look(self.probes[name])
            except HostError as error:
                self.probes.pop(name).close()
                hint = "name a Python that is there in the inventory: ssh = { python = ... }; else look at the host"
                hint = failure(name, error).hint if isinstance(error, HostMessageError) else hint
                return [Finding(name, "reach", Severity.FAULT, str(error), hint)]

        names = [machine.name for machine in self.fleet.inventory if machine.name in self.probes]
        for name, found in zip(names, self._pool.map(one, names), strict=True):
            self.findings[name] += found


@contextmanager
def probe_hosts(fleet: Fleet) -> Iterator[DoctorSession]:
    """Return a session with a probe on every host; the probes end with it."""
    with ThreadPoolExecutor(len(fleet.inventory)) as pool:
        session = DoctorSession(fleet, pool)
        try:
            session.start()
            yield session
        finally:
            for probe in list(session.probes.values()):
                probe.close()


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
    wanted = {machine.name: expectation_of(machine, hash) for machine in fleet.inventory}
    ports: dict[str, EchoPort] = {}

    def listen(probe: HostProbe) -> list[Finding]:
        ports[probe.machine.name] = probe.listen(probe.machine.address)
        return []

    with probe_hosts(fleet) as hosts:
        hosts.each(lambda probe: _clock(probe, wanted[probe.machine.name]))
        hosts.each(lambda probe: _facts(probe, wanted[probe.machine.name], torch=torch))
        hosts.each(listen)
        hosts.each(lambda probe: _connect(probe, wanted[probe.machine.name], fleet.inventory, ports))
    return DoctorReport(finding for found in hosts.findings.values() for finding in found)


def expectation_of(machine: Machine, hash: str) -> HostExpectation:
    """Return the inventory's values of a host that can be checked there."""
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
    reach = check_reach(wanted, trip_s=trip_s, noise=probe.noise)
    return [reach, check_clock(wanted, offset_s=offset_s, bound_s=trip_s / 2)]


def _facts(probe: HostProbe, wanted: HostExpectation, *, torch: bool) -> list[Finding]:
    facts = probe.facts()
    found = check_facts(wanted, facts)
    if torch:
        found.append(check_torch(wanted, probe.torch(), deployed=bool(facts.deployed.hash)))
    return found


def _connect(
    probe: HostProbe, wanted: HostExpectation, inventory: Inventory, ports: dict[str, EchoPort]
) -> list[Finding]:
    others = {machine.name: machine.address for machine in inventory if machine.name != wanted.name}
    peers = {
        name: (others[name], each.port, each.word)
        for name, each in ports.items()
        if name in others and each.port is not None
    }
    error = ports[wanted.name].error or ""
    return [check_ports(wanted, probe.machine.address, probe.dial(peers), error=error)]
