"""Ranges of samples that wait, are leased or are committed: the book of the shard service, also as it is saved.

LabkitError
├── PoisonShardError   a range of samples that failed too often
├── LedgerError        a sample that was committed twice, or not at all
└── InputError
    └── JournalError   a journal or a saved state that contradicts itself
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from math import isfinite
from typing import Any, Final, Literal, NamedTuple

from labkit.core.errors import InputError, LabkitError
from labkit.elastic.protocol.messages.codec import MessageError, from_json, to_json
from labkit.elastic.protocol.messages.struct import Count, Struct

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
    """A range that one worker may work on until a deadline."""

    token: int
    """Names this lease and no other; needed to commit, renew or fail it."""
    worker: Worker
    epoch: int
    start: int
    end: int
    """`epoch`, `start` and `end`: positions `start` to before `end` of the order of the epoch; `ShardService.indices`
    returns the samples."""
    deadline_s: float
    """Time at which it expires unless it is renewed; another worker may then get the range."""
    faults: tuple[ReturnReason, ...]
    """Failed tries before this one."""
    since_s: float | None
    """Time at which it was given; None if that was before a restart of the clock."""

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


class PoisonShardError(LabkitError, RuntimeError):
    """A range of samples that failed too often; `piece` is that range, with the reason of each try.

    `what` names the range and the reasons in a sentence.
    """

    def __init__(self, piece: PendingRange) -> None:
        tries = len(piece.faults)
        last = "; ".join(f"{fault.worker}: {fault.reason}" for fault in piece.faults[-3:])
        self.piece, self.what = piece, f"{piece} failed {tries} {'time' if tries == 1 else 'times'} ({last})."
        super().__init__(f"{self.what} Look at these samples, or set such ranges aside with poison='set_aside'.")


class LedgerError(LabkitError, RuntimeError):
    """A sample that was committed twice, or not at all."""


class JournalError(InputError):
    """A journal or a saved state that contradicts itself."""


Poison = Literal["stop", "set_aside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """The settings of a shard service, see `ShardService`."""

    n_samples: int
    epochs: int = 1
    seed: int = 0
    shuffle: bool = True
    base_shard: int = 32
    lease_s: float = 3.0
    max_tries: int = 3
    overlap: bool = False
    poison: Poison = "stop"
    target_s: float = 3.0
    most_minibatches: int = 64

    def __post_init__(self) -> None:
        for name, least in _WHOLE.items():
            value: Any = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} is {value!r}; expected a whole number from {least}.")
        for name in ("lease_s", "target_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 and isfinite(value)):
                raise InputError(f"{name} is {value!r}; expected seconds, above 0.")
        if self.poison not in ("stop", "set_aside"):
            raise InputError(f"poison is {self.poison!r}; expected 'stop' or 'set_aside'.")


_WHOLE = {"n_samples": 0, "epochs": 1, "seed": 0, "base_shard": 1, "max_tries": 1, "most_minibatches": 1}


Record = Sequence[Any]
"""(number, kind, ...): one change of state, of plain numbers and strings."""


@dataclass(slots=True)
class WorkerPace:
    """The speed of a worker, in samples per second, and the time of its last commit."""

    speed: float | None = None
    last_s: float | None = None


@dataclass(slots=True)
class ShardLog:
    """All positions below the cursor are committed, except those that wait, are leased, or have failed too often."""

    plan: ShardPlan
    generation: int = 0
    """Upper bits of the tokens."""
    n_tokens: int = 0
    n_records: int = 0
    """`n_tokens` and `n_records`: tokens given in this generation, and records in all."""
    epoch: int = 0
    cursor: int = 0
    """`epoch` and `cursor`: the last epoch that was opened, and the first position in it that has never been leased."""
    todo: list[PendingRange] = field(default_factory=list)
    """Ranges that were returned and wait, in order."""
    held: dict[int, ShardLease] = field(default_factory=dict)
    """Leases in force, by token."""
    dead: list[PendingRange] = field(default_factory=list)
    """Ranges that failed too often."""
    lost: dict[int, Fate] = field(default_factory=dict)
    """Fates of tokens that ended without a commit."""
    workers: dict[Worker, WorkerPace] = field(default_factory=dict)
    """Workers that hold or have held leases and are not gone."""
    ledger: list[Commit] = field(default_factory=list)
    """Append-only."""
    n_waiting: int = 0
    """Samples in `todo`."""

    def apply(self, record: Record) -> None:
        """Make the change of a record; JournalError if it cannot follow the records before it."""
        number, kind, *columns = record
        expected = self.n_records + (kind != "renewed")
        if number != expected:
            raise JournalError(f"it has number {number}; expected {expected}: records are missing or there twice.")
        _CHANGES[kind](self, *columns)
        self.n_records = expected

    def exceptions(self) -> Iterator[PendingRange]:
        """Yield all ranges below the cursor that are not committed."""
        return chain(self.todo, (lease.piece() for lease in self.held.values()), self.dead)

    def requeue(self, piece: PendingRange) -> None:
        """Return a range to the queue, ahead of positions never leased; or put it aside if it has failed too often."""
        if len(piece.faults) >= self.plan.max_tries:
            insort(self.dead, piece)
        else:
            insort(self.todo, piece)
            self.n_waiting += piece.end - piece.start

    def leased(
        self, token: int, worker: Worker, epoch: int, start: int, end: int, now_s: float, speed: float | None
    ) -> None:
        """Lease a range to a worker."""
        if token != self.generation << TOKEN_BITS | self.n_tokens:
            raise JournalError(f"a lease has token {token}; expected {self.generation << TOKEN_BITS | self.n_tokens}.")
        piece = self._take(epoch, start, end)
        self.n_tokens += 1
        self.held[token] = ShardLease(token, worker, *piece[:3], now_s + self.plan.lease_s, piece.faults, now_s)
        seen = self.workers.setdefault(worker, WorkerPace())
        if speed is not None:
            seen.speed = speed

    def _take(self, epoch: int, start: int, end: int) -> PendingRange:
        if (epoch, start) == (self.epoch, self.cursor) and start < end <= self.plan.n_samples:
            self.cursor = end
            return PendingRange(epoch, start, end)
        if (epoch, start, self.cursor) == (self.epoch + 1, 0, self.plan.n_samples):
            self.epoch, self.cursor = epoch, end
            return PendingRange(epoch, start, end)
        place = bisect_left(self.todo, (epoch, start))
        if place == len(self.todo) or self.todo[place][:2] != (epoch, start) or not start < end <= self.todo[place].end:
            raise JournalError(f"positions {start} to before {end} of epoch {epoch} were leased but did not wait.")
        piece = self.todo[place]
        if end < piece.end:
            self.todo[place] = piece._replace(start=end)
        else:
            del self.todo[place]
        self.n_waiting -= end - start
        return piece._replace(end=end)

    def committed(self, token: int, until: int, now_s: float, step: int) -> None:
        """Enter the range of a lease, or the part before `until`, into the ledger."""
        lease = self.held[token]
        if not lease.start < until <= lease.end:
            raise JournalError(f"token {token} commits up to {until}; it has {lease.start} to before {lease.end}.")
        seen = self.workers.setdefault(lease.worker, WorkerPace())
        seen.speed = _measured(lease, seen, n=until - lease.start, now_s=now_s)
        seen.last_s = now_s
        self.ledger.append(Commit(lease.epoch, lease.start, until, lease.worker, token, step))
        if until < lease.end:
            self.held[token] = lease._replace(start=until)
        else:
            del self.held[token]

    def lose(self, fate: str, tokens: Sequence[int], reason: str, worker: Worker | None) -> None:
        """End leases without a commit; remove `worker` if it is gone."""
        for token in tokens:
            lease = self.held.pop(token)
            self.lost[token] = Fate(fate)
            piece = lease.piece()
            self.requeue(piece if fate == Fate.LEFT else piece.failed(lease.worker, reason=reason))
            if fate == Fate.EXPIRED:
                self.workers.pop(lease.worker, None)
        if worker is not None:
            self.workers.pop(worker, None)

    def renewed(self, tokens: Sequence[int], deadline_s: float) -> None:
        """Set new deadlines."""
        for token in tokens:
            self.held[token] = self.held[token]._replace(deadline_s=deadline_s)

    def resumed(self, now_s: float) -> None:
        """Start another clock: leases in force start again, and no speed is measured across the restart."""
        deadline_s = now_s + self.plan.lease_s
        for token, lease in self.held.items():
            self.held[token] = lease._replace(deadline_s=deadline_s, since_s=None)
        for seen in self.workers.values():
            seen.last_s = None


def _measured(lease: ShardLease, seen: WorkerPace, *, n: int, now_s: float) -> float | None:
    """Return the speed after a commit: the harmonic mean of the former speed and the one measured now."""
    if lease.since_s is None:
        return seen.speed
    elapsed_s = now_s - (lease.since_s if seen.last_s is None else max(lease.since_s, seen.last_s))
    if elapsed_s <= 0:
        return seen.speed
    return n / elapsed_s if seen.speed is None else 2 / (1 / seen.speed + elapsed_s / n)


_CHANGES: dict[str, Callable[..., None]] = {
    "leased": ShardLog.leased,
    "committed": ShardLog.committed,
    "lost": ShardLog.lose,
    "renewed": ShardLog.renewed,
    "resumed": ShardLog.resumed,
}


FORMAT: Final = "labkit shards 1"


class SavedPace(NamedTuple):
    """The speed of a worker, in samples per second, and the time of its last commit."""

    worker: Worker
    speed: float | None
    last_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedShards(Struct):
    """State of a shard service; the fields are those of `ShardLog`."""

    format: Literal["labkit shards 1"]
    """`FORMAT` of the labkit that has written it."""
    plan: ShardPlan
    generation: Count
    n_tokens: Count
    n_records: Count
    epoch: Count
    cursor: Count
    todo: tuple[PendingRange, ...]
    held: tuple[ShardLease, ...]
    dead: tuple[PendingRange, ...]
    lost: tuple[tuple[Count, Fate], ...]
    workers: tuple[SavedPace, ...]
    ledger: tuple[Commit, ...] | None = None
    """None: the ledger starts with anonymous rows for all earlier commits."""


def to_state(book: ShardLog, *, ledger: bool) -> SavedShards:
    """Return the state of a shard log."""
    return SavedShards(
        format=FORMAT,
        plan=book.plan,
        generation=book.generation,
        n_tokens=book.n_tokens,
        n_records=book.n_records,
        epoch=book.epoch,
        cursor=book.cursor,
        todo=tuple(book.todo),
        held=tuple(book.held.values()),
        dead=tuple(book.dead),
        lost=tuple(book.lost.items()),
        workers=tuple([SavedPace(worker, seen.speed, seen.last_s) for worker, seen in book.workers.items()]),
        ledger=tuple(book.ledger) if ledger else None,
    )


def parsed(raw: bytes) -> SavedShards:
    """Return the state that was saved as JSON.

    Raise JournalError if it is no such state: the message names the field and its value.
    """
    try:
        return from_json(SavedShards, raw, show_value=True)
    except MessageError as error:
        fault = str(error).removesuffix(".")
        raise JournalError(
            f"not a saved shard queue: {fault}; it was cut or changed, or is of another version of labkit."
        ) from None


def opening_record(book: ShardLog) -> Record:
    """Return the first record of a journal: the state with its ledger, of plain numbers and strings."""
    return book.n_records, "opened", json.loads(to_json(to_state(book, ledger=True)))


def forgiven(state: SavedShards) -> SavedShards:
    """Return a state in which no range has failed: earlier failures are forgotten, ranges set aside wait first."""
    return replace(state, todo=tuple(piece._replace(faults=()) for piece in (*state.dead, *state.todo)), dead=())


def from_state(state: SavedShards) -> ShardLog:
    """Return the shard log of a state; JournalError if the state contradicts itself."""
    book = ShardLog(
        plan=state.plan,
        generation=state.generation,
        n_tokens=state.n_tokens,
        n_records=state.n_records,
        epoch=state.epoch,
        cursor=state.cursor,
        todo=sorted(state.todo),
        held={lease.token: lease for lease in state.held},
        dead=sorted(state.dead),
        lost=dict(state.lost),
        workers={one.worker: WorkerPace(one.speed, one.last_s) for one in state.workers},
        n_waiting=sum(piece.end - piece.start for piece in state.todo),
    )
    before = opening(book)
    book.ledger = before if state.ledger is None else list(state.ledger)
    return book


def opening(book: ShardLog) -> list[Commit]:
    """Return anonymous ledger rows for all committed positions.

    Raise JournalError if ranges overlap or lie beyond the cursor.
    """
    n = book.plan.n_samples
    if not (0 <= book.epoch < book.plan.epochs and 0 <= book.cursor <= n):
        raise JournalError(f"a saved shard queue is at {book.cursor} of epoch {book.epoch}, beyond its {n} samples.")
    rows: list[Commit] = []
    for epoch, pieces in _holes(book).items():
        last, so_far = book.cursor if epoch == book.epoch else n, 0
        for piece in sorted(pieces):
            if not so_far <= piece.start < piece.end <= last:
                raise JournalError(f"a saved shard queue has {piece} twice, or beyond what was leased.")
            if so_far < piece.start:
                rows.append(Commit(epoch, so_far, piece.start, "", -1))
            so_far = piece.end
        if so_far < last:
            rows.append(Commit(epoch, so_far, last, "", -1))
    return rows


def _holes(book: ShardLog) -> dict[int, list[PendingRange]]:
    holes: dict[int, list[PendingRange]] = {epoch: [] for epoch in range(book.epoch + 1)}
    for piece in book.exceptions():
        if piece.epoch not in holes:
            raise JournalError(f"a saved shard queue has {piece}, and is at epoch {book.epoch}.")
        holes[piece.epoch].append(piece)
    return holes


def replayed(records: Iterable[Record]) -> ShardLog:
    """Return the shard log after all records of a journal.

    Raise JournalError with the number of the first record that cannot follow those before it.
    """
    book: ShardLog | None = None
    for line, record in enumerate(records, start=1):
        try:
            if record[1] == "opened":
                book = from_state(parsed(json.dumps(record[2]).encode()))
            elif book is None:
                raise JournalError("a journal begins with what was opened.")
            else:
                book.apply(record)
        except (JournalError, KeyError, TypeError, ValueError, IndexError) as error:
            raise JournalError(f"record {line} of the journal, {_short(record)}: {error}") from None
    if book is None:
        raise JournalError("the journal has no records; it begins with what was opened.")
    return book


def _short(record: Any) -> str:
    text = repr(record)
    return text if len(text) <= 80 else f"{text[:77]}..."
