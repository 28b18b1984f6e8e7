"""The types of the shard service: ranges of samples that wait, are leased or are committed, and fates of leases."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

Worker = int | str
"""A worker's number or name."""

TOKEN_BITS: Final = 40
"""Bits of a token that hold a counter; the bits above hold the generation of the service."""


class ReturnReason(NamedTuple):
    """Why a range was returned without a commit."""

    worker: Worker
    reason: str


class PendingRange(NamedTuple):
    """A range of an epoch's order that waits or was set aside, and why it was returned so far.

    >>> print(PendingRange(epoch=1, start=64, end=128))
    samples 64 to 127 of the order of epoch 1
    """

    epoch: int
    start: int
    end: int
    faults: tuple[ReturnReason, ...] = ()

    def __str__(self) -> str:
        return f"samples {self.start} to {self.end - 1} of the order of epoch {self.epoch}"

    def failed(self, worker: Worker, *, reason: str) -> PendingRange:
        """Return the range with one more failed try."""
        return self._replace(faults=(*self.faults, ReturnReason(worker, reason)))


class ShardLease(NamedTuple):
    """A range that one worker may work on until a deadline.

    Attributes
    ----------
    token : int
        Names this lease and no other; needed to commit, renew or fail it.
    worker : int or str
        Holder of the lease.
    epoch, start, end : int
        Positions `start` to before `end` of the order of the epoch; `ShardService.indices` returns the samples.
    deadline_s : float
        Time at which it expires unless it is renewed; another worker may then get the range.
    faults : tuple of ReturnReason
        Failed tries before this one.
    since_s : float, optional
        Time at which it was given; None if that was before a restart of the clock.
    """

    token: int
    worker: Worker
    epoch: int
    start: int
    end: int
    deadline_s: float
    faults: tuple[ReturnReason, ...]
    since_s: float | None

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.end - self.start

    def piece(self) -> PendingRange:
        """Return the range of the lease."""
        return PendingRange(self.epoch, self.start, self.end, self.faults)


class Commit(NamedTuple):
    """One row of the ledger: positions `start` to before `end` of the order of an epoch.

    `step` is the update that has their gradients, -1 if not given. A row with an empty worker and token -1 stands for
    commits before the state from which a service was restored.
    """

    epoch: int
    start: int
    end: int
    worker: Worker
    token: int
    step: int = -1


class Fate(StrEnum):
    """The state of a lease, as the service answers for its token."""

    HELD = "held"
    """It is in force."""
    COMMITTED = "committed"
    """Its samples are in the ledger, with this token."""
    EXPIRED = "expired"
    """It was not renewed in time; another worker gets its range."""
    FAILED = "failed"
    """Its worker reported a failure."""
    LEFT = "left"
    """Its worker left."""
    STALE = "stale"
    """It is of another generation: training has gone back to a checkpoint since."""
    UNKNOWN = "unknown"
    """No such lease was given."""


class ShardStatus(StrEnum):
    """The progress over all epochs."""

    RUNNING = "running"
    """There is work, now or when leases in force end."""
    POISONED = "poisoned"
    """A range failed too often; nothing is leased any more."""
    SET_ASIDE = "set aside"
    """All samples are committed except ranges that were set aside."""
    COMPLETE = "complete"
    """Every sample of every epoch is committed, once."""
