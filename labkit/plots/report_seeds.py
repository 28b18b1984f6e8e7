"""The seeds of a report: means with intervals, paired differences, and their figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from labkit.core.text import time_unit, without_seed
from labkit.plots import page
from labkit.plots.sweep import plot_sweep
from labkit.results.bound import BOUND_LABEL
from labkit.results.record import RunInfo, RunRecord
from labkit.results.sweeps import cell_table, comparison, pairs_called, same_on_all

NOTE = (
    "Intervals (95 %, Student's t) are over {pair}s. Schedulers see the same traces, so they are compared {pair} by "
    "{pair}; an interval of the difference that leaves out 0 is a difference that these {pair}s show."
)

OF_RUN: Final = ("cadence", "overheads", "variation", "faults", "interference", "speeds")
"""What the configuration of a run tells that is not its scheduler's."""


def seeds_table(records: Sequence[RunRecord]) -> pd.DataFrame | None:
    """Return runs as a sweep's table where they are the same schedulers on several seeds of one setting; else None."""
    infos = [record.info for record in records]
    cells = {(info.scheduler, info.seed) for info in infos}
    schedulers, seeds = ({cell[i] for cell in cells} for i in (0, 1))
    is_whole = len(cells) == len(records) == len(schedulers) * len(seeds) and all(run.complete for run in records)
    if len(seeds) < 2 or len(set(map(_setting, infos))) > 1 or not is_whole:
        return None
    order = list(dict.fromkeys(info.scheduler for info in infos))
    axes: dict[str, Sequence[Any]] = {"trace": [without_seed(infos[0].trace)], "cluster": [infos[0].cluster]}
    axes |= {"scheduler": order, "seed": sorted(seeds)}
    rows = [
        {
            "keys": {"trace": axes["trace"][0], "cluster": info.cluster, "scheduler": info.scheduler,
                     "seed": info.seed},
            "error": "", "run": "", "metrics": record.summary, **_bound(record),
        }
        for info, record in zip(infos, records, strict=True)
    ]  # fmt: skip
    return cell_table(rows, axes=axes)


def _setting(info: RunInfo) -> str:
    """Return what must be the same in runs whose seeds are compared, as text."""
    told = [without_seed(info.trace), info.cluster, info.backend, *(info.config.get(name) for name in OF_RUN)]
    return json.dumps(told, sort_keys=True, default=str)


def _bound(record: RunRecord) -> dict[str, Any]:
    return {"bound_jct_s": record.info.config.get("bound_jct_s"), "wall_s": record.info.wall_s}


def seeds_section(table: pd.DataFrame, *, base: str | None = None, metric: str = "mean_jct_s") -> page.Section:
    """Return the section on what runs of several seeds come to."""
    names = list(dict.fromkeys(table["scheduler"]))
    base = names[0] if base is None else base
    told = comparison(table, metric=metric, base=base)
    told = told[told["scheduler"] != BOUND_LABEL]
    scale, unit = time_unit(float(told["mean"].median()))
    pair = pairs_called(table)
    headings = [
        f"{pair.capitalize()}s", "Failed", f"Mean JCT ({unit})", "95 % interval", f"Against {base}", "95 % interval",
        "Lower on",
    ]  # fmt: skip
    rows = [(str(row["scheduler"]), _cells(row, scale)) for row in told.to_dict("records")]
    shown = page.PageTable(headings, rows, name="seeds")
    figures = [plot_sweep(table, metric=metric, base=base)]
    n = table["seed"].nunique()
    if same := same_on_all(table):
        return page.Section(f"Over {n} {pair}s", [], same, table=shown)
    return page.Section(f"Over {n} {pair}s", figures, NOTE.format(pair=pair), table=shown)


def _cells(row: dict[Any, Any], scale: float) -> list[page.TableCell]:
    def span(low: float, high: float, form: str) -> str:
        return "–" if np.isnan(low) else f"{format(low, form)} to {format(high, form)}"

    is_base = np.isnan(row["relative"])
    apart = "–" if is_base else f"{row['relative']:+.1%}"
    lower = "–" if np.isnan(row["n_pairs"]) else f"{row['n_lower']:.0f} of {row['n_pairs']:.0f}"
    return [
        page.TableCell(str(row["n"]), value=row["n"]),
        page.TableCell(str(row["n_failed"] or "–"), value=row["n_failed"]),
        page.TableCell(f"{row['mean'] / scale:,.4g}", value=row["mean"] / scale),
        page.TableCell(span(row["low"] / scale, row["high"] / scale, ",.4g"), value=row["low"] / scale),
        page.TableCell(apart, value=row["relative"]),
        page.TableCell(span(row["relative_low"], row["relative_high"], "+.1%"), value=row["relative_low"]),
        page.TableCell(lower, value=row["n_lower"]),
    ]
