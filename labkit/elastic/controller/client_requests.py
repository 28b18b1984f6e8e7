"""Requests of clients, which the process that started the job sends: scale, balance, resize, status and stop."""

from __future__ import annotations

import contextlib
from typing import Final, assert_never

from labkit.core.errors import InputError
from labkit.elastic.controller.controller_state import Member
from labkit.elastic.controller.event_loop import ControllerRuntime
from labkit.elastic.controller.member_processes import MemberProcesses
from labkit.elastic.controller.resource_use import ResourceUse
from labkit.elastic.protocol.commands import Command
from labkit.elastic.protocol.messages.clients import (
    Accepted,
    BalanceJob,
    ClientAnswer,
    ClientRequest,
    GetStatus,
    JobStatus,
    MemberStatus,
    ResizeMembers,
    ScaleJob,
    ScalingAccepted,
    StopJob,
)
from labkit.elastic.protocol.messages.codec import MessageError, decode, encode
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
            answer = self._answer(decode(ClientRequest, message.meta))
        except (InputError, MessageError) as error:
            with contextlib.suppress(TransportError):
                channel.refuse(message, str(error))
        else:
            with contextlib.suppress(TransportError):
                channel.reply(message, meta=encode(answer))

    def _answer(self, request: ClientRequest) -> ClientAnswer:
        match request:
            case GetStatus():
                return self._status()
            case StopJob():
                self._runtime.execute(self._machine.stop(save=request.save))
                return Accepted()
            case ResizeMembers():
                self._resources.resize(request.limits)
                return Accepted()
            case ScaleJob() | BalanceJob():
                return ScalingAccepted(self._scaling(request))
            case _:
                assert_never(request)

    def _scaling(self, request: ScaleJob | BalanceJob) -> int:
        """Return the number of a scaling; one that a client repeats on another connection is carried out once."""
        if request.id not in self.scalings:
            commands = self._scale(request)
            known = dict(list(self.scalings.items())[-REQUESTS_KNOWN:])
            self.scalings = {**known, request.id: self._machine.requests.n_asked}
            self._runtime.execute(commands)
        return self.scalings[request.id]

    def _scale(self, request: ScaleJob | BalanceJob) -> list[Command]:
        if isinstance(request, BalanceJob):
            return self._machine.balance(strategy=request.strategy)
        return self._machine.scale(
            servers=request.servers, workers=request.workers, replace=request.replace, place=request.place,
            strategy=request.strategy,
        )  # fmt: skip

    def _status(self) -> JobStatus:
        """Return progress, and the members that are not leaving."""
        job, events = self._machine.job, self._runtime.events
        members = [self._member(m) for m in (*job.of("server"), *job.of("worker"))]
        return JobStatus(job.phase, job.progress, events.loss, members, list(events.lost))

    def _member(self, member: Member) -> MemberStatus:
        """Return a member's name, role, site, process number and connection; what it uses, and its limits."""
        used, limit = self._resources.used(member.name), self._resources.limit(member.name)
        return MemberStatus(
            member.name, member.role, member.site, self._processes.pid(member.name), member.joined, used.cores,
            used.memory_gb, limit.cpus, limit.memory_gb,
        )  # fmt: skip
