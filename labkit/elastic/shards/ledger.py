"""The ledger of commits, and the check that it has every sample of every epoch exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from labkit.core.resources import Ints
from labkit.elastic.shards.errors import LedgerError
from labkit.elastic.shards.nouns import Commit, PendingRange


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
    labkit.elastic.shards.errors.LedgerError: sample 3 of the order of epoch 0 was committed twice: by worker a \
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
