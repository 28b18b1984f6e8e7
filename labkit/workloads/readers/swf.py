"""The Standard Workload Format of the Parallel Workloads Archive: 18 numbers a line behind a header of comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import TraceError
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats
from labkit.workloads.readers.base import TraceTable, from_zero, lines_of, per_gpu, started, text_of
from labkit.workloads.readers.ledger import Read, Segments, TraceLedger

COLUMNS: Final = (
    "job", "submit", "wait", "run", "processors", "cpu_time", "memory", "asked_processors", "asked_time",
    "asked_memory", "status", "user", "group", "program", "queue", "partition", "after", "think_time",
)  # fmt: skip
"""The fields, in their order [1]_; -1 says that one is not known.

References
----------
.. [1] Chapin et al., "Benchmarks and standards for the evaluation of parallel job schedulers", JSSPP 1999.
"""
EXPECTED: Final = "the Standard Workload Format: 18 numbers a line, separated by spaces, behind comments with ;"
GPUS, ASKED_GPUS = "gpus", "asked_gpus"
_FIELD_OF_GPUS: Final = re.compile(
    r"^\s*;\s*(?:fields?[\s:#]*(\d\d)\b|(\d\d)\s*[:=.)])[^\d\n]*?gpus?\b", re.IGNORECASE | re.MULTILINE
)
"""A comment that names a further field as that of GPUs: "; Field 19: requested GPUs"."""
_ASKED: Final = re.compile(r"\b(?:req|request|requested|asked)\b", re.IGNORECASE)
PARTIAL: Final = (2, 3, 4)
"""States of lines that are parts of a job which has a line of its own."""


def read_swf(path: str | Path) -> Jobs:
    """Return the jobs of a file in the Standard Workload Format, each of its processors as a GPU.

    A job is a rigid gang of one worker per processor; its steps are its seconds. Raise TraceError with every fault,
    with line and column.
    """
    return swf(path).jobs


def looks_like_swf(head: str) -> bool:
    """Return whether a text begins like this format: comments, and then a line of 18 numbers or more."""
    lines = [line for _, line in lines_of(head)[:500]]
    rows = [line.split() for line in lines if not line.lstrip().startswith(";")]
    return bool(rows) and len(rows[0]) >= len(COLUMNS) and all(_NUMBER.fullmatch(cell) for cell in rows[0])


_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")


def swf(path: str | Path) -> Read:
    """Return the jobs of a file in the Standard Workload Format, what became of its lines, and when jobs ran."""
    table = _table(Path(path))
    column = {name: table.numbers(name, low=-1) for name in table.frame.columns}
    ledger = TraceLedger(len(table), noun="lines")
    lost = table.give_up_rows(ledger)
    known = _known(column)
    processors = np.where(np.isnan(known["processors"]), known["asked_processors"], known["processors"])
    gpus = known.get(GPUS, processors)
    lasted_s, start_s = known["run"], known["submit"] + known["wait"]
    parts = np.isin(column["status"], PARTIAL)
    unit = "GPUs" if GPUS in known else "processors"
    ledger.open(np.where(parts, 0.0, gpus * lasted_s / 3600))
    kept = ~lost
    for bad, reason in (
        (parts, "of parts of jobs that have a line of their own (states 2 to 4)"),
        (np.isnan(known["submit"]), "without a time of submission"),
        (np.isnan(lasted_s), "without a run time (never started, or not known)"),
        (lasted_s == 0, "of 0 seconds"),
        (~(gpus > 0), f"without {unit}"),
        (gpus > MAX_TASKS, f"of more than {MAX_TASKS:,} {unit}"),
    ):
        ledger.leave_out(kept & bad, reason)
        kept &= ~bad
    ledger.refuse_none(path, f"expected {EXPECTED}")
    _note(ledger, table, known, kept)
    workers, demand = per_gpu(gpus[kept], cpus=processors[kept] if GPUS in known else np.nan)
    jobs = Jobs.of(
        name=table.path.name,
        id=_unique([str(int(job)) for job in np.nan_to_num(column["job"][kept], nan=-1)]),
        user=[f"user{int(user)}" if user >= 0 else "user" for user in np.nan_to_num(column["user"][kept], nan=-1)],
        model=[f"program{int(n)}" if n >= 0 else "job" for n in np.nan_to_num(column["program"][kept], nan=-1)],
        arrival_s=from_zero(known["submit"][kept]),
        total_steps=lasted_s[kept],
        duration_s=lasted_s[kept],
        n_workers=workers,
        worker_demand=demand,
        limit_s=np.where(known["asked_time"][kept] > 0, known["asked_time"][kept], np.nan),
        recorded_start_s=started(start_s[kept], known["submit"][kept]),
    )
    segments = Segments.of(gpus[kept], start_s[kept], (start_s + lasted_s)[kept])
    return Read(ledger.close(jobs), ledger, segments, float(known["submit"][kept].min()))


def _known(column: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return fields with NaN for what is not known, and GPUs asked for where those that a job got are not known."""
    known = {name: np.where(values < 0, np.nan, values) for name, values in column.items()}
    if ASKED_GPUS in known:
        got = known.get(GPUS, np.full_like(known[ASKED_GPUS], np.nan))
        known[GPUS] = np.where(np.isnan(got), known[ASKED_GPUS], got)
    return known


def _note(ledger: TraceLedger, table: TraceTable, known: Mapping[str, Floats], kept: Bools) -> None:
    """Note what is doubtful of the file, and what was guessed of its jobs."""
    for doubt in table.doubts:
        ledger.check(doubt)
    if GPUS not in known:
        ledger.remark(kept, "processors, each of which counts as a GPU")
    unallocated = kept & np.isnan(known["processors"])
    ledger.remark(unallocated, "no processors allocated, so that they have those they asked for")


def _table(path: Path) -> TraceTable:
    """Return the lines that are no comments; of fields beyond the 18th the one that a comment names GPUs."""
    text = text_of(path, expected=EXPECTED)
    lines = [(number, line.split()) for number, line in lines_of(text) if not line.lstrip().startswith(";")]
    short = [(number, len(cells)) for number, cells in lines if len(cells) < len(COLUMNS)]
    if short or not lines:
        where = f"line {short[0][0]}: {short[0][1]} cells" if short else "it has no jobs"
        raise TraceError(f"{path}: {where}; expected {EXPECTED}.")
    import pandas as pd

    frame = pd.DataFrame([cells[: len(COLUMNS)] for _, cells in lines], columns=list(COLUMNS))
    more = min(len(cells) for _, cells in lines)
    named = _fields_of_gpus(text, most=more)
    for name, place in named.items():
        frame[name] = [cells[place - 1] for _, cells in lines]
    table = TraceTable(path, frame, text=text, header=False, lines=[number for number, _ in lines])
    if more > len(COLUMNS) and not named:
        table.doubts.append(
            f"fields 19 to {more} are not read; a comment such as '; Field 19: GPUs' says that one counts GPUs."
        )
    return table


def _fields_of_gpus(text: str, *, most: int) -> dict[str, int]:
    """Return the places of the fields that comments name as GPUs that jobs got, and as those that they asked for."""
    named: dict[str, int] = {}
    for match in _FIELD_OF_GPUS.finditer(text):
        comment = text[match.start() : text.find("\n", match.end())]
        if len(COLUMNS) < (place := int(match[1] or match[2])) <= most:
            named.setdefault(ASKED_GPUS if _ASKED.search(comment) else GPUS, place)
    return named


def _unique(names: list[str]) -> list[str]:
    return names if len(set(names)) == len(names) else [str(i) for i in range(len(names))]
