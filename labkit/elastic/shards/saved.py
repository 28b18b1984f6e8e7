"""A shard service as plain lists and numbers, for checkpoints and journals, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from labkit.core.errors import InputError
from labkit.elastic.shards.book import Record, ShardLog, WorkerPace
from labkit.elastic.shards.errors import JournalError
from labkit.elastic.shards.nouns import Commit, Fate, PendingRange, ReturnReason, ShardLease
from labkit.elastic.shards.plan import ShardPlan

FORMAT: Final = "labkit shards 1"


def to_state(book: ShardLog, *, ledger: bool) -> dict[str, Any]:
    """Return the state of a shard log, for JSON."""
    state = {
        "format": FORMAT,
        "plan": asdict(book.plan),
        "generation": book.generation,
        "n_tokens": book.n_tokens,
        "n_records": book.n_records,
        "epoch": book.epoch,
        "cursor": book.cursor,
        "todo": [_plain(piece) for piece in book.todo],
        "held": [_plain(lease) for lease in book.held.values()],
        "dead": [_plain(piece) for piece in book.dead],
        "lost": [[token, str(fate)] for token, fate in book.lost.items()],
        "workers": [[worker, seen.speed, seen.last_s] for worker, seen in book.workers.items()],
    }
    if ledger:
        state["ledger"] = [list(row) for row in book.ledger]
    return state


def forgiven(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state in which no range has failed: earlier failures are forgotten, ranges set aside wait first."""
    return {**state, "todo": [[*row[:3], []] for row in (*state["dead"], *state["todo"])], "dead": []}


def from_state(state: Mapping[str, Any]) -> ShardLog:
    """Return the shard log of a state.

    If the state has no ledger, the ledger starts with anonymous rows for all earlier commits.

    Raises
    ------
    JournalError
        If it is not such a state, or contradicts itself.
    """
    try:
        found = state["format"]
        if found != FORMAT:
            raise JournalError(f"a saved shard queue has format {found!r}; expected {FORMAT!r}.")
        book = _read(state)
        before = opening(book)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise JournalError(f"not a saved shard queue: {type(error).__name__} {error}; it was cut or changed.") from None
    book.ledger = [Commit(*row) for row in state["ledger"]] if "ledger" in state else before
    return book


def opening(book: ShardLog) -> list[Commit]:
    """Return anonymous ledger rows for all committed positions.

    Raises
    ------
    JournalError
        If ranges overlap or lie beyond the cursor.
    """
    n = book.plan.n_samples
    if not (0 <= book.epoch < book.plan.epochs and 0 <= book.cursor <= n):
        raise JournalError(f"a saved shard queue is at {book.cursor} of epoch {book.epoch}, beyond its {n} samples.")
    holes: dict[int, list[PendingRange]] = {epoch: [] for epoch in range(book.epoch + 1)}
    for piece in book.exceptions():
        holes[piece.epoch].append(piece)
    rows: list[Commit] = []
    for epoch, pieces in holes.items():
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


def replayed(records: Iterable[Record]) -> ShardLog:
    """Return the shard log after all records of a journal.

    Raises
    ------
    JournalError
        With the number of the first record that cannot follow those before it.
    """
    book: ShardLog | None = None
    for line, record in enumerate(records, start=1):
        try:
            if record[1] == "opened":
                book = from_state(record[2])
            elif book is None:
                raise JournalError("a journal begins with what was opened.")
            else:
                book.apply(record)
        except (JournalError, KeyError, TypeError, ValueError, IndexError) as error:
            raise JournalError(f"record {line} of the journal, {_short(record)}: {error}") from None
    if book is None:
        raise JournalError("the journal has no records; it begins with what was opened.")
    return book


def _read(state: Mapping[str, Any]) -> ShardLog:
    for name in ("generation", "n_tokens", "n_records", "epoch", "cursor"):
        if not isinstance(state[name], int) or state[name] < 0:
            raise JournalError(f"a saved shard queue has {name} {state[name]!r}; expected a whole number from 0.")
    leases = [_lease(row) for row in state["held"]]
    todo = [_piece(row) for row in state["todo"]]
    return ShardLog(
        plan=ShardPlan(**state["plan"]),
        generation=state["generation"],
        n_tokens=state["n_tokens"],
        n_records=state["n_records"],
        epoch=state["epoch"],
        cursor=state["cursor"],
        todo=sorted(todo),
        held={lease.token: lease for lease in leases},
        dead=sorted(_piece(row) for row in state["dead"]),
        lost={token: Fate(fate) for token, fate in state["lost"]},
        workers={worker: WorkerPace(speed, last_s) for worker, speed, last_s in state["workers"]},
        n_waiting=sum(piece.end - piece.start for piece in todo),
    )


def _plain(row: PendingRange | ShardLease) -> list[Any]:
    return [[list(fault) for fault in each] if isinstance(each, tuple) else each for each in row]


def _piece(row: Sequence[Any]) -> PendingRange:
    epoch, start, end, faults = row
    return PendingRange(epoch, start, end, tuple(ReturnReason(*fault) for fault in faults))


def _lease(row: Sequence[Any]) -> ShardLease:
    lease = ShardLease(*row)
    return lease._replace(faults=tuple(ReturnReason(*fault) for fault in lease.faults))


def _short(record: Any) -> str:
    text = repr(record)
    return text if len(text) <= 80 else f"{text[:77]}..."
