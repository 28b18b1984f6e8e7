"""The state of a running job: phase, step, loss, members, and members that were lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from labkit.elastic.controller.job_files import LOST_KNOWN
from labkit.elastic.controller.losses import decoded
from labkit.elastic.protocol.messages.clients import JobStatus, LostMember, MemberStatus


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
    def of(cls, answer: JobStatus) -> Self:
        """Return the status that a controller answered."""
        loss = None if answer.loss is None else decoded(answer.loss)
        return cls(answer.phase, answer.step, loss, answer.members, answer.lost)

    @classmethod
    def at_end(cls, events: Iterable[Mapping[str, Any]]) -> Self:
        """Return the status of a job that is over, from its events."""
        known = list(events)
        losses = [event for event in known if event["event"] == "loss"]
        last: Mapping[str, Any] = max(losses, key=lambda e: int(e["version"]), default={"version": -1, "loss": None})
        gone = [event for event in known if event["event"] == "left" and not event["expected"]]
        lost = [LostMember(*(event[of.name] for of in fields(LostMember))) for event in gone]
        return cls("over", last["version"] + 1, last["loss"], [], lost[-LOST_KNOWN:])
