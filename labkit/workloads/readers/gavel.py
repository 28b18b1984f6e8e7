"""Gavel's traces: 10 columns, the older 7 of traces derived from Philly, and Shockwave's 12. Tabs, no header."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.jobs import Jobs
from labkit.core.resources import Floats, Ints
from labkit.workloads.gavel import Throughputs
from labkit.workloads.readers.base import TraceTable, table_of

COLUMNS: Final = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "SLO",
    "arrival_time",
)
OLD_COLUMNS: Final = (
    "job_type",
    "command",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "arrival_time",
    "scale_factor",
)
SHOCKWAVE_COLUMNS: Final = (*COLUMNS[:7], "mode", *COLUMNS[7:9], "duration", COLUMNS[9])
NAMES: Final = ("job_type", "command", "num_steps_arg", "working_directory")
EXPECTED: Final = "a Gavel trace of 10 columns separated by tabs"
EXPECTED_SHOCKWAVE: Final = "a trace of Shockwave of 12 columns separated by tabs"
MODES: Final = ("static", "accordion", "gns")
EXPECTED_OLD: Final = "an older Gavel trace of 7 columns separated by tabs"


def read_gavel(path: str | Path, *, throughputs: Throughputs | None = None) -> Jobs:
    """Return the jobs of a trace of 10 columns; ids are line numbers from 0, as in Gavel.

    A job is a rigid gang of one worker per GPU. Its declared duration is its steps over the throughput on V100 (the
    first device type of a table without V100) at its number of GPUs; `GavelSpeed` warns where that is an estimate. A
    positive SLO is a multiple of that duration. Raise TraceError with every fault, with line and column.
    """
    return _weighed(
        table_of(Path(path), columns=COLUMNS, names=NAMES, header=False, expected=EXPECTED, separator="\t"), throughputs
    )


def read_shockwave(path: str | Path, *, throughputs: Throughputs | None = None) -> Jobs:
    """Return the jobs of a trace of Shockwave's simulator: as `read_gavel`, with the durations that it declares.

    Jobs of a mode other than `static` change their batch size on the way; here they keep the first, and a note says so.
    """
    table = table_of(
        Path(path), columns=SHOCKWAVE_COLUMNS, names=(*NAMES, "mode"), header=False, expected=EXPECTED_SHOCKWAVE,
        separator="\t",
    )  # fmt: skip
    mode = np.array(table.texts("mode", known=frozenset(MODES)))
    jobs = _weighed(table, throughputs, duration_s=table.numbers("duration", low=0, above=True))
    changing = int(np.count_nonzero(mode != "static"))
    note = f"{changing:,} of {len(jobs):,} jobs change their batch size in Shockwave (accordion, gns); here they do not"
    return replace(jobs, notes=(*jobs.notes, note)) if changing else jobs


def _weighed(table: TraceTable, throughputs: Throughputs | None, *, duration_s: Floats | None = None) -> Jobs:
    """Return the jobs of a table with weights and SLOs, which are multiples of their durations."""
    weight = table.numbers("priority_weight", low=0, above=True)
    slo = table.numbers("SLO")
    table.fault(slo == 0, "SLO", expected="a multiple of the duration, or a negative number for none")
    jobs, order = _jobs(table, throughputs, duration_s=duration_s), _order(table)
    return jobs.with_columns(weight=weight[order], slo_s=np.where(slo > 0, slo, np.nan)[order] * jobs.duration_s)


def read_gavel_old(path: str | Path, *, throughputs: Throughputs | None = None) -> Jobs:
    """Return the jobs of a trace of 7 columns (Philly-derived), otherwise as `read_gavel`."""
    table = table_of(
        Path(path), columns=OLD_COLUMNS, names=NAMES[:3], header=False, expected=EXPECTED_OLD, separator="\t"
    )
    return _jobs(table, throughputs)


def _order(table: TraceTable) -> Ints:
    order: Ints = np.argsort(table.frame["arrival_time"].to_numpy(np.float64), kind="stable").astype(np.int32)
    return order


def _jobs(table: TraceTable, throughputs: Throughputs | None, *, duration_s: Floats | None = None) -> Jobs:
    """Return the jobs of a table; their durations, unless told, follow from throughputs."""
    figures = Throughputs.published() if throughputs is None else throughputs
    model = table.texts("job_type", known=frozenset(figures.models))
    steps = table.numbers("total_steps", low=0, above=True)
    gpus = table.counts("scale_factor")
    arrival_s = table.numbers("arrival_time", low=0)
    table.check()
    return Jobs.of(
        name=table.path.name,
        id=[str(row) for row in range(len(table))],
        model=model,
        arrival_s=arrival_s,
        total_steps=steps,
        n_workers=gpus,
        duration_s=steps / _declared_rate(figures, model, gpus) if duration_s is None else duration_s,
    )


def _declared_rate(figures: Throughputs, model: list[str], gpus: Ints) -> Floats:
    kinds = ("v100",) if "v100" in figures.device_types else figures.device_types[:1]
    rate = figures.steps_per_s(model, n_gpus=gpus, device_types=kinds, warn=False)[:, 0]
    declared: Floats = np.where(rate > 0, rate, np.nan)
    return declared
