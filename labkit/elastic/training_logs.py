"""Losses, metrics and validations of a job as a CSV file and as TensorBoard's event files, while it trains or after.

CSV: one line per number, `step,seconds,name,value`; names of validations begin with `validation/`.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from labkit.core.errors import InputError
from labkit.core.text import spreadsheet_text
from labkit.elastic.result import LogRow, rows_of
from labkit.system.release import how_to_get

if TYPE_CHECKING:
    from labkit.elastic.job import Job
    from labkit.elastic.result import Result


class TrainingLog:
    """Files that grow with the events that it is called with; close it at the end, or use it in a `with` block.

    Parameters
    ----------
    csv : Path or str, optional
        A file; it is replaced.
    tensorboard : Path or str, optional
        A folder, for `tensorboard --logdir`.

    Raises
    ------
    InputError
        If neither is given, a file cannot be written, or the package tensorboardX is missing.
    """

    def __init__(self, *, csv: Path | str | None = None, tensorboard: Path | str | None = None) -> None:
        if csv is None and tensorboard is None:
            raise InputError("a log of nothing; expected csv='log.csv', tensorboard='runs/a', or both.")
        self._writer = None if tensorboard is None else _summary_writer(Path(tensorboard))
        self._file: Any = None
        self._rows: Any = None
        if csv is not None:
            self._file, self._rows = _opened(Path(csv))
        self.n_rows = 0

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Write the numbers of an event; a reader that follows the files sees them at once."""
        for row in rows_of(event):
            self.n_rows += 1
            if self._rows is not None:
                self._rows.writerow(row._replace(name=spreadsheet_text(row.name)))
            if self._writer is not None:
                self._writer.add_scalar(row.name, row.value, row.step, walltime=row.seconds)
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            self._file.close()
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def training_log(source: Job | Result, *, csv: Path | str | None = None, tensorboard: Path | str | None = None) -> int:
    """Write the log of a job; return how many numbers it has.

    Parameters
    ----------
    source : Job or Result
        A running job is followed to its end; it trains on if this is interrupted.
    csv, tensorboard : Path or str, optional
        See `TrainingLog`.
    """
    with TrainingLog(csv=csv, tensorboard=tensorboard) as log:
        for event in source.events() if callable(source.events) else source.events:
            log(event)
        return log.n_rows


def _opened(path: Path) -> tuple[Any, Any]:
    try:
        file = path.open("w", newline="")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from None
    rows = csv.writer(file)
    rows.writerow(LogRow._fields)
    return file, rows


def _summary_writer(folder: Path) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise InputError(
            f"{folder}: TensorBoard's files need tensorboardX ({how_to_get('tensorboardX')}); a CSV file has "
            "the same numbers."
        ) from None
    try:
        return SummaryWriter(str(folder))
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from None
