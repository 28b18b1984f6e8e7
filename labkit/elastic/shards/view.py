"""What can be seen of a shard service: how far it is, what is out, what was committed, and proof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.elastic.shards.book import ShardLog
from labkit.elastic.shards.errors import PoisonShardError
from labkit.elastic.shards.ledger import prove
from labkit.elastic.shards.nouns import TOKEN_BITS, Commit, Fate, PendingRange, ShardLease, ShardStatus, Worker
from labkit.elastic.shards.order import order
from labkit.elastic.shards.plan import ShardPlan
from labkit.elastic.shards.saved import to_state


class View:
    """The half of a shard service that changes nothing."""

    plan: ShardPlan
    _book: ShardLog

    def fate(self, token: object) -> Fate:
        """Return what has become of a lease; of anything that is no token, UNKNOWN."""
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
        return order(plan.n_samples, plan.seed, lease.epoch, plan.shuffle)[lease.start : lease.end]

    def state(self, *, ledger: bool = False) -> dict[str, Any]:
        """Return all that a checkpoint needs, for JSON: its size is that of the exceptions.

        Without `ledger`, a service restored from it opens its ledger with nameless rows for what was committed.
        """
        return to_state(self._book, ledger=ledger)

    @property
    def status(self) -> ShardStatus:
        """How far all epochs are."""
        book = self._book
        if book.dead and self.plan.poison == "stop":
            return ShardStatus.POISONED
        last = self.plan.n_samples == 0 or book.epoch == self.plan.epochs - 1
        if not last or book.cursor < self.plan.n_samples or book.todo or book.held:
            return ShardStatus.RUNNING
        return ShardStatus.SET_ASIDE if book.dead else ShardStatus.COMPLETE

    @property
    def over(self) -> bool:
        """True when there is nothing left to lease, now or later."""
        return self.status in (ShardStatus.COMPLETE, ShardStatus.SET_ASIDE)

    def completed(self) -> bool:
        """Return whether every sample of every epoch is committed; never true while ranges are set aside."""
        return self.status is ShardStatus.COMPLETE

    @property
    def poison(self) -> PoisonShardError | None:
        """What `lease` raises now."""
        return PoisonShardError(self._book.dead[0]) if self.status is ShardStatus.POISONED else None

    @property
    def set_aside(self) -> tuple[PendingRange, ...]:
        """The ranges that failed too often, and why."""
        return tuple(self._book.dead)

    @property
    def held(self) -> tuple[ShardLease, ...]:
        """The leases in force."""
        return tuple(self._book.held.values())

    @property
    def speeds(self) -> dict[Worker, float | None]:
        """Samples per second of the workers at work, as they said or as their commits tell."""
        return {worker: seen.speed for worker, seen in self._book.workers.items()}

    @property
    def epoch(self) -> int:
        """The last epoch of which something was leased."""
        return self._book.epoch

    @property
    def generation(self) -> int:
        """The number above which the next `from_state` with a generation must be."""
        return self._book.generation

    @property
    def n_committed(self) -> int:
        """Samples that are committed, of all epochs."""
        book = self._book
        out = sum(piece.end - piece.start for piece in book.exceptions())
        return book.epoch * self.plan.n_samples + book.cursor - out

    @property
    def ledger(self) -> Sequence[Commit]:
        """All commits so far, in order; not to be changed."""
        return self._book.ledger

    @property
    def next_expiry_s(self) -> float:
        """The earliest deadline of a lease; infinite when there is none."""
        return min((lease.deadline_s for lease in self._book.held.values()), default=float("inf"))

    def prove(self) -> None:
        """Prove from the ledger that every whole epoch was committed exactly once, and nothing twice.

        Raises
        ------
        LedgerError
            If not; no sequence of calls should lead there.
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
