"""The shard service: leases of samples to a changing set of workers, and the ledger that proves each was used once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import InputError
from labkit.core.resources import Ints
from labkit.elastic.shards.batches import samples_between
from labkit.elastic.shards.book import (
    TOKEN_BITS,
    Commit,
    Fate,
    LedgerError,
    PendingRange,
    Poison,
    PoisonShardError,
    Record,
    SavedShards,
    ShardLease,
    ShardLog,
    ShardPlan,
    ShardStatus,
    Worker,
    from_state,
    opening_record,
    replayed,
    to_state,
)


def prove(
    rows: Sequence[Commit], *, n_samples: int, epochs: int, set_aside: Iterable[PendingRange] = (), barrier: bool = True
) -> None:
    """Check that each sample was committed exactly once in each of the first `epochs` epochs.

    Later epochs may be incomplete: there, no sample may be in the ledger twice.

    Parameters
    ----------
    rows : sequence of Commit
        In the order of their commits.
    n_samples : int
        Size of the dataset.
    epochs : int
        Number of epochs that must be complete.
    set_aside : iterable of PendingRange
        Ranges that must not be in the ledger.
    barrier : bool
        Whether to check also that no row of an epoch comes after one of a later epoch.

    Raises
    ------
    LedgerError
        With the first sample that was committed twice or not at all, and the workers.

    Examples
    --------
    >>> prove([Commit(0, 0, 4, "a", 0), Commit(0, 4, 6, "b", 1)], n_samples=6, epochs=1)
    >>> prove([Commit(0, 0, 4, "a", 0), Commit(0, 3, 6, "b", 1)], n_samples=6, epochs=1)
    Traceback (most recent call last):
    labkit.elastic.shards.book.LedgerError: sample 3 of the order of epoch 0 was committed twice: by worker a \
(token 0) and by worker b (token 1).
    """
    aside = [Commit(piece.epoch, piece.start, piece.end, "(set aside)", -1) for piece in set_aside]
    epoch, start, end = np.array([row[:3] for row in (*rows, *aside)], np.int64).reshape(-1, 3).T
    _check_bounds(epoch, start, end, n_samples)
    if barrier and (late := np.flatnonzero(np.diff(epoch[: len(rows)]) < 0)).size:
        row = rows[int(late[0]) + 1]
        raise LedgerError(
            f"{_worker_of(row)} committed samples of epoch {row.epoch} after epoch {row.epoch + 1} had begun."
        )
    by_place = np.lexsort((start, epoch))
    at, until = epoch * n_samples + start, epoch * n_samples + end  # positions in the concatenation of all epochs
    reached = np.maximum.accumulate(np.concatenate(([0], until[by_place])))
    goal = epochs * n_samples
    _check_twice([*rows, *aside], by_place, at, reached, n_samples)
    before = np.append(at[by_place], goal)
    gaps = np.flatnonzero((before > reached) & (reached < goal))
    if gaps.size:
        epoch_of, sample = divmod(int(reached[gaps[0]]), n_samples)
        raise LedgerError(f"sample {sample} of the order of epoch {epoch_of} was never committed.")


def _check_bounds(epoch: Ints, start: Ints, end: Ints, n_samples: int) -> None:
    wrong = np.flatnonzero((epoch < 0) | (start < 0) | (start >= end) | (end > n_samples))
    if wrong.size:
        row = int(wrong[0])
        raise LedgerError(
            f"row {row} of the ledger commits positions {start[row]} to before {end[row]} of epoch {epoch[row]}; "
            f"expected some of 0 to before {n_samples}."
        )


def _check_twice(rows: Sequence[Commit], by_place: Ints, at: Ints, reached: Ints, n_samples: int) -> None:
    twice = np.flatnonzero(at[by_place] < reached[:-1])
    if not twice.size:
        return
    place = int(by_place[twice[0]])
    sample_at = int(at[place])
    epoch_of, sample = divmod(sample_at, n_samples)
    others = (rows[each] for each in by_place[: twice[0]])
    other = next(row for row in others if row.epoch == epoch_of and row.start <= sample < row.end)
    raise LedgerError(
        f"sample {sample} of the order of epoch {epoch_of} was committed twice: by {_worker_of(other)} and by "
        f"{_worker_of(rows[place])}."
    )


def _worker_of(row: Commit) -> str:
    return f"worker {row.worker} (token {row.token})"


class View:
    """The methods of a shard service that change nothing."""

    plan: ShardPlan
    _book: ShardLog

    def fate(self, token: object) -> Fate:
        """Return the fate of a lease by its token; UNKNOWN for anything that is not a token."""
        book = self._book
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            return Fate.UNKNOWN
        if token >> TOKEN_BITS != book.generation:
            return Fate.STALE
        if token & ((1 << TOKEN_BITS) - 1) >= book.n_tokens:
            return Fate.UNKNOWN
        return Fate.HELD if token in book.held else book.lost.get(token, Fate.COMMITTED)

    def indices(self, lease: ShardLease | PendingRange | Commit) -> NDArray[np.int64]:
        """Return the samples of a range, in order; read-only."""
        plan = self.plan
        return samples_between(
            lease.start, lease.end, n_samples=plan.n_samples, seed=plan.seed, epoch=lease.epoch, shuffle=plan.shuffle
        )

    def state(self, *, ledger: bool = False) -> SavedShards:
        """Return the state for a checkpoint; its size is that of the exceptions to the cursor.

        Without `ledger`, the ledger of a restored service starts with anonymous rows for earlier commits.
        """
        return to_state(self._book, ledger=ledger)

    @property
    def status(self) -> ShardStatus:
        """The progress over all epochs."""
        book = self._book
        if book.dead and self.plan.poison == "stop":
            return ShardStatus.POISONED
        last = self.plan.n_samples == 0 or book.epoch == self.plan.epochs - 1
        if not last or book.cursor < self.plan.n_samples or book.todo or book.held:
            return ShardStatus.RUNNING
        return ShardStatus.SET_ASIDE if book.dead else ShardStatus.COMPLETE

    @property
    def over(self) -> bool:
        """Whether there is nothing left to lease, now or later."""
        return self.status in (ShardStatus.COMPLETE, ShardStatus.SET_ASIDE)

    def completed(self) -> bool:
        """Return whether every sample of every epoch is committed; never true while ranges are set aside."""
        return self.status is ShardStatus.COMPLETE

    @property
    def poison(self) -> PoisonShardError | None:
        """The error that `lease` raises now; None if it raises none."""
        return PoisonShardError(self._book.dead[0]) if self.status is ShardStatus.POISONED else None

    @property
    def set_aside(self) -> tuple[PendingRange, ...]:
        """The ranges that failed too often, with their reasons."""
        return tuple(self._book.dead)

    @property
    def held(self) -> tuple[ShardLease, ...]:
        """The leases in force."""
        return tuple(self._book.held.values())

    @property
    def speeds(self) -> dict[Worker, float | None]:
        """Samples per second of the active workers, as given or as measured by their commits."""
        return {worker: seen.speed for worker, seen in self._book.workers.items()}

    @property
    def epoch(self) -> int:
        """The last epoch with a lease."""
        return self._book.epoch

    @property
    def generation(self) -> int:
        """The present generation; the next `from_state` with a generation needs a larger number."""
        return self._book.generation

    @property
    def n_committed(self) -> int:
        """Committed samples of all epochs."""
        book = self._book
        out = sum(piece.end - piece.start for piece in book.exceptions())
        return book.epoch * self.plan.n_samples + book.cursor - out

    @property
    def ledger(self) -> Sequence[Commit]:
        """All commits in order; must not be changed."""
        return self._book.ledger

    @property
    def next_expiry_s(self) -> float:
        """The earliest deadline of a lease; infinite when there is none."""
        return min((lease.deadline_s for lease in self._book.held.values()), default=float("inf"))

    def prove(self) -> None:
        """Check by the ledger that every complete epoch was committed exactly once, and no sample twice.

        Raise LedgerError if not, which no sequence of calls should cause.
        """
        book = self._book
        whole = book.epoch + (book.cursor == self.plan.n_samples)
        unfinished = [piece.epoch for piece in book.todo] + [lease.epoch for lease in self.held]
        prove(
            book.ledger,
            n_samples=self.plan.n_samples,
            epochs=self.plan.epochs if self.over else min([whole, *unfinished]),
            set_aside=book.dead,
            barrier=not self.plan.overlap,
        )


def n_minibatches(
    *, speed: float | None, others: Iterable[float | None], waiting: int, base_shard: int, target_s: float, most: int
) -> int:
    """Return how many minibatches the next lease should have.

    Near the end of an epoch a worker gets at most half of its share of the waiting samples, so that all workers finish
    together: guided self-scheduling [1]_, with the factor of factoring [2]_.

    Parameters
    ----------
    speed : float or None
        Samples per second of this worker; None if unknown: it then gets one minibatch, to be measured.
    others : iterable of float or None
        Speeds of the other active workers; an unknown one counts as the mean of the known ones.
    waiting : int
        Samples of the epoch that are neither leased nor committed.
    base_shard : int
        Samples of a minibatch.
    target_s : float
        Seconds of work that a lease should have.
    most : int
        Largest number of minibatches.

    References
    ----------
    .. [1] Polychronopoulos and Kuck, "Guided self-scheduling", IEEE Trans. Computers 36(12), 1987.
    .. [2] Hummel, Schonberg and Flynn, "Factoring", Comm. ACM 35(8), 1992.

    Examples
    --------
    >>> n_minibatches(speed=640, others=[160], waiting=10**6, base_shard=32, target_s=3, most=64)
    60
    >>> n_minibatches(speed=640, others=[160], waiting=1600, base_shard=32, target_s=3, most=64)
    20
    """
    if speed is None:
        return 1
    by_time = int(min(speed * target_s / base_shard, most))
    listed = list(others)
    known = [each for each in listed if each is not None] + [speed]
    total = sum(known) * (len(listed) + 1) / len(known)
    share = ceil(waiting / base_shard) * (speed / total)
    return max(1, min(by_time, ceil(share / 2)))


def next_piece(book: ShardLog, worker: Worker) -> PendingRange | None:
    """Return the range from which a worker gets its next lease; None if there is nothing now.

    The order is: returned ranges that this worker has not failed; positions never leased; ranges that this worker has
    failed, unless another worker holds a lease and will ask for them; the next epoch.
    """
    n = book.plan.n_samples
    for piece in book.todo:
        if all(fault.worker != worker for fault in piece.faults):
            return piece
    if book.cursor < n:
        return PendingRange(book.epoch, book.cursor, n)
    if book.todo:
        return None if any(lease.worker != worker for lease in book.held.values()) else book.todo[0]
    if n and book.epoch + 1 < book.plan.epochs and (book.plan.overlap or not book.held):
        return PendingRange(book.epoch + 1, 0, n)
    return None


def size(book: ShardLog, worker: Worker, *, piece: PendingRange, speed: float | None) -> int:
    """Return how many samples of a range a worker should get, at the given speed or that of its commits."""
    plan = book.plan
    seen = book.workers.get(worker)
    fresh = plan.n_samples if piece.epoch > book.epoch else plan.n_samples - book.cursor
    return plan.base_shard * n_minibatches(
        speed=seen.speed if speed is None and seen is not None else speed,
        others=(seen.speed for each, seen in book.workers.items() if each != worker),
        waiting=fresh + book.n_waiting,
        base_shard=plan.base_shard,
        target_s=plan.target_s,
        most=plan.most_minibatches,
    )


Journal = Callable[[Record], object]
"""Receives each record before its change is made; if it raises, nothing changes."""

LONGEST_REASON: Final = 200
"""Characters of a reason that are kept: it comes from a worker and is saved in every checkpoint."""


class ShardService(View):
    """Leases the samples of each epoch to a changing set of workers; each sample is committed once per epoch.

    A worker leases a range of the epoch's order, works on it and commits it with the lease's token. A lease that is
    not renewed in time expires: its range goes to the next worker that asks, ahead of all others, and a late commit is
    refused. The order depends on (seed, epoch) only. The state is a cursor and the exceptions to it.

    Every change is one record, which `journal` gets first. `replay` makes an equal service from the records.

    Parameters
    ----------
    n_samples : int
        Size of the dataset.
    epochs : int
        Number of epochs: how often each sample is committed.
    seed : int
        Of the orders.
    shuffle : bool
        False: every epoch has the order of the dataset.
    base_shard : int
        Samples of a minibatch; a lease has 1 to `most_minibatches` of them.
    lease_s : float
        Seconds that a lease lasts unless it is renewed.
    max_tries : int
        Failures and expiries after which a range counts as poison. The departure of a worker does not count.
    overlap : bool
        Whether epoch e + 1 begins when all of epoch e is leased; else when all of it is committed.
    poison : {"stop", "set_aside"}
        "stop": `lease` raises `PoisonShardError` from then on. "set_aside": the range is never leased again, the others
        go on, and the final status is SET_ASIDE.
    target_s : float
        Seconds of work that a lease should have.
    most_minibatches : int
        Minibatches in a lease at most.
    journal : callable, optional
        Receives every record: `list.append`, or a function that writes a line to a file.

    Attributes
    ----------
    plan : ShardPlan
        The settings.
    counts : Counter
        Refused commits by fate, and repeated ones as "again"; of this process, neither saved nor replayed.

    Examples
    --------
    >>> service = ShardService(96, base_shard=32, lease_s=3.0)
    >>> lease = service.lease("a", now_s=0.0)
    >>> lease.start, lease.end, service.indices(lease)[:3].tolist()
    (0, 32, [78, 67, 38])
    >>> [piece.start for piece in service.expire(now_s=4.0)]
    [0]
    >>> again = service.lease("b", now_s=4.0)
    >>> print(service.commit(lease.token, now_s=5.0), service.commit(again.token, now_s=5.0))
    expired committed
    """

    def __init__(
        self,
        n_samples: int,
        *,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        base_shard: int = 32,
        lease_s: float = 3.0,
        max_tries: int = 3,
        overlap: bool = False,
        poison: Poison = "stop",
        target_s: float = 3.0,
        most_minibatches: int = 64,
        journal: Journal | None = None,
    ) -> None:
        plan = ShardPlan(
            n_samples=n_samples,
            epochs=epochs,
            seed=seed,
            shuffle=shuffle,
            base_shard=base_shard,
            lease_s=lease_s,
            max_tries=max_tries,
            overlap=overlap,
            poison=poison,
            target_s=target_s,
            most_minibatches=most_minibatches,
        )
        self._open(ShardLog(plan), journal)

    @classmethod
    def from_state(
        cls,
        state: SavedShards,
        *,
        generation: int | None = None,
        n_samples: int | None = None,
        journal: Journal | None = None,
    ) -> Self:
        """Return the service of a saved state.

        Raise JournalError if the state contradicts itself; InputError if it is of another dataset, or the generation is
        not above the saved one.

        Parameters
        ----------
        state : SavedShards
            What `state` returned.
        generation : int, optional
            A number above all earlier ones, when training goes back to a checkpoint. Ranges that were leased then wait
            again, first in the queue and without a failed try, and all earlier tokens are stale. By default leases stay
            in force.
        n_samples : int, optional
            Size of the present dataset, to be compared.
        journal : callable, optional
            Its first record is this state, so earlier records are not needed.
        """
        book = from_state(state)
        if n_samples is not None and n_samples != book.plan.n_samples:
            raise InputError(
                f"the saved shard queue is of a dataset of {book.plan.n_samples} samples; this one has {n_samples}."
            )
        if generation is not None:
            _go_back(book, generation)
        return cls._of(book, journal)

    @classmethod
    def replay(cls, records: Iterable[Record], *, journal: Journal | None = None) -> Self:
        """Return the service after all records of a journal, with its leases in force and its ledger.

        A journal may lack records of kind "renewed": deadlines are then earlier. Call `resume` after a restart. Raise
        JournalError with the first record that cannot follow those before it.
        """
        return cls._of(replayed(records), journal)

    @classmethod
    def _of(cls, book: ShardLog, journal: Journal | None) -> Self:
        service = cls.__new__(cls)
        service._open(book, journal)
        return service

    def _open(self, book: ShardLog, journal: Journal | None) -> None:
        self._book, self.plan, self._journal = book, book.plan, journal
        self._earliest_s = min((lease.deadline_s for lease in book.held.values()), default=float("inf"))
        self.counts: Counter[str] = Counter()
        if journal is not None:
            journal(opening_record(book))

    def _do(self, kind: str, *columns: Any) -> None:
        number = self._book.n_records + (kind != "renewed")
        record = (number, kind, *columns)
        if self._journal is not None:
            self._journal(record)
        self._book.apply(record)

    def lease(self, worker: Worker, *, now_s: float, speed: float | None = None) -> ShardLease | None:
        """Return the next lease of a worker; None if there is nothing now: ask again unless the service is `over`.

        A worker may hold several leases. A range that it has failed is offered to other workers first. Raise
        PoisonShardError if a range failed too often, and ranges are not set aside; InputError if the worker is neither
        a number nor a name, or the speed is not a number above 0.

        Parameters
        ----------
        worker : int or str
            The worker that asks.
        now_s : float
            The time. Leases whose deadline has passed expire.
        speed : float, optional
            Samples per second; by default as measured by its commits, and before the first one it gets one minibatch.
        """
        _check_worker(worker, speed)
        self.expire(now_s=now_s)
        if (error := self.poison) is not None:
            raise error
        book = self._book
        piece = next_piece(book, worker)
        if piece is None:
            return None
        end = min(piece.start + size(book, worker, piece=piece, speed=speed), piece.end)
        token = book.generation << TOKEN_BITS | book.n_tokens
        self._do("leased", token, worker, piece.epoch, piece.start, end, now_s, speed)
        lease = book.held[token]
        self._earliest_s = min(self._earliest_s, lease.deadline_s)
        return lease

    def commit(self, token: int, *, now_s: float, step: int = -1, until: int | None = None) -> Fate:
        """Enter a lease's range into the ledger, and return COMMITTED, or the fate for which it was refused.

        A repeated commit changes nothing and returns COMMITTED. A lease past its deadline stays in force until the next
        call of `expire` or `lease`. Raise InputError if `until` is beyond the lease, or an argument is not a number.

        Parameters
        ----------
        token : int
            Of the lease.
        now_s : float
            The time; the worker's speed is measured with it.
        step : int
            The update that has the gradients of the samples.
        until : int, optional
            Commit only the positions before it; the lease stays in force for the rest.
        """
        fate = self.fate(token)
        if fate is not Fate.HELD:
            self.counts["again" if fate is Fate.COMMITTED else str(fate)] += 1
            return fate
        lease = self._book.held[token]
        until = lease.end if until is None else until
        _check_commit(lease, until, step)
        if until <= lease.start:
            self.counts["again"] += 1
        else:
            self._do("committed", token, until, now_s, step)
        return Fate.COMMITTED

    def renew(self, worker: Worker, *, now_s: float) -> tuple[int, ...]:
        """Renew all leases of a worker, and return their tokens; it has lost its other leases."""
        tokens = tuple(token for token, lease in self._book.held.items() if lease.worker == worker)
        if tokens:
            self._renew(tokens, now_s + self.plan.lease_s)
        return tokens

    def renew_token(self, token: int, *, now_s: float) -> Fate:
        """Renew one lease, and return HELD, or the fate for which it cannot be renewed."""
        fate = self.fate(token)
        if fate is Fate.HELD:
            self._renew((token,), now_s + self.plan.lease_s)
        return fate

    def _renew(self, tokens: tuple[int, ...], deadline_s: float) -> None:
        self._do("renewed", tokens, deadline_s)
        self._earliest_s = min(self._earliest_s, deadline_s)

    def fail(self, token: int, *, reason: str) -> Fate:
        """Return the range of a lease that its worker cannot do; return FAILED, or the fate that the lease has already.

        After `max_tries` failures the range is poison, and `lease` raises an error.
        """
        fate = self.fate(token)
        if fate is Fate.HELD:
            self._do("lost", Fate.FAILED.value, (token,), str(reason)[:LONGEST_REASON], None)
            return Fate.FAILED
        return fate

    def expire(self, *, now_s: float) -> tuple[ShardLease, ...]:
        """End the leases whose deadline has passed, and return them; their ranges wait again, first in the queue.

        `lease` does this too.
        """
        if now_s <= self._earliest_s:
            return ()
        held = self._book.held
        late = tuple(lease for lease in held.values() if lease.deadline_s < now_s)
        if late:
            self._do("lost", Fate.EXPIRED.value, tuple(lease.token for lease in late), "its lease expired", None)
        self._earliest_s = self.next_expiry_s
        return late

    def leave(self, worker: Worker) -> tuple[ShardLease, ...]:
        """End the leases of a worker that leaves or has died, and return them; it does not count as a failed try."""
        leases = tuple(lease for lease in self._book.held.values() if lease.worker == worker)
        if leases or worker in self._book.workers:
            self._do("lost", Fate.LEFT.value, tuple(lease.token for lease in leases), "it left", worker)
        return leases

    def resume(self, *, now_s: float) -> None:
        """Start another clock after a restart: every lease in force starts again now."""
        self._do("resumed", now_s)
        self._earliest_s = self.next_expiry_s


def _go_back(book: ShardLog, generation: int) -> None:
    if generation <= book.generation:
        raise InputError(f"generation {generation} has been used; expected a number above {book.generation}.")
    revoked = [lease.piece() for lease in book.held.values()]
    book.held, book.lost, book.workers = {}, {}, {}
    book.generation, book.n_tokens = generation, 0
    for piece in revoked:
        book.requeue(piece)


def _check_worker(worker: object, speed: object) -> None:
    if isinstance(worker, bool) or not isinstance(worker, int | str):
        raise InputError(f"{worker!r} asks for work; expected the number or the name of a worker.")
    if speed is not None and not (isinstance(speed, int | float) and 0 < speed < float("inf")):
        raise InputError(f"worker {worker} says that it does {speed!r} samples per second; expected a number above 0.")


def _check_commit(lease: ShardLease, until: object, step: object) -> None:
    if not isinstance(step, int):
        raise InputError(f"token {lease.token} commits step {step!r}; expected a whole number.")
    if not isinstance(until, int) or until > lease.end:
        raise InputError(
            f"token {lease.token} commits up to position {until!r}; expected a whole number up to {lease.end}, the end "
            f"of its lease."
        )
