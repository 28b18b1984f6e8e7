"""The choice of the next lease of a worker: which range, and how many samples of it."""

from __future__ import annotations

from labkit.elastic.shards.book import ShardLog
from labkit.elastic.shards.nouns import PendingRange, Worker
from labkit.elastic.shards.sizes import n_minibatches


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
