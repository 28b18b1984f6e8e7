"""Run a trace on a testbed: the same session, scheduler and record as a simulation, on machines over SSH."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from labkit.core.errors import InputError
from labkit.core.events import NO_EVENTS, Events
from labkit.core.jobs import Jobs
from labkit.core.protocols import Scheduler
from labkit.experiment.run import Experiment, ProgressBar
from labkit.experiment.session import Observer, refuse_unfit
from labkit.results.record import RunInfo, RunRecord, State
from labkit.results.store import RunWriter, free_id, load
from labkit.schedulers import make

if TYPE_CHECKING:
    from labkit.testbed.backend import SshBackend
    from labkit.testbed.inventory import Inventory
    from labkit.testbed.training import Training

REHEARSED: Final = 5
"""Decisions in a simulation before those on machines."""


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
    from labkit.testbed.backend import SshBackend
    from labkit.testbed.inventory import Inventory
    from labkit.testbed.training import Training

    hosts = inventory if isinstance(inventory, Inventory) else Inventory.read(inventory)
    experiment = Experiment.of(jobs, cluster=hosts.cluster(), **options)
    called = name or (scheduler if isinstance(scheduler, str) else type(scheduler).__name__.lower())
    scheduler = make(scheduler) if isinstance(scheduler, str) else scheduler
    refuse_leases(scheduler, called)
    info = experiment.info(scheduler, name=called)
    info = replace(info, run=free_id(folder, info.run), backend="testbed")
    (training or Training()).check(experiment.jobs)
    refuse_unfit(experiment.simulator(), experiment.speed.runs_on())
    _rehearse(experiment, scheduler)
    place = Path(folder) / info.run
    backend = SshBackend(experiment.jobs, hosts, run=run_id(info), folder=place, training=training)
    try:  # nothing is written here before all hosts are ready
        writer = RunWriter.create(folder, info=info, jobs=experiment.jobs, cluster=experiment.cluster)
    except BaseException:
        backend.close()
        raise
    with writer:
        rows = _run(experiment, scheduler, backend, called, writer, observers=observers, progress=progress)
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
    chosen = scheduler or record.info.scheduler
    made = make(chosen) if isinstance(chosen, str) else chosen
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


def _rehearse(experiment: Experiment, scheduler: Scheduler) -> None:
    """Let a copy of a scheduler decide in a simulation: what the first decisions compile is ready when jobs wait."""
    with suppress(Exception):  # what goes wrong is told by the run itself
        copy = deepcopy(scheduler)
        session = experiment.session(copy)
        while session.n_decisions < REHEARSED and not session.done:
            session.step(copy.schedule(session.snapshot()))


def run_id(info: RunInfo) -> str:
    """Return the name of a run on the hosts: several notebooks may use one testbed."""
    return f"{info.run[:50]}-{secrets.token_hex(4)}"


def refuse_leases(scheduler: Scheduler, name: str) -> None:
    """Refuse a scheduler whose jobs rest at the end of a lease, as in Gavel's published simulator.

    Raises
    ------
    InputError
        With what to take instead.
    """
    if getattr(scheduler, "lease_s", None) is not None:
        raise InputError(
            f"scheduler '{name}' gives leases, which only the simulator has: jobs on a testbed go on until the next "
            "decision. Take it without published=True."
        )


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
