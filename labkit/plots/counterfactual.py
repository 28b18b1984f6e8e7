"""Sections of a report about one job, or one moment: what each run did then, and why."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.core.text import human_s
from labkit.plots.page import PageTable, Section, TableCell
from labkit.results.counterfactual import jobs_of_moment, of_job, of_moment
from labkit.results.record import RunRecord

MOST_ROWS = 40
"""Jobs of a moment about which runs differ."""


def counterfactuals(records: Sequence[RunRecord], *, job: str | None, at_s: float | None) -> list[Section]:
    """Return a section on a job and two on a moment, in seconds after the first arrival; none where neither is named.

    Raise InputError if there is no such job.
    """
    sections = [] if job is None else [_job(records, job)]
    return sections if at_s is None else [*sections, _moment(records, at_s), _jobs(records, at_s)]


def _job(records: Sequence[RunRecord], job: str) -> Section:
    frame = of_job(records, job)
    headings = {"waited_s": "Waited", "start_s": "Start", "end_s": "End", "machines": "Machines", "why": "Why"}
    return Section(
        f"Job {job} under each scheduler", [], lead="Start and end are counted from the first arrival.",
        table=_table(frame, "scheduler", headings, name="job"),
    )  # fmt: skip


def _moment(records: Sequence[RunRecord], at_s: float) -> Section:
    headings = {
        "running": "Jobs running", "waiting": "Jobs waiting", "gpus": "GPUs in use", "next_s": "Next start",
        "starts": "Jobs that start then", "first": "Waits longest", "why": "Why",
    }  # fmt: skip
    table = _table(of_moment(records, at_s), "scheduler", headings, name="moment")
    return Section(f"{human_s(at_s)} after the first arrival", [], table=table)


def _jobs(records: Sequence[RunRecord], at_s: float) -> Section:
    frame = jobs_of_moment(records, at_s)
    differ = frame[frame["differs"]]
    names = {str(name): str(name) for name in frame.columns[4:]}
    more = f" The first {MOST_ROWS} are shown." if len(differ) > MOST_ROWS else ""
    lead = f"The runs differ about {len(differ):,} of {len(frame):,} jobs that some run has not done by then.{more}"
    table = _table(differ.head(MOST_ROWS), "job", {"gpus": "GPUs", **names}, name="jobs-of-moment")
    return Section(f"Jobs {human_s(at_s)} after the first arrival", [], lead=lead, table=table)


def _table(frame: pd.DataFrame, label: str, headings: dict[str, str], *, name: str) -> PageTable:
    rows = [
        (str(row[label]), [_cell(row[column], is_time=str(column).endswith("_s")) for column in headings])
        for row in frame.to_dict("records")
    ]
    return PageTable(list(headings.values()), rows, name=name)


def _cell(value: object, *, is_time: bool) -> TableCell:
    if isinstance(value, str):
        return TableCell(value)
    number = float(value)  # type: ignore[arg-type]
    return TableCell(human_s(number) if is_time else f"{number:,.10g}", value=number)
