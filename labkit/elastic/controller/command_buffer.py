"""Commands that the controller issues in answer to one event: all of its parts add to the same buffer."""

from __future__ import annotations

from typing import Any

from labkit.elastic.controller.controller_state import ControllerState
from labkit.elastic.protocol.commands import Command, End, Note, Start, Tell
from labkit.elastic.protocol.messages.orders import Order, WorkerOrder
from labkit.elastic.protocol.roles import Role


class CommandBuffer:
    """Commands in the order of their issue.

    Parameters
    ----------
    job : ControllerState
        With the members that commands address.
    """

    def __init__(self, job: ControllerState) -> None:
        self._job = job
        self._commands: list[Command] = []

    def add(self, command: Command) -> None:
        """Add a command."""
        self._commands.append(command)

    def launch(self, role: Role, site: str) -> str:
        """Start a new member on a site; return its name."""
        member = self._job.add_member(role, site)
        self._commands.append(Start(member.name, role, site))
        return member.name

    def end(self, name: str, *, kill: bool = False) -> None:
        """Stop a member, or kill it."""
        self._commands.append(End(name, kill=kill))

    def tell(self, to: str, order: Order) -> None:
        """Send a member an order."""
        self._commands.append(Tell(to, order))

    def tell_workers(self, order: WorkerOrder) -> None:
        """Send an order to all workers that have joined."""
        for worker in self._job.members.values():
            if worker.role == "worker" and worker.joined:
                self.tell(worker.name, order)

    def note(self, event: str, /, **columns: Any) -> None:
        """Record an event of the job."""
        self._commands.append(Note(event, columns))

    def take(self) -> list[Command]:
        """Return the commands so far, and empty the buffer."""
        commands, self._commands = self._commands, []
        return commands
