"""Dynamic data sharding: leases with tokens, a ledger, and the logical shards of synchronous training.

Asynchronous workers lease ranges of an epoch's order from a `ShardService`. Synchronous workers compute
`logical_batches`, which `deal` distributes. All functions are pure: time is an argument, randomness comes from
(seed, epoch).

Guarantee: every sample is in the ledger exactly once per epoch, whatever processes die, and `prove` checks it. The
ledger records commits. A worker that dies between a push and its commit leaves gradients of uncommitted samples in an
asynchronous model, and another worker computes them again; `commit(until=...)` after each push limits this to one
push.
"""

from labkit.elastic.shards.batches import check_batch, deal, logical_batches, order, samples_between, samples_of
from labkit.elastic.shards.book import (
    Commit,
    Fate,
    JournalError,
    LedgerError,
    PendingRange,
    PoisonShardError,
    Record,
    ReturnReason,
    SavedShards,
    ShardLease,
    ShardPlan,
    ShardStatus,
    Worker,
)
from labkit.elastic.shards.service import Journal, ShardService, prove

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
    "SavedShards",
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
    "samples_between",
    "samples_of",
]
