"""Orders to the process of one job on its home host, over the agent there."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TypeVar

from labkit.elastic.controller.placement import JobPlacement
from labkit.elastic.protocol.messages.clients import MemberStatus
from labkit.testbed.errors import HostError
from labkit.testbed.run.agent_pool import AgentPool
from labkit.testbed.run.amounts import MemberLimits
from labkit.testbed.run.job_reader import START_S
from labkit.testbed.run.orders import (
    BalanceOrder,
    DoneReply,
    ErrorReply,
    HostHomeOrder,
    HostHomeReply,
    JobOrder,
    PlaceOrder,
    ReplaceOrder,
    ResizeOrder,
    ResizeReply,
    ScalingReply,
    StatusOrder,
    StatusReply,
    StopOrder,
    message_of,
    reply_of,
)

ReplyT = TypeVar("ReplyT")


class JobClient:
    """Sends orders to the process of one job.

    Every method may raise LabkitError: the process refuses the order, or cannot be reached.

    Parameters
    ----------
    hosts : AgentPool
        Agents of the run.
    task : str
        The job, as agents know it.
    home : callable
        Returns the host of the job's process.
    """

    def __init__(self, hosts: AgentPool, *, task: str, home: Callable[[], str]) -> None:
        self._hosts, self._task, self._home = hosts, task, home

    def place(self, place: JobPlacement, *, strategy: str) -> int:
        """Begin a scaling to a placement; return its number."""
        return self._send(PlaceOrder(place=dict(place), strategy=strategy), ScalingReply).scaling

    def resize(self, members: MemberLimits) -> None:
        """Limit members to (cores, GB) by name, and remove the limits of all others."""
        self._send(ResizeOrder(members=members), ResizeReply)

    def replace(self, members: list[str]) -> None:
        """Replace members by new processes."""
        self._send(ReplaceOrder(members=members), DoneReply)

    def balance(self) -> None:
        """Reassign the blocks of the servers by measured load."""
        self._send(BalanceOrder(), DoneReply)

    def host_home(self, host: str) -> bytes:
        """Return the folder of the launcher of another host, a tar archive."""
        return base64.b64decode(self._send(HostHomeOrder(host=host), HostHomeReply).archive)

    def stop(self) -> None:
        """Begin to end the job, with a checkpoint."""
        self._send(StopOrder(), DoneReply)

    def members(self) -> list[MemberStatus]:
        """Return the members of the job."""
        return self._send(StatusOrder(), StatusReply).members

    def _send(self, order: JobOrder, kind: type[ReplyT]) -> ReplyT:
        home = self._home()
        answer = self._hosts.agent(home).tell(
            self._hosts.run, task=self._task, message=message_of(order), timeout_s=START_S
        )
        reply = reply_of(kind, answer)
        if isinstance(reply, ErrorReply):
            raise HostError(f"job {self._task.removeprefix('job-')} on host {home}: {reply.error}")
        return reply
