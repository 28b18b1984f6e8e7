"""The jobs of a report: one CSV of all runs, packed inside the page, which shows and saves it."""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd

from labkit.plots.page import Section
from labkit.results.cost import late_by_s
from labkit.results.record import RunRecord

MOST_ROWS: Final = 60_000
"""Rows of a page at most; it stays small enough to send around."""

DIGITS: Final = 3
"""Behind the point; times are told to a millisecond."""

_SHELL: Final = (
    '<div id="jobs"><div class="tools"></div><div class="wide"><table><thead><tr></tr></thead><tbody></tbody></table>'
    '</div><p class="note told">The table needs the page\'s script.</p>'
    '<script type="text/plain">{packed}</script></div>'
)


def jobs_section(by_name: Mapping[str, RunRecord]) -> Section:
    """Return the section with a row per job; of many runs or jobs, only of as many whole runs as there is room for."""
    shown: dict[str, RunRecord] = {}
    n_rows = 0
    for name, record in by_name.items():
        n_rows += len(record.table)
        if not shown or n_rows <= MOST_ROWS:
            shown[name] = record
    packed = b64encode(gzip.compress(jobs_csv(shown).encode(), mtime=0)).decode()
    left_out = [name for name in by_name if name not in shown]
    note = f"For lack of room without the jobs of {', '.join(left_out)}." if left_out else ""
    lead = "Click a heading to sort. The CSV has a row for each job and run; times are in seconds."
    return Section("Jobs", [], note, lead=lead, html=_SHELL.format(packed=packed))


def jobs_csv(by_name: Mapping[str, RunRecord]) -> str:
    """Return the job tables of runs as one CSV: run, the columns of `job_table`, late_by_s where jobs have an SLO."""
    parts = []
    for name, record in by_name.items():
        late_s = late_by_s(record)[record.table["job"].to_numpy()]
        late = {} if np.isnan(late_s).all() else {"late_by_s": late_s}
        told = record.table.assign(**late)
        told.insert(0, "run", name)
        parts.append(told)
    return pd.concat(parts).round(DIGITS).round({"gpu_s": 1}).to_csv(index=False, float_format="%.12g")
