"""Several runs side by side: a label and a row for each, with bounds of the mean JCT, dollars and deadlines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.events import Kind
from labkit.core.resources import Floats
from labkit.results.intervals import holdings
from labkit.results.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd

    from labkit.plots.of_runs import RunPlots


_TIMES: Final = {
    "mean_jct_s": "mean JCT (h)", "median_jct_s": "median (h)", "p95_jct_s": "95th percentile (h)",
    "makespan_s": "makespan (h)",
}  # fmt: skip


def labels(records: Sequence[RunRecord]) -> list[str]:
    """Return a short name for each run: its scheduler, with what tells it apart where several runs share one."""
    names = [record.info.scheduler for record in records]
    twice = {name for name, n in Counter(names).items() if n > 1}
    for tell in (lambda info: f"seed {info.seed}", lambda info: info.backend, lambda info: info.run):
        infos = [
            f"{record.info.scheduler} ({tell(record.info)})" if name in twice else name
            for name, record in zip(names, records, strict=True)
        ]
        if len(set(infos)) == len(infos):
            return infos
    return [f"{name} ({i + 1})" if name in twice else name for i, name in enumerate(names)]


class Runs(list[RunRecord]):
    """Some runs: a list, with a table and figures of all of them."""

    @property
    def table(self) -> pd.DataFrame:
        """One row per run: `labkit.results.run_table`."""
        return run_table(self)

    @property
    def plot(self) -> RunPlots:
        """Figures that compare these runs: `labkit.compare(...).plot.cdf()`."""
        from labkit.plots.of_runs import RunPlots

        return RunPlots(self)


def run_table(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Return one row per run, in the order given.

    Columns: label, the row of `RunInfo` that tells runs apart, `summary`; n_done (jobs completed), n_trace (jobs of
    the trace: with fewer done, means are over the quick ones); dollars (`bills`, NaN where no run is about cost),
    in_time (fraction of the jobs with an SLO that met it, NaN where none has one); bound_jct_s (mean JCT that no
    scheduler can go below, NaN where it is not known) and times_bound (mean_jct_s over it).

    Raises
    ------
    InputError
        If there is no run.
    """
    import pandas as pd

    records = list(records)
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


GROUPS: Final = ("partition", "user", "model")
"""What jobs can be grouped by."""


def table_by(records: Sequence[RunRecord], by: str) -> pd.DataFrame:
    """Return one row per partition, user or model, that with the most GPU-hours first.

    Columns: its name; jobs; gpu_hours, declared; and for each run, by its label, the mean JCT and the mean time until
    the first start in seconds: `(label, "jct_s")`, `(label, "queueing_s")`.

    Raises
    ------
    InputError
        If `by` is none of these, or there is no run.
    """
    import pandas as pd

    if by not in GROUPS:
        raise unknown("by", by, GROUPS)
    if not records:
        raise InputError("records is empty; expected at least one run, as labkit.compare(...) returns them.")
    jobs = records[0].jobs
    names, of = getattr(jobs, f"{by}s"), getattr(jobs, by)
    hours = jobs.gpus * np.nan_to_num(jobs.duration_s) / 3600
    columns: dict[tuple[str, str], Any] = {
        ("", by): np.array([name or "(none)" for name in names], object),
        ("", "jobs"): np.bincount(of, minlength=len(names)),
        ("", "gpu_hours"): np.bincount(of, hours, len(names)),
    }
    for label, record in zip(labels(records), records, strict=True):
        means = record.table.groupby(of[record.table["job"]])[["jct_s", "queueing_s"]].mean()
        for name in ("jct_s", "queueing_s"):
            columns[label, name] = means[name].reindex(range(len(names))).to_numpy()
    return pd.DataFrame(columns).sort_values(("", "gpu_hours"), ascending=False, kind="stable").reset_index(drop=True)


def jct_table(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Return a row per run with its times in hours, by label: mean, median and 95th percentile of the JCT, makespan."""
    table = run_table(records).set_index("label")
    return (table[list(_TIMES)] / 3600).rename(columns=_TIMES).rename_axis(None)


BOUND: Final = "bound_jct_s"
"""In the configuration of a run, and a column of a sweep: seconds; left out or NaN where it is not known."""

BOUND_ALONE: Final = "bound_alone_jct_s"
"""In the configuration of a run: the same with each job alone, in a cluster without other jobs."""
FASTER: Final = "bound_faster"
"""In the configuration of a run, and among what a sweep tells: the bound rests on gangs faster than those asked for."""

BOUND_LABEL: Final = "(bound)"
"""What stands in the column of schedulers."""

WHAT: Final = "every job runs on its fastest gang, limited only by the capacity of the whole cluster"
"""What the bound is, in words (`labkit.experiment.bound`)."""


UNREACHED: Final = ". Schedulers that keep the requested gang cannot reach it"
"""What is said where the bound rests on faster gangs."""


def bound_jct_s(record: RunRecord) -> float:
    """Return the bound of a run's mean JCT in seconds; NaN where it is not known, or not all jobs of it completed."""
    return bound_of(record) if record.complete else float("nan")


def bound_of(record: RunRecord) -> float:
    """Return the bound of the mean JCT in seconds, of all jobs of a run; NaN where it is not known.

    The bound of jobs that share the cluster counts the cores and memory that they declare. A run whose scheduler gave
    tasks other amounts has the bound of each job alone.
    """
    rows, config = record.events, record.info.config
    changed = np.isfinite(rows["cpus"][rows["kind"] == Kind.PLACED]).any()
    return float(config.get(BOUND_ALONE if changed else BOUND, np.nan))


def reported_bound(value: str, *, faster: bool = False) -> str:
    """Return the sentence on a bound; `faster`: it rests on gangs faster than those that were asked for.

    >>> reported_bound("44 min")[:20]
    'Lower bound: 44 min '
    >>> reported_bound("44 min", faster=True)[-30:]
    'requested gang cannot reach it'
    """
    return f"Lower bound: {value} ({WHAT}){UNREACHED * faster}"


def dollars(record: RunRecord, *, prices: Mapping[str, float]) -> float:
    """Return the cost of the GPUs that jobs held, at dollars per GPU and hour of each device type.

    Raise InputError if the price of a device type of the cluster's GPUs is not given.
    """
    for kind in record.cluster.gpu_types:
        if kind not in prices:
            raise unknown("price of device type", kind, prices)
    price = np.array([prices.get(kind, 0.0) for kind in record.cluster.device_types])
    held = holdings(record.events, record.jobs)
    return float(price[record.cluster.group_type[held.group]] @ held.gpu_s) / 3600


def late_by_s(record: RunRecord, *, slo_s: Floats | None = None) -> Floats:
    """Return seconds by which each job missed its SLO, negative: in time; NaN: no SLO, inf: never done, (N,).

    `record`: the run; `slo_s`: (N,) seconds after arrival by which jobs should have been done; by default what they had
    declared.
    """
    jct_s = np.full(len(record.jobs), np.inf)
    done = record.table[record.table["completion_s"].notna()]
    jct_s[done["job"].to_numpy()] = done["jct_s"].to_numpy(np.float64)
    late_s: Floats = jct_s - (record.jobs.slo_s if slo_s is None else slo_s)
    return late_s


def in_time(record: RunRecord) -> float:
    """Return the fraction of the jobs with an SLO that were done in time; NaN: no job has one."""
    late_s = late_by_s(record)
    late_s = late_s[~np.isnan(late_s)]
    return float((late_s <= 0).mean()) if len(late_s) else np.nan


def prices_of(record: RunRecord) -> dict[str, float]:
    """Return the prices that a run was made with; nothing where none of its schedulers is about cost."""
    prices = record.info.config.get("prices")
    return {str(kind): float(price) for kind, price in prices.items()} if isinstance(prices, Mapping) else {}


def bills(records: Sequence[RunRecord]) -> list[float]:
    """Return the cost of each run, at its own prices, else those of the first run with some; NaN: none or no GPUs."""
    known = [prices_of(record) for record in records]
    usual = next((prices for prices in known if prices), {})
    return [_bill(record, own or usual) for record, own in zip(records, known, strict=True)]


def _bill(record: RunRecord, prices: Mapping[str, float]) -> float:
    types = record.cluster.gpu_types
    return dollars(record, prices=prices) if types and set(types) <= set(prices) else np.nan
