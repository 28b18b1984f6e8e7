"""A shard service as checkpoints and journals keep it, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from labkit.elastic.protocol.messages.codec import MessageError, from_json, to_json
from labkit.elastic.protocol.messages.struct import Count, Struct
from labkit.elastic.shards.book import (
    Commit,
    Fate,
    JournalError,
    PendingRange,
    Record,
    ShardLease,
    ShardLog,
    ShardPlan,
    Worker,
    WorkerPace,
)

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
