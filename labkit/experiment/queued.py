"""Runs on a testbed, one after the other: schedulers x repeats of one trace, in a folder that remembers them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from labkit.core.below import refuse_foreign
from labkit.core.consent import Trust, keep, stored
from labkit.core.errors import InputError, TakenOverError
from labkit.core.jobs import Jobs
from labkit.core.text import human_s
from labkit.experiment.deployed import attach, run_opened
from labkit.experiment.opener import LEASE_S, Preflight
from labkit.experiment.provenance import command
from labkit.experiment.scenario import OPTIONS, Fields, Scenario
from labkit.experiment.time_limit import checked_limit
from labkit.experiment.validation import schedulers_of
from labkit.results import files
from labkit.results.files import RunLock
from labkit.results.queue import FOLDER, QUEUE, TRACE, QueuedRun, QueueState, RunQueue, ordered, queue_names
from labkit.results.record import RunRecord
from labkit.results.store import load, run_ids
from labkit.system.printing import printable
from labkit.testbed.run.backend import STATE

if TYPE_CHECKING:
    from labkit.testbed.inventory import Inventory
    from labkit.testbed.run.retries import Retries
    from labkit.testbed.run.training import TrainingTable

_FILE: Final = re.compile(r"""(?:(?<=^)|(?<=[='"]))[^'"=(),]+\.py(?=:)""")
"""A file of one's own in the name of a scheduler."""
OF_JOBS: Final = ("format", "first")
RUN_FIELDS: Final = frozenset(name for name, option in OPTIONS.items() if not option.simulated and name not in OF_JOBS)
"""Fields of a scenario that a queue keeps for its runs; those about its jobs are done when it begins."""
OnRunEnd = Callable[[QueuedRun, "RunRecord | None"], None]
"""Called when a run is over, with its record where it has one."""


def plan_queue(
    jobs: Scenario | Jobs | str | Path,
    *,
    schedulers: Sequence[str] | str,
    repeat: int = 1,
    inventory: Inventory | str | Path | None = None,
    training: TrainingTable | None = None,
    time_limit_s: float | None = None,
    lease_s: float = LEASE_S,
    retries: Retries | None = None,
    **fields: Unpack[Fields],
) -> tuple[RunQueue, Jobs, Inventory]:
    """Return a queue, its jobs and its hosts, after each of its runs was checked; nothing is written or asked of hosts.

    Parameters
    ----------
    jobs : Jobs or path
        A trace, the same for all runs.
    schedulers : sequence of str, or str
        Names that `labkit.schedulers.make` takes, each once.
    repeat : int
        How often each of them runs. All run once before the first one runs again.
    inventory, training, lease_s, retries
        As `labkit.deploy` takes them.
    time_limit_s : float, optional
        Seconds after which a run is ended; the queue goes on with the next one.
    **fields
        Of a `Scenario`, as `labkit.deploy` takes them; files by their names.

    Raises
    ------
    InputError
        As `labkit.deploy`, for the first run that could not begin.
    """
    from labkit.testbed.inventory import Inventory
    from labkit.testbed.run.training import TrainingTable

    scenario = Scenario.of(jobs, **fields)
    taken, training = replace(scenario, arrival_rate=1.0, epoch_error=0.0).jobs(), training or TrainingTable()
    hosts = inventory if isinstance(inventory, Inventory) else Inventory.read(inventory)
    stored = _stored_fields(scenario)
    runs = tuple(ordered([str(name) for name in schedulers_of(schedulers)], repeat=repeat))
    for each in runs[: len({run.scheduler for run in runs})]:
        Preflight.of(
            taken, inventory=hosts, scheduler=each.scheduler, training=training, lease_s=lease_s, retries=retries,
            **{**stored, "history": None},
        )  # fmt: skip
    queue = RunQueue(
        trace=taken.name, inventory=str(hosts.path.absolute()), time_limit_s=checked_limit(time_limit_s),
        began=datetime.now(UTC).isoformat(timespec="seconds"), command=command(), where=str(Path.cwd()),
        training=training.to_json(),
        options={**stored, "lease_s": lease_s},
        retries={} if retries is None else asdict(retries), runs=runs,
    )  # fmt: skip
    return queue, taken, hosts


def _stored_fields(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario's fields as the queue's file keeps them: plain values, files by their absolute paths."""
    plain = {name: value for name, value in scenario.plain().items() if name not in ("trace", "cluster", *OF_JOBS)}
    if odd := [*plain.get("own", ()), *(name for name in plain if name not in {*RUN_FIELDS, "own"})]:
        raise InputError(f"a queue keeps no {odd[0]} for its runs; expected some of {', '.join(sorted(RUN_FIELDS))}.")
    return {
        name: str(Path(value).absolute()) if OPTIONS[name].may_be_file and _is_file(value) else value
        for name, value in plain.items()
    }


def _is_file(value: Any) -> bool:
    return isinstance(value, str) and Path(value).is_file()


def refuse_taken(name: str, *, runs: str | Path) -> None:
    """Raise if a name cannot be that of a new queue.

    Raise InputError if it cannot name a folder, or something else has it.
    """
    if not FOLDER.fullmatch(name):
        raise InputError(f"--name is '{name}'; expected letters, digits, '.', '_' and '-', at most 100.")
    if name in queue_names(runs):
        raise InputError(
            f"queue '{name}' is in {runs} already; continue with it by --resume {name}, or take another --name."
        )
    if (Path(runs) / name).exists():
        kind = "run" if name in run_ids(runs) else "folder"
        raise InputError(f"{runs} has a {kind} '{name}' already; take another --name.")


def begin_queue(queue: RunQueue, jobs: Jobs, *, name: str, runs: str | Path) -> Path:
    """Make the folder of a queue, and return it.

    Raises
    ------
    InputError
        As `refuse_taken`.
    """
    from labkit.testbed.run.training import TrainingTable

    refuse_taken(name, runs=runs)
    folder = Path(runs) / name
    training = TrainingTable(**queue.training)
    folder.mkdir(parents=True)
    queue = replace(queue, training=training.packed(folder).to_json())
    keep()
    files.write_frame(folder / TRACE, jobs.to_frame(), name=jobs.name)
    queue.write(folder)  # last: without it, the folder is no queue
    return folder


def work_queue(
    folder: Path, *, again: bool = False, progress: bool = False, tell: OnRunEnd | None = None, trust: Trust = False
) -> RunQueue:
    """Carry out what is left of a queue, and return it; a run that fails is kept and told, and the rest goes on.

    A run that was cut off is gone on with, as by `labkit.attach`: its jobs are where they were, or start again from
    their newest checkpoints. What is over is not run again.

    Parameters
    ----------
    folder : Path
        Of the queue.
    again : bool
        Run those that failed, too: in new folders, and those of the failed ones stay.
    progress : bool
        Show a progress bar for each run.
    tell : callable, optional
        Called after each run.
    trust : bool or callable
        As `labkit.attach` takes it.

    Raises
    ------
    InputError
        If another process works the queue, it cannot be read, or it names something that has no consent.
    """
    with _worked(folder), stored(trust):
        queue, jobs = RunQueue.read(folder), files.read_jobs(folder / TRACE)
        if again:
            queue = _with_retries(queue, folder)
        if queue.left:
            _agreed(queue, jobs, folder)
        for each in queue.left:
            queue = _written(queue.changed(each.run, state=QueueState.RUNNING), folder)
            try:
                record, columns = _outcome(each, queue, jobs, folder, progress=progress, trust=trust)
            except TakenOverError as error:
                _written(queue.changed(each.run, state=QueueState.STOPPED, why=str(error)), folder)
                raise
            queue = _written(queue.changed(each.run, **columns), folder)
            if tell is not None:
                tell(next(run for run in queue.runs if run.run == each.run), record)
            if columns["state"] == QueueState.STOPPED:
                raise KeyboardInterrupt
    return queue


def _agreed(queue: RunQueue, jobs: Jobs, folder: Path) -> None:
    """Refuse a queue whose runs cannot begin, before the first one does: all that it names needs consent."""
    from labkit.testbed.inventory import Inventory

    if odd := set(queue.options) - {*RUN_FIELDS, "lease_s"}:
        raise InputError(f"{folder / QUEUE} has the option {printable(min(odd))!r}, which no queue has.")
    hosts, training, retries = Inventory.read(queue.inventory), _training(queue, folder), _retries(queue)
    for scheduler in dict.fromkeys(each.scheduler for each in queue.left):
        Preflight.of(
            jobs, inventory=hosts, scheduler=_with_absolute_paths(scheduler, queue.where), training=training,
            retries=retries,
            **{**queue.options, "history": None},
        )  # fmt: skip


@contextmanager
def _worked(folder: Path) -> Iterator[None]:
    """Hold the lock of a queue."""
    if not (folder / QUEUE).is_file():
        RunQueue.read(folder)  # tells what is missing
    refuse_foreign(folder)
    lock = RunLock(folder)
    try:
        yield
    finally:
        lock.release()


def _written(queue: RunQueue, folder: Path) -> RunQueue:
    queue.write(folder)
    return queue


def _with_retries(queue: RunQueue, folder: Path) -> RunQueue:
    """Return a queue whose failed runs are planned again, under new names."""
    for each in queue.runs:
        if each.state == QueueState.FAILED:
            taken = {path.name for path in folder.iterdir()} | {run.run for run in queue.runs}
            stem = re.sub(r"-try\d+$", "", each.run)
            name = next(name for n in range(2, len(taken) + 3) if (name := f"{stem}-try{n}") not in taken)
            name = name if (folder / each.run).exists() else each.run
            queue = queue.changed(each.run, run=name, state=QueueState.PLANNED, why="", resumed=0)
    return queue


def _outcome(
    each: QueuedRun, queue: RunQueue, jobs: Jobs, folder: Path, *, progress: bool, trust: Trust
) -> tuple[RunRecord | None, dict[str, Any]]:
    """Carry out a run; return its record, and what the queue is to say of it."""
    resumed = each.resumed
    try:
        if _started_on_hosts(folder / each.run):
            resumed += each.state != QueueState.PLANNED
            record = _gone_on(each, queue, folder, progress=progress, trust=trust)
        else:
            record = _run(each, queue, jobs, folder, progress=progress)
    except KeyboardInterrupt:
        return None, {"state": QueueState.STOPPED, "why": "Ctrl-C", "resumed": resumed}
    except TakenOverError:
        raise
    except Exception as error:  # a scheduler of one's own may raise anything; the rest goes on
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        why = f"{kind}{' '.join(str(error).split())}"
        return None, {"state": QueueState.FAILED, "why": why, "resumed": resumed}
    return record, {**_judged(record, queue.time_limit_s), "resumed": resumed}


def _judged(record: RunRecord, limit_s: float | None) -> dict[str, Any]:
    """Return how a run that came to an end ended."""
    if record.complete:
        return {"state": QueueState.DONE, "why": ""}
    done = f"{record.n_done} of {len(record.jobs)} jobs done"
    if record.info.dropped:
        job, why = next(iter(record.info.dropped.items()))
        said = f"{done}, {len(record.info.dropped)} given up (job {job}: {' '.join(why.split())[:200]})"
        return {"state": QueueState.FAILED, "why": said}
    if limit_s is None:
        return {"state": QueueState.FAILED, "why": done}
    return {"state": QueueState.CUT, "why": f"time limit of {human_s(limit_s)}: {done}"}


def _started_on_hosts(folder: Path) -> bool:
    """Return whether something of a run may be on hosts; a folder of one that had not begun there is removed."""
    if (folder / STATE).is_file():
        return True
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    return False


def _run(each: QueuedRun, queue: RunQueue, jobs: Jobs, folder: Path, *, progress: bool) -> RunRecord:
    """Begin a run and drive it to its end."""
    opener = Preflight.of(
        jobs, inventory=queue.inventory, scheduler=_with_absolute_paths(each.scheduler, queue.where),
        name=each.scheduler,
        runs=folder, retries=_retries(queue), training=_training(queue, folder), run=each.run,
        config={"queue": folder.name, "repeat": each.repeat, "time_limit_s": queue.time_limit_s},
        **{**queue.options, "history": None},
    )  # fmt: skip
    return run_opened(opener, progress=progress, time_limit_s=queue.time_limit_s)


def _training(queue: RunQueue, folder: Path) -> TrainingTable:
    from labkit.testbed.run.training import TrainingTable

    return TrainingTable.stored(queue.training, folder)


def _with_absolute_paths(scheduler: str, where: str) -> str:
    """Return the name of a scheduler; files of one's own by their absolute paths.

    >>> _with_absolute_paths("mine.py:Mine(k=2)", "/users/ada")
    '/users/ada/mine.py:Mine(k=2)'
    >>> _with_absolute_paths("a=drf(placer='mine.py:P')", "/users/ada")
    "a=drf(placer='/users/ada/mine.py:P')"
    """
    return _FILE.sub(lambda file: str(Path(where) / file[0]), scheduler)


def _gone_on(each: QueuedRun, queue: RunQueue, folder: Path, *, progress: bool, trust: Trust) -> RunRecord:
    """Return the record of a run that had begun: as it ended, or after going on with it."""
    record = load(folder / each.run)
    if record.complete or record.info.state == "done":
        return record
    return attach(
        folder / each.run, progress=progress, time_limit_s=queue.time_limit_s, retries=_retries(queue), trust=trust,
        **{**queue.options, "history": None},
    )  # fmt: skip


def _retries(queue: RunQueue) -> Retries:
    from labkit.testbed.run.retries import Retries

    try:
        return Retries(**queue.retries)
    except TypeError as error:
        raise InputError(f"{QUEUE}: retries cannot be used ({error}); expected failures, spread_s.") from None
