"""Simulate a trace: from jobs, a cluster and one scheduler or several to the records of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from labkit.core.cluster import Cluster
from labkit.core.errors import ComparisonError
from labkit.core.jobs import Jobs
from labkit.core.life import Traits
from labkit.core.protocols import Scheduler
from labkit.core.resources import Bools
from labkit.experiment.asked import schedulers_of
from labkit.experiment.experiment import Experiment
from labkit.experiment.session import Session
from labkit.results.record import RunRecord
from labkit.schedulers import named
from labkit.simulator import Replay


def simulate(
    jobs: Jobs | str | Path,
    *,
    cluster: Cluster | str | None = None,
    scheduler: Scheduler | str,
    runs: str | Path | None = None,
    progress: bool = False,
    **options: Any,
) -> RunRecord:
    """Simulate one scheduler on a trace; the options are those of `Experiment.of`, such as `profile`.

    >>> from labkit.core import Jobs
    >>> from labkit.topology import no_network
    >>> jobs = Jobs.of(arrival_s=[0, 0], total_steps=[60, 60], duration_s=60, n_workers=4)
    >>> simulate(jobs, cluster=no_network(1), scheduler="fifo").summary["mean_jct_s"]
    90.0
    """
    return Experiment.of(jobs, cluster=cluster, **options).run(scheduler, runs=runs, progress=progress)


def compare(
    jobs: Jobs | str | Path,
    *,
    cluster: Cluster | str | None = None,
    schedulers: Iterable[Scheduler | str] | str,
    runs: str | Path | None = None,
    progress: bool = False,
    after_each: Callable[[RunRecord], None] | None = None,
    **options: Any,
) -> list[RunRecord]:
    """Simulate several schedulers on one trace; `labkit.results.run_table` makes a table of what comes back.

    Raises
    ------
    InputError
        If a scheduler is not known, before anything is simulated.
    ComparisonError
        If a scheduler fails, after all others have been simulated; its `records` are theirs.
    """
    chosen = schedulers_of(schedulers)
    prices = next((known for known in (Traits.of(named(scheduler)[0]).pays for scheduler in chosen) if known), None)
    experiment = Experiment.of(jobs, cluster=cluster, **{"prices": prices, **options})
    records: list[RunRecord] = []
    failed: dict[str, Exception] = {}
    for scheduler in chosen:
        try:
            record = experiment.run(scheduler, runs=runs, progress=progress)
        except Exception as error:  # a user's scheduler may raise anything; the others are to be compared all the same
            failed[named(scheduler)[1]] = error
            continue
        records.append(record)
        if after_each is not None:
            after_each(record)
    if failed:
        raise ComparisonError(failed, records) from next(iter(failed.values()))
    return records


def replay(record: RunRecord, *, runs_on: Bools | None = None) -> Session:
    """Return a session that goes through a recorded run decision by decision, whatever is answered.

    It shows the very snapshots that the recorded scheduler saw, so another one can be asked what it would have done.

    >>> from labkit.core import Jobs
    >>> from labkit.schedulers import make
    >>> jobs = Jobs.of(arrival_s=[0, 5], total_steps=[60, 30], duration_s=[60, 30])
    >>> record = simulate(jobs, cluster="no_network(1)", scheduler="fifo")
    >>> session = replay(record)
    >>> again = session.run(make("srtf"))
    >>> bool((again["job"] == record.events["job"]).all())
    True
    """
    backend = Replay(record.jobs, record.cluster, recorded=record.events)
    return Session(backend, runs_on=runs_on, reasons=list(record.reasons))
