"""The table of a report: what is told of each run, what is best, and what cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from labkit.core.text import human_s, time_unit
from labkit.plots import page
from labkit.results import RunRecord, notes, run_table
from labkit.results.bound import FASTER, bound_jct_s, told_bound
from labkit.results.cost import prices_of

COLUMNS: Final[tuple[tuple[str, str, bool | None], ...]] = (
    ("mean_jct_s", "Mean JCT", False),
    ("median_jct_s", "Median JCT", False),
    ("p95_jct_s", "p95 JCT", False),
    ("makespan_s", "Makespan", False),
    ("mean_queueing_s", "Queueing", False),
    ("utilisation", "GPUs held", None),
    ("dollars", "Cost ($)", False),
    ("in_time", "SLOs met", True),
    ("mean_stretch", "Stretch", False),
    ("mean_rho", "Mean ρ", False),
    ("max_rho", "Worst ρ", False),
    ("n_preemptions", "Preemptions", None),
    ("n_forwarded", "Forwarded", None),
    ("n_missing", "Unfinished", None),
)
"""Column of `run_table`, heading, and whether a higher number is better (None: neither)."""

OPTIONAL: Final = ("dollars", "in_time", "n_forwarded", "n_missing")
"""Left out where no run has a number for it, where no job was forwarded, or where all were done."""

OF_ALL_JOBS: Final = (
    "mean_jct_s", "median_jct_s", "p95_jct_s", "makespan_s", "mean_queueing_s", "dollars", "mean_stretch", "mean_rho",
    "max_rho",
)  # fmt: skip
"""Means nothing beside other runs unless all jobs are done."""


def runs_table(records: Sequence[RunRecord], *, lead: str = "") -> page.PageTable:
    """Return a row per run, with a note in front; what a run that was cut short did is not compared with others."""
    numbers = run_table(records)
    numbers["n_missing"] = numbers["n_trace"] - numbers["n_done"]
    cut = numbers["n_missing"] > 0
    numbers.loc[cut, list(OF_ALL_JOBS)] = np.nan
    if not numbers["n_forwarded"].any():
        numbers["n_forwarded"] = np.nan
    if not cut.any():
        numbers["n_missing"] = np.nan
    columns = [each for each in COLUMNS if each[0] not in OPTIONAL or numbers[each[0]].notna().any()]
    units = {name: _unit(name, numbers[name]) for name, _, _ in columns}
    best = {name: _best(numbers[name], higher=higher) for name, _, higher in columns}
    rows = []
    for _, row in numbers.iterrows():
        values = {name: float(row[name]) for name in units}
        cells = [_cell(values[name], name, scale=units[name][0], best=best[name]) for name in units]
        rows.append((str(row["label"]), cells))
    headings = [f"{heading}{units[name][1]}" for name, heading, _ in columns]
    told = [*filter(None, [lead]), *_table_notes(records, cut=bool(cut.any()), priced="dollars" in units)]
    return page.PageTable(headings, rows, pale=cut.tolist(), notes=told)


def _table_notes(records: Sequence[RunRecord], *, cut: bool, priced: bool) -> list[str]:
    """Return what to know of the numbers in the table."""
    told = ["GPUs held: of all GPUs, the part that jobs held. It is what a schedule costs; more is not better."]
    if cut:
        told.append(
            "Grey: not every job of the trace was done. Means over the jobs that were would flatter such a run, so "
            "they are left out."
        )
    prices = {
        kind: price
        for record in records
        for kind, price in prices_of(record).items()
        if kind in record.cluster.device_types
    }
    if prices and priced:
        at = ", ".join(f"{kind} {price:g} $" for kind, price in prices.items())
        told.append(f"Cost: of the GPUs that jobs held, at {at} per GPU and hour.")
    return [*told, *_bounds(records), *notes(records)]


def _bounds(records: Sequence[RunRecord]) -> list[str]:
    """Return the sentence on the bound of the mean JCT, where it is known."""
    bounds = [bound_jct_s(record) for record in records]
    if np.isnan(bounds).all():
        return []
    value = " to ".join(dict.fromkeys((human_s(np.nanmin(bounds)), human_s(np.nanmax(bounds)))))
    told = told_bound(f"a mean JCT of {value}", faster=any(record.info.config.get(FASTER) for record in records))
    return [f"{told[0].upper()}{told[1:]}."]


def _unit(name: str, column: pd.Series[Any]) -> tuple[float, str]:
    """Return what to divide a column by, and what its heading says of it."""
    if not name.endswith("_s") or column.dropna().empty:
        return 1.0, ""
    scale_s, unit = time_unit(float(column.median()))
    return scale_s, f" ({unit})"


def _best(column: pd.Series[Any], *, higher: bool | None) -> float:
    """Return the value to mark, NaN (equal to nothing) where there is nothing to win."""
    known = column.dropna().astype(float)
    if higher is None or known.nunique() < 2:
        return np.nan
    return float(known.max() if higher else known.min())


def _cell(value: float, name: str, *, scale: float, best: float) -> page.TableCell:
    return page.TableCell(_said(value / scale, name), value == best, value / scale)


def _said(value: float, name: str) -> str:
    if np.isnan(value):
        return "–"
    if name.startswith("n_"):
        return f"{value:,.0f}"
    return f"{value:.1%}" if name in ("utilisation", "in_time") else f"{value:,.2f}"
