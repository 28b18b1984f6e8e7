"""Exceptions of the shard service.

LabkitError
├── PoisonShardError   a range of samples that failed too often
├── LedgerError        a sample that was committed twice, or not at all
└── InputError
    └── JournalError   a journal or a saved state that contradicts itself
"""

from __future__ import annotations

from labkit.core.errors import InputError, LabkitError
from labkit.elastic.shards.nouns import PendingRange


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
