"""The read-only half of a shard service: its progress, leases, ledger, and the check of the ledger."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labkit.elastic.shards.book import ShardLog
from labkit.elastic.shards.errors import PoisonShardError
from labkit.elastic.shards.ledger import prove
from labkit.elastic.shards.nouns import TOKEN_BITS, Commit, Fate, PendingRange, ShardLease, ShardStatus, Worker
from labkit.elastic.shards.order import samples_between
from labkit.elastic.shards.plan import ShardPlan
from labkit.elastic.shards.saved import SavedShards, to_state


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

        Raises
        ------
        LedgerError
            If not, which no sequence of calls should cause.
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
