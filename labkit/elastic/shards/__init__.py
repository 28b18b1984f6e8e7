"""Dynamic data sharding: leases with tokens, a ledger, and the logical shards of synchronous training.

Asynchronous workers lease ranges of an epoch's order from a `ShardService`, which no order of events makes lose or
repeat a sample in its ledger; synchronous ones compute `logical_batches`, dealt by `deal`. All of it is pure: time
comes in by argument, randomness from (seed, epoch).

What is promised: every sample is in the ledger exactly once per epoch, whatever dies, and `prove` says so. The ledger
tells what was committed. A worker that dies between a push and its commit leaves gradients of uncommitted samples in
an asynchronous model, and they are computed again; `commit(until=...)` after each push keeps that to one push.
"""

from labkit.elastic.shards.batches import check_batch, deal, logical_batches, samples_of
from labkit.elastic.shards.book import Record
from labkit.elastic.shards.errors import JournalError, LedgerError, PoisonShardError
from labkit.elastic.shards.ledger import prove
from labkit.elastic.shards.nouns import Commit, Fate, PendingRange, ReturnReason, ShardLease, ShardStatus, Worker
from labkit.elastic.shards.order import order
from labkit.elastic.shards.plan import ShardPlan
from labkit.elastic.shards.service import Journal, ShardService

__all__ = [
    "Commit",
    "Fate",
    "Journal",
    "JournalError",
    "LedgerError",
    "PendingRange",
    "PoisonShardError",
    "Record",
    "ReturnReason",
    "ShardLease",
    "ShardPlan",
    "ShardService",
    "ShardStatus",
    "Worker",
    "check_batch",
    "deal",
    "logical_batches",
    "order",
    "prove",
    "samples_of",
]
