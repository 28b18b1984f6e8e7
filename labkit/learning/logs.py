"""What a training tells on its way: a row of a CSV file for each update, and TensorBoard's event files beside it."""

from __future__ import annotations

import csv
from contextlib import suppress
from dataclasses import astuple, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from labkit.core.errors import InputError
from labkit.system.release import how_to_get

if TYPE_CHECKING:
    from labkit.learning.training import Update

COLUMNS: Final = ("update", "kind", "slots", "mean_jct_slots", "loss", "entropy", "cpu_s")
CURVES: Final = ("mean_jct_slots", "loss", "entropy", "slots")
"""Drawn in TensorBoard, by update."""


class TrainingLog:
    """Writes the rows of a training; one that goes on drops those that it makes again.

    Parameters
    ----------
    table : path
        The CSV file.
    folder : path, optional
        Of TensorBoard's event files.
    n_done : int
        Updates that were made before.

    Attributes
    ----------
    missing : str
        What cannot be written, and why; empty: nothing.
    """

    def __init__(self, table: Path, *, folder: Path | None = None, n_done: int = 0) -> None:
        self.missing = ""
        kept = [row for row in read(table) if int(row["update"]) <= n_done] if n_done else []
        with table.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(kept)
        self._file = table.open("a", newline="")
        self._rows = csv.writer(self._file)
        self._events = None if folder is None else self._opened(folder, n_done)

    def _opened(self, folder: Path, n_done: int) -> Any:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            self.missing = (
                f"{folder}: TensorBoard's files need tensorboardX ({how_to_get('tensorboardX')}); "
                "the CSV file has the same."
            )
            return None
        return SummaryWriter(str(folder), purge_step=n_done + 1)

    def write(self, update: Update) -> None:
        """Add what came of an update; a reader that follows the files sees it at once."""
        row = row_of(update)
        self._rows.writerow(row.values())
        self._file.flush()
        if self._events is not None:
            for name in CURVES:
                self._events.add_scalar(f"{update.kind}/{name}", row[name], row["update"])
            self._events.flush()

    def close(self) -> None:
        """Write no more."""
        self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def row_of(update: Update) -> dict[str, Any]:
    """Return the row of an update, with the numbers of `COLUMNS`; updates count from 1."""
    told = dict(zip((field.name for field in fields(update)), astuple(update), strict=True))
    return {
        "update": told["number"] + 1, "kind": told["kind"], "slots": told["slots"],
        "mean_jct_slots": told["mean_jct"], "loss": told["loss"], "entropy": told["entropy"],
        "cpu_s": round(told["cpu_s"], 2),
    }  # fmt: skip


def read(table: Path) -> list[dict[str, str]]:
    """Return the rows of a log; none where there is no such file. A last row that was cut off is left out.

    Raises
    ------
    InputError
        If it is something else.
    """
    rows: list[dict[str, str]] = []
    with suppress(FileNotFoundError), table.open(newline="") as file:
        reader = csv.DictReader(file)
        found = list(reader)
        if found and tuple(reader.fieldnames or ()) != COLUMNS:
            raise InputError(f"{table} holds {', '.join(reader.fieldnames or ())}; expected {', '.join(COLUMNS)}.")
        rows = [row for row in found if all(row[name] not in (None, "") for name in COLUMNS)]
    return rows
