"""Run a trace on a testbed: the same session, scheduler and record as a simulation, on machines over SSH."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np

from labkit.core.consent import Trust, is_stored, stored, typed
from labkit.core.errors import InputError, LabkitError
from labkit.core.events import NO_EVENTS, Events
from labkit.core.jobs import Jobs
from labkit.core.placement import Reason
from labkit.core.protocols import Scheduler
from labkit.experiment.experiment import Experiment
from labkit.experiment.history import FILE
from labkit.experiment.opener import LEASE_S, NAMED_AS, OnStart, Preflight, name_on_hosts, on_machines, tell_end
from labkit.experiment.progress_bar import ProgressBar
from labkit.experiment.scenario import Fields, Scenario
from labkit.experiment.session import Observer
from labkit.experiment.time_limit import TimeLimitError, checked_limit, limited
from labkit.results.record import TAKEN_BY, RunRecord, RunState
from labkit.results.store import RunWriter, find, load
from labkit.schedulers import named
from labkit.system.printing import printable
from labkit.testbed.run.backend import SavedState

if TYPE_CHECKING:
    from labkit.testbed.inventory import Inventory
    from labkit.testbed.run.backend import SshBackend
    from labkit.testbed.run.retries import Retries
    from labkit.testbed.run.training import TrainingTable

ObserverFactory = Callable[[Sequence[str]], Observer]


def deploy(
    jobs: Scenario | Jobs | str | Path,
    *,
    inventory: Inventory | str | Path | None = None,
    scheduler: Scheduler | str,
    name: str | None = None,
    runs: str | Path = "runs",
    training: TrainingTable | None = None,
    progress: bool = False,
    observers: Sequence[Observer] = (),
    lease_s: float = LEASE_S,
    retries: Retries | None = None,
    time_limit_s: float | None = None,
    run: str | None = None,
    on_start: OnStart | None = None,
    **fields: Unpack[Fields],
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
    runs : path
        Where to keep the run, in a folder of its own that is written while it goes on: `attach` goes on with it.
    training : TrainingTable, optional
        How jobs train.
    progress : bool
        Show a progress bar.
    observers : sequence of callables
        Each is called with every batch of events.
    lease_s : float
        Seconds a host keeps the run alive without a heartbeat from this process.
    retries : Retries, optional
        How patient it is with jobs that fail and hosts that fail jobs: `labkit.testbed.run.retries.Retries`.
    time_limit_s : float, optional
        Seconds after which the run is ended: its jobs save their state, and the record is `stopped`.
    run : str, optional
        Its id, which no other run may have; by default one that is free, made of scheduler and trace.
    on_start : callable, optional
        Called with the run's folder as soon as it is there, before the hosts are asked for anything.
    fields
        Of a `Scenario`: `speed` or `throughputs`, what schedulers measure before the run comes from it.

    Returns
    -------
    RunRecord
        With all events, a table of jobs and a summary, as `simulate` returns it.

    Raises
    ------
    InputError
        If a job cannot train or fits no host, or a host cannot be reached; nothing has been started then.
    """
    opener = Preflight.of(
        jobs, inventory=inventory, scheduler=scheduler, name=name, runs=runs, training=training, lease_s=lease_s,
        retries=retries, config={} if time_limit_s is None else {"time_limit_s": time_limit_s}, run=run, **fields,
    )  # fmt: skip
    return run_opened(opener, progress=progress, observers=observers, time_limit_s=time_limit_s, on_start=on_start)


def run_opened(
    opener: Preflight,
    *,
    progress: bool = False,
    observers: Sequence[Observer] = (),
    observer_factory: ObserverFactory | None = None,
    time_limit_s: float | None = None,
    on_start: OnStart | None = None,
    decided: Sequence[Reason] = (),
) -> RunRecord:
    """Begin a run on machines and drive it to its end; parameters, result and errors are those of `deploy`.

    `observer_factory` is called with the list of reasons, which grows, and returns one more observer. `decided`: what
    was decided before, and why.
    """
    experiment, limit_s = opener.experiment, checked_limit(time_limit_s)
    backend, writer = opener.open(on_start=on_start)
    observers = observers if observer_factory is None else [*observers, observer_factory(writer.reasons)]
    try:
        with writer, backend:
            rows = _run(
                experiment, opener.scheduler, backend, opener.name, writer, observers=observers, progress=progress,
                limit_s=limit_s, decided=decided,
            )  # fmt: skip
    except TimeLimitError:
        return load(writer.folder)
    return RunRecord(
        info=writer.info, jobs=experiment.jobs, cluster=experiment.cluster, events=rows, reasons=writer.reasons
    )  # fmt: skip


def attach(
    run: str | Path,
    *,
    runs: str | Path = "runs",
    scheduler: Scheduler | str | None = None,
    progress: bool = False,
    observers: Sequence[Observer] = (),
    lease_s: float | None = None,
    retries: Retries | None = None,
    time_limit_s: float | None = None,
    trust: Trust = False,
    take_over: bool = False,
    **fields: Unpack[Fields],
) -> RunRecord:
    """Resume a testbed run that was interrupted, stopped or failed.

    Where its process died, its jobs went on meanwhile, as long as its lease: what happened is told at once. Where it
    was ended (Ctrl-C, an error), its jobs start again from their newest checkpoints, and the time between does not
    count. Hosts that cannot be reached have left, and may come back.

    Parameters
    ----------
    run : str or Path
        Its folder, or its id under `runs`.
    runs : path
        Where runs are kept, each in a folder of its own.
    scheduler : Scheduler or str, optional
        By default that of the run, by its name.
    progress, observers, retries
        As for `deploy`.
    lease_s : float, optional
        Scheduler to simulate. Default: the run's own.
    time_limit_s : float, optional
        Seconds after which the run is ended, those before it was cut off counted too.
    trust : bool or callable
        Whether to use what the record names outside labkit, such as a scheduler's file or an inventory, where the user
        has not begun the run on this machine: `labkit.core.consent`.
    take_over : bool
        Take the run from a process that drives it now, from another copy of its folder.
    fields
        As for `deploy`.

    Raises
    ------
    InputError
        If it is no run on a testbed, is over, is written or driven by another process, has other hosts now, or none of
        them can be reached; or it names something that has no consent; nothing has changed then.
    TakenOverError
        If another process takes the run over meanwhile.
    """
    path, limit_s = find(run, runs=runs), checked_limit(time_limit_s)
    writer = RunWriter.attach(path)
    fields.setdefault("history", path.parent / FILE)
    made = None if scheduler is None else named(scheduler)[0]
    callers = nullcontext() if is_stored() else typed()  # options are not the record's, but may be a queue's
    with stored(trust):
        try:
            record, memory = load(path), SavedState.read(path)
            _refuse_over(record, path, take_over=take_over)
            inventory = _hosts(memory, record)
            with callers:
                fields["cluster"] = inventory.cluster()
                experiment = on_machines(record.jobs, memory.training.get("scripts", ()), **fields)
            made = made or named_in(record)
            backend = _taken_over(
                record, memory, path, inventory=inventory, lease_s=lease_s, retries=retries, take_over=take_over
            )  # fmt: skip
        except BaseException:
            writer.let_go()
            raise
        try:
            with writer, backend:
                writer.resume()
                rows = _run(
                    experiment, made, backend, record.info.scheduler, writer, observers=observers, progress=progress,
                    n_written=len(record.events), limit_s=limit_s,
                )  # fmt: skip
        except TimeLimitError:
            return load(path)
    return RunRecord(
        info=writer.info, jobs=record.jobs, cluster=experiment.cluster, events=rows, reasons=writer.reasons
    )  # fmt: skip


def named_in(record: RunRecord) -> Scheduler:
    """Return the scheduler that a record names.

    Raise InputError if there is none, or it is not labkit's own and has no consent.
    """
    asked = record.info.config.get(NAMED_AS)
    with stored(False) if not is_stored() else nullcontext():
        return named(asked if isinstance(asked, str) and asked else record.info.scheduler)[0]


def _refuse_over(record: RunRecord, path: Path, *, take_over: bool) -> None:
    """Raise if there is nothing to go on with, or the run goes on elsewhere."""
    if record.info.state == RunState.DONE:
        raise InputError(f"run '{path.name}' is over; labkit report {path} shows it, labkit.load reads it.")
    if record.info.state == RunState.TAKEN_OVER and not take_over:
        by = printable(str(record.info.config.get(TAKEN_BY, "another process")))
        raise InputError(
            f"run '{path.name}' was taken over by {by}, and continues in its folder; to continue with this "
            "one: --take-over (take_over=True)."
        )


def _hosts(memory: SavedState, record: RunRecord) -> Inventory:
    """Return the hosts of a run, if they are still the same."""
    from labkit.testbed.inventory import Inventory

    try:
        hosts = Inventory.read(memory.inventory)
    except LabkitError as error:
        raise InputError(f"run '{record.info.run}' cannot continue without its hosts: {error}") from None
    now, then = hosts.cluster(), record.cluster
    same = now.machines == then.machines and np.array_equal(now.group_machine, then.group_machine)
    same = same and np.array_equal(now.partition, then.partition)
    if not (same and np.allclose(now.capacity, then.capacity)):
        raise InputError(
            f"run '{record.info.run}' began on {', '.join(then.machines)}; {memory.inventory} now has "
            f"{', '.join(now.machines)}, or other resources or pods. Put back what it had, or begin another run."
        )
    return hosts


def _taken_over(
    record: RunRecord,
    memory: SavedState,
    path: Path,
    *,
    inventory: Inventory,
    lease_s: float | None,
    retries: Retries | None,
    take_over: bool,
) -> SshBackend:
    """Return the backend of a run that goes on; where it was ended on the hosts, under a new name there."""
    from labkit.testbed.run.agents import RunFence
    from labkit.testbed.run.backend import SshBackend
    from labkit.testbed.run.training import TrainingTable

    backend = SshBackend(
        record.jobs, inventory, run=name_on_hosts(record.info) if memory.ended else memory.run,
        folder=path, training=TrainingTable.stored(memory.training, path), began_at=memory.began_at,
        lease_s=memory.lease_s if lease_s is None else lease_s, retries=retries, some=True,
        fence=RunFence(
            memory.fence or memory.run, run=record.info.run, after=memory.generation, take_over=take_over
        ),
    )  # fmt: skip
    try:
        backend.go_on(record.events, memory)
    except BaseException:
        backend.close(end=False)
        raise
    return backend


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
    limit_s: float | None = None,
    decided: Sequence[Reason] = (),
) -> Events:
    """Drive a session on a testbed to its end; what was written before is not written again."""
    left = n_written

    def write(batch: Events) -> None:
        nonlocal left
        known, left = min(left, len(batch)), max(left - len(batch), 0)
        if len(batch) > known:
            writer.append(batch[known:])

    with ExitStack() as stack:
        stack.callback(lambda: tell_end(writer, backend))
        watchers = [write, *observers]
        if progress:
            watchers.append(stack.enter_context(ProgressBar(name, total=len(experiment.jobs))))
        session = experiment.session(
            scheduler, observers=watchers, backend=limited(backend, limit_s), reasons=writer.reasons
        )
        if decided:
            session.explain(decided)
        rows = session.run(scheduler)
    return rows if len(rows) else NO_EVENTS
