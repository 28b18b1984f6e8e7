"""The nouns of the shard service: ranges of samples that wait, are leased, are committed, and tokens."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

Worker = int | str
"""A worker's number or name."""

TOKEN_BITS: Final = 40
"""A token is a number that counts up, with the generation of the service above these bits."""


class ReturnReason(NamedTuple):
    """Why a range came back."""

    worker: Worker
    reason: str


class PendingRange(NamedTuple):
    """A range of an epoch's order that waits or was set aside, and why it came back so far.

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
        """Return the range with one more try behind it."""
        return self._replace(faults=(*self.faults, ReturnReason(worker, reason)))


class ShardLease(NamedTuple):
    """What a worker may work on, until when.

    Attributes
    ----------
    token : int
        Names this lease, never used again; to commit, renew or fail it.
    worker : int or str
        Whose it is.
    epoch, start, end : int
        Positions `start` to before `end` of the order of the epoch; `ShardService.indices` says which samples.
    deadline_s : float
        Unless it is renewed by then, somebody else may get the range.
    faults : tuple of ReturnReason
        Tries before this one.
    since_s : float, optional
        When it was given; None where the clock of that time is gone.
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
        """Samples."""
        return self.end - self.start

    def piece(self) -> PendingRange:
        """Return its range."""
        return PendingRange(self.epoch, self.start, self.end, self.faults)


class Commit(NamedTuple):
    """One row of the ledger: positions `start` to before `end` of the order of an epoch have had their effect.

    `step` is the update they went into, -1 where nobody said. A row with an empty worker and token -1 stands for all
    that was committed before the state from which a service was restored.
    """

    epoch: int
    start: int
    end: int
    worker: Worker
    token: int
    step: int = -1


class Fate(StrEnum):
    """What has become of a lease; every answer to a token is one of these."""

    HELD = "held"
    """It is in force."""
    COMMITTED = "committed"
    """Its samples are in the ledger, under this token."""
    EXPIRED = "expired"
    """Nobody renewed it in time: its range goes to somebody else."""
    FAILED = "failed"
    """Its worker could not do it."""
    LEFT = "left"
    """Its worker left."""
    STALE = "stale"
    """It was given before training went back to a checkpoint, or by a service that is not this one."""
    UNKNOWN = "unknown"
    """No such lease was ever given."""


class ShardStatus(StrEnum):
    """How far all epochs are."""

    RUNNING = "running"
    """There is work, now or when leases that are out come back."""
    POISONED = "poisoned"
    """A range failed too often; nothing is leased until `retry`."""
    SET_ASIDE = "set aside"
    """All is committed, but for the ranges that were set aside."""
    COMPLETE = "complete"
    """Every sample of every epoch is committed, once."""
