"""labkit's own traces: CSV and Parquet with the columns of `Jobs.to_frame`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import InputError, TraceError, unknown
from labkit.core.files import write_atomically
from labkit.core.jobs import Jobs
from labkit.core.parquet import ForeignError, ParquetError, decode_frame, encode_frame
from labkit.core.text import spreadsheet_text, text_of_spreadsheet
from labkit.workloads.readers.base import MAX_NUMBER, TraceTable, bytes_of, first_row, names_of, table_of, text_of

if TYPE_CHECKING:
    import pandas as pd

_TEXT: Final = ("id", "model", "user")
_NAMES: Final = (
    "device_type", "measured_on", "reservation", "partition", "consolidate", "within", "constraint", "after", "array",
    "qos", "recorded_hosts",
)  # fmt: skip
_COUNTS: Final = {"n_workers": 1, "max_workers": 1, "n_ps": 0, "max_ps": 0, "home": -1, "nodes": 0, "at_most": 0}
_POSITIVE: Final = ("total_steps", "true_steps", "steps_per_epoch", "weight")
_OPTIONAL: Final = ("samples_per_step", "duration_s", "slo_s", "loss_delta", "limit_s")
_MOMENTS: Final = ("begin_s", "recorded_start_s")
_AMOUNTS: Final = ("gpu_memory_gb", "ps_memory_base_gb", "ps_memory_growth_gb")
_DEMANDS: Final = tuple(f"{role}_{r}" for role in ("worker", "ps") for r in ("gpus", "cpus", "memory_gb"))
COLUMNS: Final = frozenset(
    (
        *_TEXT,
        *_NAMES,
        *_COUNTS,
        *_POSITIVE,
        *_OPTIONAL,
        *_MOMENTS,
        *_AMOUNTS,
        *_DEMANDS,
        "arrival_s",
        "sync",
        "priority",
    )
)
REQUIRED: Final = ("arrival_s", "total_steps")
EXPECTED: Final = "a labkit trace with columns arrival_s, total_steps and any of those in docs/trace-formats.md"


def read_csv(path: str | Path) -> Jobs:
    """Return the jobs of labkit's own CSV; only `arrival_s` and `total_steps` must be there.

    Raise TraceError with every fault, with line and column; an unknown column with the nearest known one.
    """
    path = Path(path)
    names = _header(text_of(path, expected=EXPECTED))
    for name in names:
        if name not in COLUMNS:
            raise TraceError(f"{path}: {unknown('column', name, COLUMNS)}")
    needed = tuple(dict.fromkeys((*REQUIRED, *names)))
    text = [name for name in (*_TEXT, *_NAMES) if name in names]
    table = table_of(path, columns=needed, names=text, header=True, expected=EXPECTED)
    _change_texts(table.frame, text_of_spreadsheet)
    return _jobs(table)


def read_parquet(path: str | Path) -> Jobs:
    """Return the jobs of labkit's own Parquet; as `read_csv`, with the number of the row in place of the line."""
    path = Path(path)
    raw = bytes_of(path, expected=EXPECTED)
    try:
        frame, _ = decode_frame(raw)
    except ForeignError as error:
        raise TraceError(f"{path}: {error}.") from None
    except ParquetError as error:
        raise TraceError(f"{path}: not a readable Parquet file ({error}); expected {EXPECTED}.") from None
    for name in map(str, frame.columns):
        if name not in COLUMNS:
            raise TraceError(f"{path}: {unknown('column', name, COLUMNS)}")
    missing = [name for name in REQUIRED if name not in frame.columns]
    if missing:
        raise TraceError(f"{path}: column {missing[0]} is missing; expected {EXPECTED}.")
    return _jobs(TraceTable(path, frame.reset_index(drop=True), text="", header=False))


def write(jobs: Jobs, path: str | Path) -> Path:
    """Write jobs as labkit's own CSV or Parquet, by the ending of the name; nothing half-written is ever seen.

    Columns that only repeat their default are left out of a CSV. A name that a spreadsheet would compute stands behind
    an apostrophe there, which `read_csv` takes away.

    Raises
    ------
    InputError
        If the name ends in neither .csv nor .parquet.
    """
    path = Path(path)
    if path.suffix not in {".csv", ".parquet"}:
        raise InputError(f"{path}: cannot tell the format from '{path.suffix}'; name it .csv or .parquet.")
    frame = jobs.to_frame()
    if path.suffix == ".csv":
        frame = _compact(frame)
        _change_texts(frame, spreadsheet_text)
        write_atomically(path, lambda scratch: frame.to_csv(scratch, index=False, lineterminator="\n"))
    else:
        write_atomically(path, lambda scratch: scratch.write_bytes(encode_frame(frame)))
    return path


def _header(text: str) -> list[str]:
    return first_row(text).split(",")


def _jobs(table: TraceTable) -> Jobs:
    frame = table.frame
    columns: dict[str, Any] = {}
    for name in map(str, frame.columns):
        columns[name] = _column(table, name)
    if "id" in columns:
        table.fault(frame["id"].astype("str").duplicated().to_numpy(), "id", expected="an id that occurs once")
    for most, column in (("max_workers", "n_workers"), ("max_ps", "n_ps")):
        if most in columns and column in columns:
            table.fault(columns[most] < columns[column], most, expected=f"at least {column}")
    table.check()
    import pandas as pd

    try:
        return Jobs.from_frame(pd.DataFrame(columns), name=table.path.stem)
    except InputError as error:
        raise TraceError(f"{table.path}: {error}") from None


def _column(table: TraceTable, name: str) -> Any:
    if name in _TEXT:
        return table.texts(name)
    if name in _NAMES:
        return names_of(table.frame[name])
    if name == "priority":
        return table.numbers(name, low=-MAX_NUMBER)
    if name in _COUNTS:
        return table.counts(name, low=_COUNTS[name], high=MAX_TASKS)
    if name == "sync":
        return _flags(table)
    optional, moment = name in _OPTIONAL, name in _MOMENTS
    return table.numbers(name, low=0, above=optional or name in _POSITIVE, blank_ok=optional or moment)


def _flags(table: TraceTable) -> Any:
    text = table.frame["sync"].astype("str").str.strip().str.lower()
    table.fault(~text.isin(["true", "false", "0", "1"]).to_numpy(), "sync", expected="True or False")
    return text.isin(["true", "1"]).to_numpy()


def _change_texts(frame: pd.DataFrame, change: Callable[[str], str]) -> None:
    """Change the cells of text in a table."""
    for name in {*_TEXT, *_NAMES} & {*frame.columns}:
        frame[name] = [change(cell) if isinstance(cell, str) else cell for cell in frame[name]]


def _compact(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table without the columns that `Jobs.of` would fill in alike."""
    defaults: dict[str, Any] = {
        "true_steps": frame["total_steps"],
        "steps_per_epoch": frame["total_steps"],
        "max_workers": frame["n_workers"],
        "max_ps": frame["n_ps"],
        "sync": True,
        "home": -1,
        "device_type": "",
        "measured_on": "",
        "priority": 0.0,
        "reservation": "",
        "partition": "",
        "consolidate": "",
        "nodes": 0,
        **dict.fromkeys(("within", "constraint", "after", "array", "qos", "recorded_hosts"), ""),
        "at_most": 0,
        "weight": 1.0,
        "user": "user",
        "model": "job",
        "worker_gpus": 1.0,
        "worker_cpus": 1.0,
        "worker_memory_gb": 0.0,
        "ps_gpus": 0.0,
        "ps_cpus": 1.0,
        "ps_memory_gb": 0.0,
        "n_ps": 0,
        "n_workers": 1,
        "gpu_memory_gb": 0.0,
        "ps_memory_base_gb": 0.0,
        "ps_memory_growth_gb": 0.0,
    }
    idle = [name for name, value in defaults.items() if bool(np.all(frame[name] == value))]
    idle += [name for name in (*_OPTIONAL, *_MOMENTS) if frame[name].isna().all()]
    return frame.drop(columns=idle)
