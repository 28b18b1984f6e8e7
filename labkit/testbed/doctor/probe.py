"""One program on each host that answers questions; it needs no labkit there, and ends with the connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from labkit.testbed.doctor.findings import Finding, Severity
from labkit.testbed.errors import CutError, HostError, HostMessageError
from labkit.testbed.inventory import Machine
from labkit.testbed.onhost import source
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.frames import HostMessages, decoded, readable
from labkit.testbed.ssh.outcomes import failure
from labkit.testbed.ssh.replies import Clock, Dialled, EchoPort, HostFacts, Poured, Torch

PATIENCE_S = 20.0
KINDS: Final[dict[str, Any]] = {
    "clock": Clock, "facts": HostFacts, "torch": Torch, "listen": EchoPort, "dial": dict[str, Dialled], "pour": Poured,
}  # fmt: skip
"""What each question is answered with."""


class HostProbe:
    """The program on one host, which answers one question at a time.

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
        """What the login's shell said before the program began."""
        return self._stream.noise

    def ask(self, what: str, *, patience_s: float = PATIENCE_S, **more: Any) -> dict[str, Any]:
        """Return the answer to a question.

        Raises
        ------
        HostError
            If none came.
        """
        self._stream.within(patience_s)
        try:
            self._stream.write(json.dumps({"ask": what, **more}).encode() + b"\n")
            content = self._frames.message()
            decoded(content, KINDS[what])
            answer: dict[str, Any] = json.loads(content)
            return answer
        except TimeoutError:
            raise CutError(f"no answer to '{what}' within {patience_s:g} s") from None
        except HostMessageError as error:
            if self._stream.wait(0.0) is None:
                raise HostMessageError(f"'{what}': {error}") from None
        except BrokenPipeError:
            pass  # why, its error output tells
        said = self._stream.errors.strip().splitlines()[-1:]
        raise HostError(f"{self.machine.python} ended" + "".join(f": {readable(line)}" for line in said))

    def close(self) -> None:
        """End the program."""
        self._stream.close()


class DoctorSession:
    """All hosts that answer, and what was found so far."""

    def __init__(self, fleet: Fleet, pool: ThreadPoolExecutor) -> None:
        self.fleet, self._pool = fleet, pool
        self.findings: dict[str, list[Finding]] = {machine.name: [] for machine in fleet.inventory}
        self.examiners: dict[str, HostProbe] = {}

    def meet(self) -> None:
        """Start the program on every host."""

        def one(machine: Machine) -> None:
            try:
                self.examiners[machine.name] = HostProbe(self.fleet, machine)
            except HostError as error:
                told = failure(machine.name, error)
                self.findings[machine.name] = [Finding(machine.name, "reach", Severity.FAULT, told.did, told.hint)]

        list(self._pool.map(one, self.fleet.inventory))

    def each(self, look: Callable[[HostProbe], list[Finding]]) -> None:
        """Look at something on every host at once; who does not answer is not asked again."""

        def one(name: str) -> list[Finding]:
            try:
                return look(self.examiners[name])
            except HostError as error:
                self.examiners.pop(name).close()
                hint = "name a Python that is there in the inventory: ssh = { python = ... }; else look at the host"
                hint = failure(name, error).hint if isinstance(error, HostMessageError) else hint
                return [Finding(name, "reach", Severity.FAULT, str(error), hint)]

        names = [machine.name for machine in self.fleet.inventory if machine.name in self.examiners]
        for name, found in zip(names, self._pool.map(one, names), strict=True):
            self.findings[name] += found


@contextmanager
def visit(fleet: Fleet) -> Iterator[DoctorSession]:
    """Return all hosts that answer, each with a program that can be asked; it ends with the visit."""
    with ThreadPoolExecutor(len(fleet.inventory)) as pool:
        made = DoctorSession(fleet, pool)
        try:
            made.meet()
            yield made
        finally:
            for examiner in list(made.examiners.values()):
                examiner.close()
