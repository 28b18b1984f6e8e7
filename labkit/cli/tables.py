"""Tables in a terminal, a pipe or a file: long words are folded where there is little room, a number is never cut."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from labkit.system.printing import printable, terminal

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Column, Table
    from rich.text import Text

    from labkit.results.record import RunRecord


PIPED: Final = 100
"""Characters in a line of text, and of a table where there is no terminal; more where numbers need them."""

FOLDED: Final = 24
"""Characters that a column of words keeps at least."""


def new_table() -> Table:
    """Return a table without lines, to be given columns and rows."""
    from rich.table import Table

    return Table(box=None, header_style="bold")


def numbers(table: Table, *headings: str) -> None:
    """Add columns of numbers: to the right, in one line."""
    for heading in headings:
        table.add_column(_lines(heading), justify="right", no_wrap=True)


def words(table: Table, *headings: str) -> None:
    """Add columns of words that may be folded."""
    for heading in headings:
        table.add_column(_lines(heading), overflow="fold")


def _lines(heading: str) -> Text:
    """Return a heading, which may have lines; a cell has one."""
    from rich.text import Text

    return Text(printable(heading, keep="\n"))


def say(text: str) -> None:
    """Print a text in lines of at most `PIPED` characters; no word is cut."""
    print(textwrap.fill(text, PIPED, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def show(table: Table) -> None:
    """Print a table; a terminal that is too narrow for its numbers breaks the lines itself."""
    console = terminal(width=None if sys.stdout.isatty() else PIPED)
    if console.width < (needed := sum(map(_width, table.columns))):
        console = terminal(width=needed)
    console.print(table, soft_wrap=False, crop=False)


def _width(column: Column) -> int:
    """Return the characters that a column needs, with the space around it."""
    from rich.cells import cell_len

    lines = [*str(column.header).split("\n"), *(printable(str(cell)) for cell in column.cells)]
    longest = max(map(cell_len, lines))
    return (longest if column.no_wrap else min(longest, FOLDED)) + 2


GAVEL = "gavel-36x3"
"""The cluster of a comparison that names none, where the trace has none of its own."""

JSON_KEYS = (
    "scheduler", "mean_jct_s", "median_jct_s", "p95_jct_s", "makespan_s", "n_jobs", "utilisation", "dollars", "in_time",
    "n_forwarded", "bound", "times_bound", "wall_s", "speeds", "notes",
)  # fmt: skip
COLUMNS = {
    "label": "scheduler",
    "n_done": "done",
    "mean_jct_s": "mean JCT",
    "median_jct_s": "median JCT",
    "p95_jct_s": "p95 JCT",
    "makespan_s": "makespan",
    "mean_queueing_s": "queueing",
    "utilisation": "GPUs held",
    "dollars": "cost",
    "in_time": "SLOs met",
    "n_forwarded": "for-\nwarded",
    "times_bound": "times\nbound",
    "wall_s": "took",
}
OPTIONAL: dict[str, Callable[[float], str]] = {
    "n_done": "{:,.0f}".format,
    "utilisation": "{:.0%}".format,
    "dollars": "${:,.2f}".format,
    "in_time": "{:.0%}".format,
    "n_forwarded": "{:,.0f}".format,
    "times_bound": "{:.3g}".format,
}
"""Columns that are left out where no run has a number for them (or no job is forwarded, or all are done), and how they
are written."""


def as_json_row(record: RunRecord) -> dict[str, Any]:
    """Return the fields of a run for `--json`."""
    from labkit.results.comparison import WHAT, bills, bound_jct_s, in_time
    from labkit.results.notes import notes

    bound_s = bound_jct_s(record)

    told = {"scheduler": record.info.scheduler, "wall_s": record.info.wall_s, **record.summary}
    told |= {"dollars": bills([record])[0], "in_time": in_time(record)}
    told |= {"bound": {"mean_jct_s": bound_s, "what": WHAT} if bound_s == bound_s else None}
    told |= {"times_bound": record.summary["mean_jct_s"] / bound_s}
    told |= {"speeds": record.info.config["speeds"], "notes": notes([record])}
    return {key: _number(told[key]) for key in JSON_KEYS}


def _number(value: Any) -> Any:
    """Return a number as JSON can hold it: NaN becomes null."""
    return None if isinstance(value, float) and value != value else value


def usual_cluster(trace: Path) -> tuple[str, str]:
    """Return the cluster on which a trace is compared where none was named, and the line of the header that says so.

    A shipped trace may have a cluster of its own name; all others get Gavel's.

    >>> usual_cluster(Path("demo"))[0], usual_cluster(Path("philly-like"))[0]
    ('demo', 'gavel-36x3')
    """
    from labkit.topology.presets import PRESETS
    from labkit.workloads.named_traces import located, shipped

    file = shipped().get(trace.stem)
    if file is not None and trace.stem in PRESETS and located(trace).resolve() == file.resolve():
        return trace.stem, f"cluster: {trace.stem}, the preset of the trace's name; --cluster names another"
    return GAVEL, f"cluster: {GAVEL}, the default; --cluster names another"


def print_header(records: list[RunRecord], *, usual: str = "") -> None:
    """Print what was simulated, how fast jobs are said to be, and what a reader of the numbers has to know.

    `usual` tells which cluster was taken, if none was named.
    """
    from labkit.results.notes import notes

    first = records[0]
    say(f"{len(first.jobs)} jobs of {first.jobs.name}{first.arrivals}{',' * bool(first.arrivals)} on {first.cluster}")
    if usual:
        say(usual)
    say(f"speeds: {first.info.config['speeds']}")
    for said in dict.fromkeys(filter(None, map(_prices, records))):
        say(said)
    for note in notes(records):
        say(f"note: {note}")


def _bound(record: RunRecord) -> str | None:
    """Return the line that tells the mean JCT below which no scheduler can be, in the unit of the table."""
    from labkit.core.text import time_unit
    from labkit.results.comparison import FASTER, bound_jct_s, reported_bound

    if (bound_s := bound_jct_s(record)) != bound_s:
        return None
    scale, unit = time_unit(bound_s)
    faster = bool(record.info.config.get(FASTER, False))
    return reported_bound(f"a mean JCT of {bound_s / scale:,.4g} {unit}", faster=faster)


def _prices(record: RunRecord) -> str:
    from labkit.results.comparison import prices_of

    told = [f"{kind} {price:g} $" for kind, price in prices_of(record).items() if kind in record.cluster.device_types]
    return f"prices: {', '.join(told)} per GPU and hour" if told else ""


def _compared(records: list[RunRecord]) -> tuple[pd.DataFrame, int]:
    """Return a row for each run, without columns that say nothing here, and the row of the best one; -1: none.

    The best one has the least mean JCT of those that did the most jobs.
    """
    from labkit.results.comparison import run_table

    frame = run_table(records)
    most = frame["mean_jct_s"][frame["n_done"] == frame["n_done"].max()]
    if not frame["n_forwarded"].any():
        frame["n_forwarded"] = float("nan")
    if not frame["n_unfinished"].any():
        frame["n_done"] = float("nan")
    return frame, int(most.idxmin()) if most.notna().any() else -1


def print_table(records: list[RunRecord]) -> None:
    """Print a row for each run, the best one in bold, and below which mean JCT no scheduler can be."""
    from labkit.core.text import time_unit

    frame, best = _compared(records)
    table = new_table()
    cells = []
    for column, heading in COLUMNS.items():
        if column in OPTIONAL and frame[column].isna().all():
            continue
        shown = [str(value) for value in frame[column]]
        if column == "label":
            words(table, heading)
        elif column in OPTIONAL:
            numbers(table, heading)
            shown = ["–" if value != value else OPTIONAL[column](value) for value in frame[column]]
        else:
            scale, unit = time_unit(float(frame[column].median()))
            numbers(table, f"{heading}\n({unit})")
            shown = [f"{value / scale:,.2f}" for value in frame[column]]
        cells.append(shown)
    for i, row in enumerate(zip(*cells, strict=True)):
        table.add_row(*row, style="bold" if i == best else None)
    show(table)
    if bounds := list(filter(None, map(_bound, records))):
        say(bounds[0])


def print_by(records: list[RunRecord], by: str) -> None:
    """Print mean JCT and queueing of each partition, user or model, a column for each run."""
    from labkit.core.text import time_unit
    from labkit.results.comparison import labels, table_by

    frame = table_by(records, by)
    table = new_table()
    words(table, by)
    numbers(table, "jobs", "GPU-hours")
    cells = [[str(name) for name in frame["", by]], [f"{n:,}" for n in frame["", "jobs"]]]
    cells.append([f"{hours:,.1f}" for hours in frame["", "gpu_hours"]])
    for label in labels(records):
        for column, heading in (("jct_s", "mean JCT"), ("queueing_s", "queueing")):
            scale, unit = time_unit(float(frame[label, column].median()))
            numbers(table, f"{label}\n{heading} ({unit})")
            cells.append(["–" if value != value else f"{value / scale:,.2f}" for value in frame[label, column]])
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    show(table)


def print_finding(records: list[RunRecord]) -> None:
    """Print which run has the lowest mean JCT: the last line."""
    from labkit.results.conclusion import finding

    if said := finding(records):
        say(said)


def print_calibration(records: list[RunRecord], *, as_json: bool) -> None:
    """Print how far simulated runs are from the recorded one, if there is one."""
    from labkit.results.calibration import calibration

    for said in [] if as_json else calibration(records):
        say(said)


def print_against(records: list[RunRecord], *, base: str | None, as_json: bool) -> None:
    """Print how each run compares with one of them, or why it does not."""
    from labkit.results.comparison import labels
    from labkit.results.conclusion import against

    if as_json:
        if base is not None:
            print(f"labkit: note: --json compares with {base} only with --seeds; the table does", file=sys.stderr)
        return
    whole = {label: record for label, record in zip(labels(records), records, strict=True) if record.complete}
    told = against(whole, base=base)
    if base is not None and not told:
        why = "no other scheduler has done all jobs" if base in whole else "it has not done all jobs"
        told = [f"note: nothing is compared with {base}: {why}."]
    for said in told:
        say(said)
