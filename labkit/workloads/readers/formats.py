"""Which format a file has: what speaks for each, how much, and why; a user may overrule it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from labkit.core.errors import TraceError
from labkit.workloads.readers import alibaba, gavel, google2011, helios, own, philly
from labkit.workloads.readers.accounting import SLURMDB, looks_like_dump, looks_like_lsf, looks_like_pbs
from labkit.workloads.readers.base import bytes_of, first_row, header_of, is_yaml, lines_of
from labkit.workloads.readers.google2019 import looks_like_events
from labkit.workloads.readers.kubernetes import is_pods
from labkit.workloads.readers.listings import looks_like_qstat, looks_like_scontrol
from labkit.workloads.readers.mapping import sidecar, sureness
from labkit.workloads.readers.published import POLLUX_COLUMNS, TABLES, recognised
from labkit.workloads.readers.records import looks_like_records
from labkit.workloads.readers.sacct_files import header_below, lacks_header, separator_of
from labkit.workloads.readers.swf import looks_like_swf


class Guess(NamedTuple):
    """A format that a file may have: how much speaks for it, from 0 to 1, and what."""

    format: str
    score: float
    why: str


ENOUGH: Final = 0.5
"""A file is taken for a format from that score on; below, a user has to say so."""

TABLE: Final = "mapped"
_HEADERS: Final = {
    "alibaba-2023": alibaba.COLUMNS,
    "helios": helios.COLUMNS,
    "philly-csv": philly.COLUMNS,
}
_HEADERLESS: Final = {
    "gavel": ("\t", gavel.COLUMNS, (5, 6, 7, 8, 9)),
    "gavel-old": ("\t", gavel.OLD_COLUMNS, (4, 5, 6)),
    "shockwave": ("\t", gavel.SHOCKWAVE_COLUMNS, (5, 6, 8, 9, 10, 11)),
    "google-2011": (",", google2011.COLUMNS, (0, 2, 3, 5)),
    "alibaba-2020": (",", alibaba.JOB_COLUMNS, (4, 5)),
}
"""Formats without a header: separator, columns, and which of these hold numbers."""


def guesses(path: Path, *, formats: Sequence[str]) -> list[Guess]:
    """Return the possible formats of a file, the likeliest first.

    Raises
    ------
    TraceError
        If it cannot be read, or is binary and no Parquet.
    """
    if path.is_dir():
        return [_of_folder(path)]
    if sidecar(path).exists():
        return [Guess(TABLE, 1.0, f"{sidecar(path).name} beside it says what its columns mean")]
    raw = bytes_of(path, expected=f"a trace ({', '.join(formats)}), or the name of one that `labkit traces list` shows")
    if raw[:4] == b"PAR1":
        return [Guess("parquet", 1.0, "it begins with Parquet's PAR1")]
    wide = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
    if b"\0" in raw[:4096] and not wide:
        raise TraceError(f"{path}: binary data; expected a trace as text or Parquet ({', '.join(formats)}).")
    head = raw[: 1 << 16].decode("utf-16" if wide else "utf-8-sig", "replace")
    first = next((line for _, line in lines_of(head) if not line.startswith(("#", "sep="))), "")
    found = [guess for rule in _RULES if (guess := rule(head, first)) is not None]
    return sorted(found, key=lambda guess: -guess.score)


def first_line(path: Path) -> str:
    """Return the first line of a file that is not blank, as far as it can be read."""
    head = bytes_of(path, expected="a trace")[: 1 << 16].decode("utf-8-sig", "replace")
    return first_row(head)


def _of_folder(path: Path) -> Guess:
    if (path / "pai_job_table.csv").exists():
        return Guess("alibaba-2020", 1.0, "the folder has pai_job_table.csv")
    if any(path.glob("part-*.csv*")):
        return Guess("google-2011", 1.0, "the folder has part-*.csv")
    raise TraceError(f"{path}: a folder without pai_job_table.csv or part-*.csv; name the file of the trace.")


def _objects(head: str, first: str) -> Guess | None:
    """Return the possible formats of a JSON file, or of Kubernetes' YAML."""
    if is_yaml(head):
        return Guess("kubernetes", 1.0, "YAML with apiVersion, kind or items")
    if not first.lstrip().startswith(("{", "[")):
        return None
    if is_pods(head) or ('"apiVersion"' in head and '"kind"' in head):
        return Guess("kubernetes", 1.0, "JSON with apiVersion and items")
    seen = [key for key in ("job_id", "tres", "submission", "job_state", "submit_time") if f'"{key}"' in head]
    if ('"tres"' in head or '"tres_alloc_str"' in head) and len(seen) > 1:
        return Guess("sacct", min(1.0, 0.4 + 0.2 * len(seen)), f"JSON with jobs that have {', '.join(seen)}")
    seen = [key for key in ("jobid", "attempts", "submitted_time") if f'"{key}"' in head]
    listed = first.lstrip().startswith("[")
    if seen or (listed and not looks_like_records(head)):
        why = f"JSON with {', '.join(seen)}" if seen else "a list in JSON"
        return Guess("philly-log", max(0.5 * listed, len(seen) / 3), why)
    return Guess(TABLE, 0.4, "records in JSON") if looks_like_records(head) else None


def _swf(head: str, _first: str) -> Guess | None:
    return Guess("swf", 1.0, "comments with ; and lines of 18 numbers") if looks_like_swf(head) else None


def _slurm(head: str, first: str) -> Guess | None:
    """Return whether a text is what sacct prints; its header may stand below lines of complaint."""
    if looks_like_scontrol(head):
        return Guess("sacct", 1.0, "jobs as scontrol show job prints them")
    header = first if separator_of(first) else (header_below(head) or (0, first))[1]
    separator = separator_of(header)
    if separator is None:
        aligned = "jobid" in first.lower().split()
        looks = aligned or lacks_header(first)
        return (
            Guess("sacct", 0.6, "columns aligned like sacct's" if aligned else "rows like sacct's") if looks else None
        )
    names = header_of(header, separator)
    known = {name.strip().lower() for name in names}
    if known & {"alloctres", "reqtres", "allocgres", "reqgres"}:
        return Guess("sacct", 1.0, "its header has JobID, times and AllocTRES or ReqTRES")
    others = [name for name in names if sureness("gpus", name)]
    why = f"its header has JobID and times, but no AllocTRES{f', and GPUs in {others[0]}' if others else ''}"
    return Guess("sacct", 0.3 if others else 0.6, why)


def _accounting(head: str, first: str) -> Guess | None:
    """Return which batch system's accounting a text is, or Google's events."""
    if looks_like_events(head):
        return Guess("google-2019", 0.95, "events with time, type, collection_id and instance_index")
    if looks_like_dump(head):
        return Guess("slurmdb", 1.0, "a dump of a database")
    if set(SLURMDB) <= {name.strip() for name in header_of(first, max("\t,|;", key=first.count))}:
        return Guess("slurmdb", 1.0, f"its header has {', '.join(SLURMDB)}")
    if looks_like_pbs(first):
        return Guess("pbs", 1.0, "records of PBS: date;kind;job;...")
    if looks_like_qstat(head):
        return Guess("pbs", 1.0, "jobs as qstat -f prints them")
    return Guess("lsf", 1.0, "records of LSF that begin with JOB_FINISH") if looks_like_lsf(first) else None


def _with_header(_head: str, first: str) -> Guess | None:
    """Return the public format whose columns all stand in a header."""
    names = {name.strip().strip('"') for name in first.split(",")}
    fits = {kind: columns for kind, columns in _HEADERS.items() if names >= set(columns)}
    if kind := recognised(names):
        headers = [header for header in (*TABLES[kind].headers,) if names >= set(header)] if kind in TABLES else []
        fits[kind] = headers[0] if headers else POLLUX_COLUMNS
    best = max(fits, key=lambda kind: len(fits[kind]), default="")
    return Guess(best, 0.95, f"its header has {', '.join(fits[best])}") if best else None


def _own(_head: str, first: str) -> Guess | None:
    names = {name.strip().strip('"') for name in first.split(",")}
    there = [name for name in own.REQUIRED if name in names]
    if not there:
        return None
    share = len(names & own.COLUMNS) / len(names)
    why = f"its header has {' and '.join(there)}, and {share:.0%} of its columns are labkit's own"
    return Guess("csv", 0.6 + 0.4 * share if len(there) > 1 else 0.8 * share, why)


def _headerless(_head: str, first: str) -> Guess | None:
    """Return the format without a header whose number of columns, and whose numbers, the first line has."""
    for kind, (separator, columns, numeric) in _HEADERLESS.items():
        cells = [cell.strip() for cell in first.split(separator)]
        if cells[: len(columns)] == list(columns):
            return Guess(kind, 1.0, f"its header is {kind}'s")
        if len(cells) != len(columns):
            continue
        fit = sum(_NUMBER.fullmatch(cells[i]) is not None for i in numeric) / len(numeric)
        shown = ", ".join(columns[i] for i in numeric)
        width = f"{len(cells)} cells by {'tabs' if separator == chr(9) else 'commas'}"
        if fit == 1.0:
            return Guess(kind, 0.8, f"{width}, with numbers where {shown} stand")
        return Guess(
            kind, 0.6 * fit if fit < 1 and not _words(cells) else 0.1, f"{width}, {fit:.0%} of {shown} numbers"
        )
    return None


_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|")


def _words(cells: Sequence[str]) -> bool:
    """Return whether cells look like a header: words, and no numbers."""
    return all(re.fullmatch(r"[^\d\W][^\n]*", cell) for cell in cells)


def _table(_head: str, first: str) -> Guess | None:
    """Return that a text is a table with a header, whose columns a user has to name."""
    if looks_like_records(first):
        return None
    separator = max(",;\t|", key=first.count)
    cells = [cell.strip() for cell in header_of(first, separator)]
    if len(cells) < 2 or not _words([cell for cell in cells[1:] if cell] or [""]):
        return None
    sure = [
        name for name in ("arrival", "start", "duration", "end", "gpus") if any(sureness(name, cell) for cell in cells)
    ]
    return Guess(
        TABLE,
        min(0.45, 0.2 + 0.05 * len(sure)),
        f"a table with a header{', with columns for ' * bool(sure)}{', '.join(sure)}",
    )


_RULES: Final[tuple[Callable[[str, str], Guess | None], ...]] = (
    _objects, _swf, _accounting, _slurm, _with_header, _own, _headerless, _table,
)  # fmt: skip
