"""Simulate a trace: from jobs, a cluster and one scheduler or several to the records of runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from labkit.core.consent import stored
from labkit.core.errors import ComparisonError, InputError
from labkit.core.jobs import Jobs
from labkit.core.life import Traits
from labkit.core.protocols import Scheduler
from labkit.core.resources import Bools
from labkit.experiment.experiment import Experiment
from labkit.experiment.plain import plain
from labkit.experiment.scenario import Fields, Scenario
from labkit.experiment.session import Session
from labkit.experiment.validation import labelled_schedulers
from labkit.results.comparison import Runs
from labkit.results.record import RunRecord
from labkit.schedulers import named
from labkit.simulator import Replay


def simulate(
    jobs: Scenario | Jobs | str | Path,
    *,
    scheduler: Scheduler | str,
    runs: str | Path | None = None,
    progress: bool = False,
    **fields: Unpack[Fields],
) -> RunRecord:
    """Simulate one scheduler on a scenario, or on a trace with the fields of a `Scenario`, such as `cluster`.

    >>> from labkit.core import Jobs
    >>> from labkit.topology import no_network
    >>> jobs = Jobs.of(arrival_s=[0, 0], total_steps=[60, 60], duration_s=60, n_workers=4)
    >>> simulate(jobs, cluster=no_network(1), scheduler="fifo").summary["mean_jct_s"]
    90.0
    """
    return Experiment.of(jobs, **fields).run(scheduler, runs=runs, progress=progress)


def compare(
    jobs: Scenario | Jobs | str | Path,
    *,
    schedulers: Iterable[Scheduler | str] | Mapping[str, Scheduler | str] | str,
    runs: str | Path | None = None,
    progress: bool = False,
    after_each: Callable[[RunRecord], None] | None = None,
    **fields: Unpack[Fields],
) -> Runs:
    """Simulate several schedulers on one scenario.

    What comes back is a list of runs, with a table and figures: `runs.table`, `runs.plot.cdf()`. A mapping gives
    schedulers labels: {"short": Las(quantum_s=60.0), "long": Las(quantum_s=600.0)}.

    With `prices` (dollars per GPU and hour by device type) all runs have a cost, and schedulers about cost use them
    unless they were given their own.

    Raises
    ------
    InputError
        If a scheduler is not known, or named twice, before anything is simulated.
    ComparisonError
        If a scheduler fails, after all others have been simulated; its `records` are theirs.
    """
    chosen = labelled_schedulers(schedulers)
    experiment = Experiment.of(jobs, **fields)
    known = (Traits.of(named(scheduler)[0]).pays for scheduler in chosen.values())
    experiment = replace(experiment, usual_prices=next((prices for prices in known if prices), None))
    records = Runs()
    failed: dict[str, Exception] = {}
    for name, scheduler in chosen.items():
        try:
            record = experiment.run(named(scheduler)[0], name=name, runs=runs, progress=progress)
        except Exception as error:  # a user's scheduler may raise anything; the others are to be compared all the same
            failed[name] = error
            continue
        records.append(record)
        if after_each is not None:
            after_each(record)
    if failed:
        raise ComparisonError(failed, records) from next(iter(failed.values()))
    return records


def scheduler_of(record: RunRecord) -> str:
    """Return the name of the scheduler of a run that was kept, for `labkit.schedulers.make`.

    Raise InputError if it is another one by now, or was called by a label, or is a user's own.
    """
    name = record.info.scheduler
    with stored():
        try:
            again = json.loads(json.dumps(plain(named(name)[0])))
        except InputError as error:
            raise InputError(
                f"run '{record.info.run}' was of {name}, which no name makes here; give the one that is meant "
                f"(--scheduler): {error}"
            ) from None
    if again != record.info.config.get("scheduler"):
        raise InputError(
            f"run '{record.info.run}' was of {name}, and that name makes another scheduler here; name the one that is "
            "meant (--scheduler)."
        )
    return name


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
