"""Requests of clients, which the process that started the job sends: scale, balance, resize, status and stop."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from labkit.core.errors import InputError
from labkit.elastic.controller.controller_state import Member
from labkit.elastic.controller.event_loop import ControllerRuntime
from labkit.elastic.controller.member_processes import MemberProcesses
from labkit.elastic.controller.resource_use import ResourceUse
from labkit.elastic.protocol.commands import Command
from labkit.elastic.transport import Channel, Message, TransportError

REQUESTS_KNOWN: Final = 64
"""Requests whose repetition is recognised."""


class ClientRequests:
    """Answers requests.

    Parameters
    ----------
    runtime : ControllerRuntime
        Shared by all parts.
    processes : MemberProcesses
        Of the members, for their status.
    resources : ResourceUse
        What members use, and their limits.

    Attributes
    ----------
    scalings : dict
        Number of the scaling that each request asked for, by the id that the client gave to the request.
    """

    def __init__(self, runtime: ControllerRuntime, processes: MemberProcesses, resources: ResourceUse) -> None:
        self._runtime, self._processes, self._resources = runtime, processes, resources
        self._machine = runtime.machine
        self.scalings: dict[str, int] = {}

    def on_request(self, channel: Channel, message: Message) -> None:
        """Carry out a request and answer it; the client may have disconnected meanwhile."""
        try:
            answer = self._answer(dict(message.meta))
        except InputError as error:
            with contextlib.suppress(TransportError):
                channel.refuse(message, str(error))
        else:
            with contextlib.suppress(TransportError):
                channel.reply(message, meta=answer)

    def _answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer; a scaling that a client repeats on another connection is carried out once."""
        do = asked.get("do")
        if do == "status":
            return self._status()
        if do == "stop":
            self._runtime.execute(self._machine.stop(save=bool(asked.get("save"))))
            return {}
        if do == "resize":
            self._resources.resize(asked.get("amounts"))
            return {}
        if do not in ("scale", "balance"):
            raise InputError(f"a request '{str(do)[:40]}'; expected scale, balance, resize, status or stop.")
        request = str(asked.get("ask", ""))
        if request not in self.scalings:
            commands = self._scale(asked)
            known = dict(list(self.scalings.items())[-REQUESTS_KNOWN:])
            self.scalings = {**known, request: self._machine.requests.n_asked}
            self._runtime.execute(commands)
        return {"scaling": self.scalings[request]}

    def _scale(self, asked: Mapping[str, Any]) -> list[Command]:
        strategy = str(asked.get("strategy"))
        if asked.get("do") == "balance":
            return self._machine.balance(strategy=strategy)
        return self._machine.scale(
            servers=asked.get("servers", 0), workers=asked.get("workers", 0), replace=asked.get("replace", ()),
            place=asked.get("place"), strategy=strategy,
        )  # fmt: skip

    def _status(self) -> dict[str, Any]:
        """Return progress, and the members that are not leaving."""
        job, events = self._machine.job, self._runtime.events
        members = [self._member(m) for m in (*job.of("server"), *job.of("worker"))]
        return {
            "phase": job.phase, "step": job.progress, "loss": events.loss, "members": members,
            "lost": list(events.lost),
        }  # fmt: skip

    def _member(self, member: Member) -> list[Any]:
        """Return a member's name, role, site, process number and connection; what it uses, and its limits."""
        used, limit = self._resources.used(member.name), self._resources.limit(member.name)
        where = [member.name, member.role, member.site, self._processes.pid(member.name), member.joined]
        return [*where, used.cores, used.memory_gb, limit.cpus, limit.memory_gb]
