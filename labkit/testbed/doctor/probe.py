"""A probe program on each host that answers questions; it needs no labkit there, and ends with the connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from labkit.testbed.doctor.findings import Finding, Severity
from labkit.testbed.errors import CutError, HostError, HostMessageError
from labkit.testbed.inventory import Machine
from labkit.testbed.onhost import source
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.frames import HostMessages, decoded, readable
from labkit.testbed.ssh.outcomes import failure
from labkit.testbed.ssh.replies import Clock, Dialled, EchoPort, HostFacts, Poured, Torch

ReplyT = TypeVar("ReplyT")

PATIENCE_S: Final = 20.0
TORCH_S: Final = 90.0
Peer = tuple[str, int, str]
"""Address, port and word of a host's echo port."""


class HostProbe:
    """The probe program on one host; it answers one question at a time.

    Parameters
    ----------
    fleet : Fleet
        Connections.
    machine : Machine
        The host.

    Raises
    ------
    HostError
        If the host cannot be reached.
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

    def dial(self, peers: Mapping[str, Peer]) -> dict[str, Dialled]:
        """Connect to the echo ports of other hosts; return the round trips by name."""
        return self._ask("dial", dict[str, Dialled], peers=[[name, *peer] for name, peer in peers.items()])

    def pour(self, peer: Peer, *, seconds: float) -> Poured:
        """Send bytes to the echo port of another host for some seconds."""
        return self._ask("pour", Poured, patience_s=PATIENCE_S + 40 * seconds, peer=list(peer), seconds=seconds)

    def _ask(self, what: str, kind: type[ReplyT], *, patience_s: float = PATIENCE_S, **more: Any) -> ReplyT:
        """Return the answer to a question.

        Raises
        ------
        HostError
            If no answer, or one of another form, arrives in time.
        """
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
def visit(fleet: Fleet) -> Iterator[DoctorSession]:
    """Return a session with a probe on every host; the probes end with it."""
    with ThreadPoolExecutor(len(fleet.inventory)) as pool:
        made = DoctorSession(fleet, pool)
        try:
            made.start()
            yield made
        finally:
            for probe in list(made.probes.values()):
                probe.close()
