"""Readers of traces, each a function from a file to Jobs; `read` tells the formats apart by their contents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from labkit.core.errors import TraceError, unknown
from labkit.core.jobs import Jobs
from labkit.workloads.named_traces import located
from labkit.workloads.readers import alibaba, gavel, google2011, helios, own, philly
from labkit.workloads.readers.alibaba import read_alibaba_2020, read_alibaba_2023
from labkit.workloads.readers.base import bytes_of, lines_of
from labkit.workloads.readers.gavel import read_gavel, read_gavel_old
from labkit.workloads.readers.google2011 import read_google_2011
from labkit.workloads.readers.helios import read_helios
from labkit.workloads.readers.kubernetes import is_pods, read_kubernetes
from labkit.workloads.readers.mapped import read_mapped, sidecar
from labkit.workloads.readers.own import read_csv, read_parquet, write
from labkit.workloads.readers.philly import read_philly_csv, read_philly_log
from labkit.workloads.readers.sacct import lacks_header, read_sacct, separator_of

__all__ = [
    "FORMATS", "read", "read_alibaba_2020", "read_alibaba_2023", "read_csv", "read_gavel", "read_gavel_old",
    "read_google_2011", "read_helios", "read_kubernetes", "read_mapped", "read_parquet", "read_philly_csv",
    "read_philly_log", "read_sacct", "sniff", "write",
]  # fmt: skip

FORMATS: Final[dict[str, Callable[[str | Path], Jobs]]] = {
    "csv": read_csv,
    "parquet": read_parquet,
    "gavel": read_gavel,
    "gavel-old": read_gavel_old,
    "philly-csv": read_philly_csv,
    "philly-log": read_philly_log,
    "helios": read_helios,
    "alibaba-2020": read_alibaba_2020,
    "alibaba-2023": read_alibaba_2023,
    "google-2011": read_google_2011,
    "sacct": read_sacct,
    "kubernetes": read_kubernetes,
    "mapped": read_mapped,
}
"""Name of each format and its reader."""

_HEADERS: Final = {
    "alibaba-2023": alibaba.COLUMNS,
    "helios": helios.COLUMNS,
    "philly-csv": philly.COLUMNS,
    "csv": own.REQUIRED,
}
_WIDTHS: Final = {
    ("\t", len(gavel.COLUMNS)): "gavel",
    ("\t", len(gavel.OLD_COLUMNS)): "gavel-old",
    (",", len(google2011.COLUMNS)): "google-2011",
    (",", len(alibaba.JOB_COLUMNS)): "alibaba-2020",
}


def read(path: str | Path, *, format: str | None = None) -> Jobs:
    """Return the jobs of a trace, of the format named or of the one its contents show.

    Parameters
    ----------
    path : str or Path
        A file, or the name of a trace that comes with labkit, such as "demo".
    format : str, optional
        One of `FORMATS`.

    Raises
    ------
    TraceError
        If the file cannot be read or is of no known format; or every fault in it, with line and column.
    InputError
        If there is no such format.
    """
    if format is not None and format not in FORMATS:
        raise unknown("format", format, FORMATS)
    path = located(path)
    return FORMATS[format or sniff(path)](path)


def sniff(path: str | Path) -> str:
    """Return the format of a trace, from its first line.

    Raises
    ------
    TraceError
        If the file cannot be read, or looks like none of the formats.
    """
    path = located(path)
    if path.is_dir():
        return _sniff_folder(path)
    if sidecar(path).exists():
        return "mapped"
    raw = bytes_of(path, expected=f"a trace ({', '.join(FORMATS)}), or the name of one that `labkit traces list` shows")
    if raw[:4] == b"PAR1":
        return "parquet"
    if b"\0" in raw[:4096]:
        raise TraceError(f"{path}: binary data; expected a trace as text or Parquet ({', '.join(FORMATS)}).")
    head = raw[: 1 << 16].decode("utf-8-sig", "replace")
    first = next((line for _, line in lines_of(head)), "")
    found = _sniff_object(head) if first.lstrip().startswith("{") else _sniff_line(first)
    if found is None:
        raise TraceError(
            f"{path}: line 1 is '{first[:60]}'; expected the first line of a trace ({', '.join(FORMATS)}). "
            f"Name the format with --format, or tell what its columns mean: labkit traces import {path}"
        )
    return found


def _sniff_object(head: str) -> str:
    if is_pods(head):
        return "kubernetes"
    return "sacct" if '"jobs"' in head else "philly-log"


def _sniff_line(line: str) -> str | None:
    if line.lstrip().startswith("["):
        return "philly-log"
    if separator_of(line) is not None or "jobid" in line.lower().split() or lacks_header(line):
        return "sacct"
    names = {name.strip().strip('"') for name in line.split(",")}
    for kind, columns in _HEADERS.items():
        if names >= set(columns):
            return kind
    if names & set(own.REQUIRED):  # one is missing or misspelt; the reader says which
        return "csv"
    separator = "\t" if "\t" in line else ","
    return _WIDTHS.get((separator, line.count(separator) + 1))


def _sniff_folder(path: Path) -> str:
    if (path / "pai_job_table.csv").exists():
        return "alibaba-2020"
    if any(path.glob("part-*.csv*")):
        return "google-2011"
    raise TraceError(f"{path}: a folder without pai_job_table.csv or part-*.csv; name the file of the trace.")
