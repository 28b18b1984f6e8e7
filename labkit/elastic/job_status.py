"""The state of a running job: phase, step, loss, members, and members that were lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from labkit.elastic.controller.job_files import LOST_KNOWN
from labkit.elastic.controller.losses import decoded


class MemberStatus(NamedTuple):
    """A worker or server of a job.

    Attributes
    ----------
    name, role, site : str
        ps-0 or worker-3; "server" or "worker"; the device group that holds it.
    pid : int
        Process number on its host; 0 while it is unknown.
    joined : bool
        Whether it has connected to the controller.
    cores, memory_gb : float or None
        Cores in use over the last second or so, and GB resident; None while unknown, or where the host has no such
        figure.
    most_cores, most_gb : float or None
        Limits that `Job.resize` set; None: no limit.
    """

    name: str
    role: str
    site: str
    pid: int
    joined: bool
    cores: float | None = None
    memory_gb: float | None = None
    most_cores: float | None = None
    most_gb: float | None = None


class LostMember(NamedTuple):
    """A member that ended unexpectedly.

    Attributes
    ----------
    name, role : str
        Of the member.
    cause : str
        Name of a `labkit.core.Cause`.
    reason : str
        The cause in words.
    time : float
        Seconds since 1970, on the controller's clock.
    """

    name: str
    role: str
    cause: str
    reason: str
    time: float


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a job.

    Attributes
    ----------
    phase : str
        starting, loading, training, restoring, taking_over or over.
    step : int
        Updates that are complete.
    loss : float or None
        Loss of the newest complete step.
    members : list of MemberStatus
        Members that run or start, without those that are being removed.
    lost : list of LostMember
        Members that were lost, oldest first: the last 20 that this controller knows.
    """

    phase: str
    step: int
    loss: float | None
    members: list[MemberStatus]
    lost: list[LostMember] = field(default_factory=list)

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Self:
        """Return the status that a controller answered."""
        loss = None if answer["loss"] is None else decoded(answer["loss"])
        members = [MemberStatus(*row) for row in answer["members"]]
        return cls(answer["phase"], answer["step"], loss, members, [LostMember(*row) for row in answer["lost"]])

    @classmethod
    def at_end(cls, events: Iterable[Mapping[str, Any]]) -> Self:
        """Return the status of a job that is over, from its events."""
        known = list(events)
        losses = [event for event in known if event["event"] == "loss"]
        last: Mapping[str, Any] = max(losses, key=lambda e: int(e["version"]), default={"version": -1, "loss": None})
        gone = [event for event in known if event["event"] == "left" and not event["expected"]]
        lost = [LostMember(*(event[name] for name in LostMember._fields)) for event in gone]
        return cls("over", last["version"] + 1, last["loss"], [], lost[-LOST_KNOWN:])
