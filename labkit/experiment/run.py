"""Simulate a trace: from jobs, a cluster and one scheduler or several to the records of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, replace
from pathlib import Path
from typing import Any

from labkit.core.cluster import Cluster
from labkit.core.device_types import may_run_on
from labkit.core.errors import ComparisonError, InputError
from labkit.core.jobs import Jobs
from labkit.core.life import Traits
from labkit.core.protocols import Scheduler, SpeedModel
from labkit.core.resources import Bools
from labkit.experiment.asked import jobs_of, refuse_no_flag, refuse_twice, refuse_unpriced, schedulers_of, seed_of
from labkit.experiment.experiment import Experiment
from labkit.experiment.fitting import without_too_large
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
    drop_too_large: bool = False,
    **options: Any,
) -> RunRecord:
    """Simulate one scheduler on a trace; the options are those of `Experiment.of`, such as `profile`.

    With `drop_too_large`, jobs that the empty cluster cannot hold are left out, which a note of the record counts.

    >>> from labkit.core import Jobs
    >>> from labkit.topology import no_network
    >>> jobs = Jobs.of(arrival_s=[0, 0], total_steps=[60, 60], duration_s=60, n_workers=4)
    >>> simulate(jobs, cluster=no_network(1), scheduler="fifo").summary["mean_jct_s"]
    90.0
    """
    experiment = experiment_of(jobs, drop_too_large=drop_too_large, cluster=cluster, **options)
    return experiment.run(scheduler, runs=runs, progress=progress)


def compare(
    jobs: Jobs | str | Path,
    *,
    cluster: Cluster | str | None = None,
    schedulers: Iterable[Scheduler | str] | str,
    runs: str | Path | None = None,
    progress: bool = False,
    after_each: Callable[[RunRecord], None] | None = None,
    drop_too_large: bool = False,
    **options: Any,
) -> list[RunRecord]:
    """Simulate several schedulers on one trace; `labkit.results.run_table` makes a table of what comes back.

    With `prices` (dollars per GPU and hour by device type) all runs have a cost, and schedulers about cost use them
    unless they were given their own.
    With `drop_too_large`, jobs that the empty cluster cannot hold are left out, which a note of the records counts.

    Raises
    ------
    InputError
        If a scheduler is not known, or named twice, before anything is simulated.
    ComparisonError
        If a scheduler fails, after all others have been simulated; its `records` are theirs.
    """
    chosen = schedulers_of(schedulers)
    refuse_twice(chosen)
    given = options.pop("prices", None)
    prices = given or next(
        (known for known in (Traits.of(named(scheduler)[0]).pays for scheduler in chosen) if known), None
    )
    experiment = experiment_of(
        jobs, drop_too_large=drop_too_large, cluster=cluster, **{"prices": prices, **options}
    )  # fmt: skip
    refuse_unpriced(given, experiment.cluster)
    records: list[RunRecord] = []
    failed: dict[str, Exception] = {}
    for scheduler in chosen:
        try:
            made, called = named(scheduler)
            record = experiment.run(_priced(made, given), name=called, runs=runs, progress=progress)
        except Exception as error:  # a user's scheduler may raise anything; the others are to be compared all the same
            failed[named(scheduler)[1]] = error
            continue
        records.append(record)
        if after_each is not None:
            after_each(record)
    if failed:
        raise ComparisonError(failed, records) from next(iter(failed.values()))
    return records


def _priced(scheduler: Scheduler, prices: Mapping[str, float] | None) -> Scheduler:
    """Return a scheduler with prices, if it is about cost and was given none of its own."""
    made: Any = scheduler
    own = getattr(made, "__dataclass_fields__", {}).get("prices")
    if prices is None or own is None or Traits.of(scheduler).pays is None:
        return scheduler
    usual = own.default_factory is MISSING or made.prices == own.default_factory()
    priced: Scheduler = replace(made, prices=dict(prices)) if usual else scheduler
    return priced


def experiment_of(
    jobs: Jobs | str | Path, *, drop_too_large: bool = False, speed: SpeedModel | str = "auto", **options: Any
) -> Experiment:
    """Return an experiment, without jobs that its cluster cannot hold if that is asked for.

    Raises
    ------
    InputError
        As `Experiment.of`; or if some are to be left out of a speed model that was made for all jobs.
    """
    refuse_no_flag("drop_too_large", drop_too_large)
    given = jobs_of(jobs, seed=seed_of(options)) if drop_too_large else jobs
    made = Experiment.of(given, speed=speed, **options)
    if not isinstance(given, Jobs) or not drop_too_large:
        return made
    by_demand = may_run_on(given, made.cluster)  # the same jobs with any_type as without
    kept = without_too_large(given, made.cluster, made.speed.runs_on() & by_demand)
    if kept is not given and not isinstance(speed, str):
        raise InputError("drop_too_large and a speed model, which is made for all jobs, are given; name a model.")
    return made if kept is given else Experiment.of(kept, speed=speed, **options)


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
