"""`labkit traces import`: shows what the columns of a table seem to mean, asks, and remembers the answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pandas as pd

    from labkit.workloads.readers.mapping import ColumnMap
    from labkit.workloads.readers.tally import Read

N_EXAMPLES = 3


def traces_import(
    file: Annotated[Path, typer.Argument(help="A table of jobs with a header, of any columns.", metavar="FILE")],
    map: Annotated[
        str, typer.Option(help="What columns mean: arrival=submit_time,duration=runtime:min (FIELD=COLUMN:UNIT).")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Keep what is proposed, without asking.")] = False,
) -> None:
    """Tell what the columns of any table of jobs mean; commands then read it like other traces.

    What is proposed is shown with how sure that is and examples; the answer is kept beside the file, in
    FILE.labkit.toml. The exit code is 1 where nothing was kept.
    """
    from labkit.core.errors import InputError
    from labkit.workloads.readers import mapped, sniff
    from labkit.workloads.readers.mapping import keep, named, sidecar

    told = named(map)
    known = _known_format(file) if not sidecar(file).exists() and not told else None
    if known is not None:
        print(f"{file} is a trace of format {known}, which needs no import: labkit traces info {file}")
        return
    if told and not sidecar(file).exists() and (found := _known_format(file)) is not None and found != "csv":
        raise InputError(f"{file} is a trace of format {found}, whose columns are known; leave --map out.")
    frame, separator = mapped.table(file)
    mapping = mapped.proposed(frame, separator, told=told)
    show_proposal(file, frame, mapping)
    read = mapped.mapped(file, mapping)
    _show_read(read)
    if not yes and not _agreed():
        print(f"Not kept. Change it with --map FIELD=COLUMN[:UNIT],..., or keep it: labkit traces import {file} --yes")
        raise typer.Exit(1)
    print(f"kept in {keep(mapping, file)}; now: labkit compare {file} --cluster ...")
    assert sniff(file) == "mapped"


def _known_format(file: Path) -> str | None:
    from labkit.core.errors import TraceError
    from labkit.workloads.readers import sniff

    try:
        return sniff(file)
    except TraceError:
        return None


def show_proposal(file: Path, frame: pd.DataFrame, mapping: ColumnMap) -> None:
    """Print a row for each field that a column means, and the columns that are not used."""
    from rich.table import Table

    from labkit.cli_table import show, words
    from labkit.workloads.readers.mapping import FIELDS

    print(f"{file}: {len(frame):,} rows, columns separated by {mapping.separator!r}")
    table = Table(box=None, header_style="bold")
    for heading in ("field", "what it is", "column", "unit", "how sure", "examples"):
        words(table, heading)
    for name, source in mapping.sources.items():
        seen = [value for value in frame[source.column].dropna().unique() if str(value).strip()][:N_EXAMPLES]
        shown = " | ".join(str(value)[:24] for value in seen)
        unit = source.unit if FIELDS[name].units else ""
        table.add_row(name, FIELDS[name].what, source.column, unit, source.sure, shown)
    show(table)
    used = {source.column for source in mapping.sources.values()}
    if unused := [str(column) for column in frame.columns if column not in used]:
        print(f"not used: {', '.join(unused[:20])}{f' and {len(unused) - 20} more' * (len(unused) > 20)}")
    if absent := [name for name in FIELDS if name not in mapping.sources]:
        print(f"no column for: {', '.join(absent)}")


def _show_read(read: Read) -> None:
    print(f"{len(read.jobs):,} jobs of {read.tally.n_rows:,} rows")
    for note in read.jobs.notes:
        print(f"note: {note}")


def _agreed() -> bool:
    return sys.stdin.isatty() and typer.confirm("Read it so from now on?", default=True)
