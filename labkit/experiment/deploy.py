"""Run a trace on a testbed: the same session, scheduler and record as a simulation, on machines over SSH."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.core.errors import InputError
from labkit.core.events import NO_EVENTS, Events
from labkit.core.jobs import Jobs
from labkit.core.protocols import Scheduler
from labkit.experiment.opener import Opener
from labkit.experiment.run import Experiment, ProgressBar
from labkit.experiment.session import Observer
from labkit.results.record import RunRecord, State
from labkit.results.store import RunWriter, load
from labkit.schedulers import named

if TYPE_CHECKING:
    from labkit.testbed.backend import SshBackend
    from labkit.testbed.inventory import Inventory
    from labkit.testbed.training import Training


def deploy(
    jobs: Jobs | str | Path,
    *,
    inventory: Inventory | str | Path | None = None,
    scheduler: Scheduler | str,
    name: str | None = None,
    folder: str | Path = "runs",
    training: Training | None = None,
    progress: bool = False,
    observers: Sequence[Observer] = (),
    **options: Any,
) -> RunRecord:
    """Run a trace on a testbed until every job has completed.

    Parameters
    ----------
    jobs : Jobs or path
        A trace; its seconds are real seconds, and a step is an update of the parameters.
    inventory : Inventory or path, optional
        The hosts; by default testbed/hosts.toml, or else the laptop testbed that is up.
    scheduler : Scheduler or str
        Or a name that `labkit.schedulers.make` takes.
    name : str, optional
        What to call it in tables and figures.
    folder : path
        Where to keep the run, in a folder of its own that is written while it goes on: `attach` goes on with it.
    training : Training, optional
        How jobs train.
    progress : bool
        Show a progress bar.
    observers : sequence of callables
        Each is called with every batch of events.
    options
        As `Experiment.of` takes them: `speed` or `throughputs`, what schedulers measure before the run comes from it.

    Returns
    -------
    RunRecord
        With all events, a table of jobs and a summary, as `simulate` returns it.

    Raises
    ------
    InputError
        If a job cannot train or fits no host, or a host cannot be reached; nothing has been started then.
    """
    opener = Opener.of(
        jobs, inventory=inventory, scheduler=scheduler, name=name, folder=folder, training=training, **options
    )
    experiment = opener.experiment
    backend, writer = opener.open()
    with writer:
        rows = _run(experiment, opener.scheduler, backend, opener.name, writer, observers=observers, progress=progress)
    return RunRecord(info=writer.info, jobs=experiment.jobs, cluster=experiment.cluster, events=rows)


def attach(
    run: str | Path,
    *,
    root: str | Path = "runs",
    scheduler: Scheduler | str | None = None,
    progress: bool = False,
    observers: Sequence[Observer] = (),
    **options: Any,
) -> RunRecord:
    """Go on with a run on a testbed whose notebook or process ended: its jobs went on meanwhile.

    Parameters
    ----------
    run : str or Path
        Its folder, or its id under `root`.
    scheduler : Scheduler or str, optional
        By default that of the run, by its name.
    options
        As for `deploy`.

    Raises
    ------
    InputError
        If it is no run on a testbed, or it is over.
    """
    from labkit.testbed.backend import STATE, SshBackend
    from labkit.testbed.inventory import Inventory
    from labkit.testbed.training import Training

    record = load(run, root=root)
    path = Path(run) if (Path(run) / STATE).exists() else Path(root) / str(run)
    if not (path / STATE).exists():
        raise InputError(f"run '{run}' did not run on a testbed: it has no {STATE}.")
    if record.info.state == State.DONE:
        raise InputError(f"run '{run}' is over; labkit.results.load reads it.")
    said = json.loads((path / STATE).read_text())
    hosts = Inventory.read(said["inventory"])
    experiment = Experiment.of(record.jobs, cluster=hosts.cluster(), **options)
    made, _ = named(scheduler or record.info.scheduler)
    with RunWriter.attach(path) as writer:
        backend = SshBackend(
            record.jobs, hosts, run=said["run"], folder=path, training=Training(**said["training"]),
            began_at=said["began_at"],
        )  # fmt: skip
        backend.go_on(record.events, homes=said["homes"], places=said["places"])
        rows = _run(
            experiment, made, backend, record.info.scheduler, writer, observers=observers, progress=progress,
            n_written=len(record.events),
        )  # fmt: skip
    return RunRecord(info=writer.info, jobs=record.jobs, cluster=experiment.cluster, events=rows)


def _run(
    experiment: Experiment,
    scheduler: Scheduler,
    backend: SshBackend,
    name: str,
    writer: RunWriter,
    *,
    observers: Sequence[Observer],
    progress: bool,
    n_written: int = 0,
) -> Events:
    """Drive a session on a testbed to its end; what was written before is not written again."""
    left = n_written

    def write(batch: Events) -> None:
        nonlocal left
        known, left = min(left, len(batch)), max(left - len(batch), 0)
        if len(batch) > known:
            writer.append(batch[known:])

    with backend, ExitStack() as stack:
        watchers = [write, *observers]
        if progress:
            watchers.append(stack.enter_context(ProgressBar(name, total=len(experiment.jobs))))
        session = experiment.session(scheduler, observers=watchers, backend=backend)
        rows = session.run(scheduler)
    return rows if len(rows) else NO_EVENTS
