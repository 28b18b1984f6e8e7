"""Several runs side by side: a label for each that tells it from the others, and a table with a row for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from labkit.core.errors import InputError
from labkit.results.bound import bound_jct_s
from labkit.results.cost import bills, in_time
from labkit.results.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd

_TIMES: Final = {
    "mean_jct_s": "mean JCT (h)", "median_jct_s": "median (h)", "p95_jct_s": "95th percentile (h)",
    "makespan_s": "makespan (h)",
}  # fmt: skip


def labels(records: Sequence[RunRecord]) -> list[str]:
    """Return a short name for each run: its scheduler, with what tells it apart where several runs share one."""
    names = [record.info.scheduler for record in records]
    for tell in (lambda info: f"seed {info.seed}", lambda info: info.backend, lambda info: info.run):
        twice = {name for name, n in Counter(names).items() if n > 1}
        told = [
            f"{record.info.scheduler} ({tell(record.info)})" if name in twice else name
            for name, record in zip(names, records, strict=True)
        ]
        if len(set(told)) == len(told):
            return told
    return told if records else []


def run_table(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Return one row per run, in the order given.

    Columns: label, the row of `RunInfo` that tells runs apart, `summary`; n_done (jobs completed), n_trace (jobs of
    the trace: with fewer done, means are over the quick ones); dollars (`labkit.results.cost.bills`, NaN where no run
    is about cost), in_time (fraction of the jobs with an SLO that met it, NaN where none has one); bound_jct_s (mean
    JCT that no scheduler can go below, NaN where it is not known) and times_bound (mean_jct_s over it).

    Raises
    ------
    InputError
        If there is no run.
    """
    import pandas as pd

    if not records:
        raise InputError("records is empty; expected at least one run, as labkit.compare(...) returns them.")
    named = ("run", "scheduler", "backend", "cluster", "trace", "seed", "wall_s")
    return pd.DataFrame(
        [
            {
                "label": label,
                **{name: getattr(record.info, name) for name in named},
                **record.summary,
                "n_done": record.n_done,
                "n_trace": len(record.jobs),
                "dollars": bill,
                "in_time": in_time(record),
                "bound_jct_s": bound_jct_s(record),
                "times_bound": record.summary["mean_jct_s"] / bound_jct_s(record),
            }
            for label, record, bill in zip(labels(records), records, bills(records), strict=True)
        ]
    )


def jct_table(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Return a row per run with its times in hours, by label: mean, median and 95th percentile of the JCT, makespan."""
    table = run_table(records).set_index("label")
    return (table[list(_TIMES)] / 3600).rename(columns=_TIMES).rename_axis(None)
