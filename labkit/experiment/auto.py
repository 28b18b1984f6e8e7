"""A job on this machine that finds its own workers, servers and cores: `labkit train MODEL --auto`, also of one's own.

The scheduler, the session and the backend are those of a run on machines; its only host is this machine, and its only
job the one that is asked for. So it has a folder of its own, `labkit watch` shows it, and `labkit attach` goes on with
it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from inspect import getsource, signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.jobs import Jobs
from labkit.core.placement import Reason
from labkit.core.protocols import Scheduler
from labkit.core.resources import amounts
from labkit.elastic.job_start import start
from labkit.elastic.own_training import OwnTraining, content_of, is_file, of_loop, read_training
from labkit.elastic.script_loop import ScriptLoop
from labkit.experiment.batches import TRIAL_S, checked_batches, chosen, plan_found, reason_of, tried
from labkit.experiment.deployed import ObserverFactory, run_opened
from labkit.experiment.history import FILE, add
from labkit.experiment.opener import LEASE_S, OnStart, Preflight
from labkit.experiment.session import Observer
from labkit.results.record import RunRecord
from labkit.schedulers.dlrover.history import Likeness
from labkit.schedulers.dlrover.scheduler import Dlrover

if TYPE_CHECKING:
    from torch import nn

    from labkit.testbed.run.training import TrainingTable

UNITS: Final = 20
"""Into so many parts the brain cuts the cores that there are to share: processes cost too much for smaller ones."""
WORTH_FREEING: Final = 0.25
"""A plan as fast is worth a change if it frees this part of the cores: no other job waits for them."""
LEAST_UNIT: Final = 0.01
"""Cores: less cannot be held (1 ms of each 100 ms)."""
GAP_S, LOOK_S, PATIENCE_S = 8.0, 2.0, 40.0
"""Between two changes of the job; between two looks at it; until it is given up to measure it."""
MOST_WORKERS, MOST_SERVERS = 8, 2
ENDLESS: Final = 10**7
"""Steps of a copy that is ended before."""
USER: Final = "generated"
"""Of the job, as of generated traces."""
PLACE: Final = "here"
"""Folder of the inventory and the agent, beside the runs."""
STUB: Final = """from pathlib import Path

from labkit.elastic.own_training import OwnTraining


def program(_):
    return OwnTraining.load(Path(__file__).parent)
"""
"""The script that hands a pickled training on."""


def brain_for(cores: float) -> str:
    """Return the scheduler for so many cores of this machine, as a name with options.

    >>> brain_for(2.0)[:43]
    'dlrover(total_cores=2, most_cores=2, unit=0'
    """
    unit = max(cores / UNITS, LEAST_UNIT)
    return (
        f"dlrover(total_cores={cores:g}, most_cores={cores:g}, unit={unit:g}, gap_s={GAP_S:g}, "
        f"patience_s={PATIENCE_S:g}, quantum_s={LOOK_S:g}, measure_every_s={LOOK_S:g}, "
        f"frees={WORTH_FREEING:g}, n_full=1, few=True, watch_memory=False)"
    )


def job_of(
    model: str, *, steps: int, cores: float, workers: int, servers: int, batch: int, max_workers: int,
    max_servers: int, own: bool = False,
) -> Jobs:  # fmt: skip
    """Return the job as a trace of one, asynchronous, with the cores shared evenly by the tasks that are asked for.

    Raise InputError if it has no servers, or makes no sense otherwise.
    """
    for name, n in (("steps", steps), ("workers", workers), ("servers", servers), ("batch", batch)):
        if n < 1:
            of = "; what has no parameter servers cannot configure itself" if name == "servers" else ""
            raise InputError(f"--auto with {n} {name}; expected at least one{of}.")
    each = amounts(cpus=math.floor(1e4 * cores / (workers + servers)) / 1e4)
    return Jobs.of(
        name=model, id=[model], model=model, user=USER, arrival_s=[0.0], total_steps=[steps],
        samples_per_step=batch, n_workers=workers, n_ps=servers, max_workers=max(workers, max_workers),
        max_ps=max(servers, max_servers), worker_demand=each, ps_demand=each, sync=False,
        duration_s=float(steps) if own else np.nan,  # only to rehearse with
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class AutoProgram:
    """What a job that configures itself trains: its name, a training of one's own (None: the catalogue's), and how."""

    name: str
    own: OwnTraining | None
    training: TrainingTable

    @property
    def batch(self) -> int:
        """Samples of an update."""
        return self.training.samples_per_step

    def with_batch(self, batch: int) -> AutoProgram:
        """Return it with another batch size."""
        own = None if self.own is None else self.own.with_batch(batch)
        return AutoProgram(self.name, own, self.training.changed(batch=batch))

    def packed(self, place: Path) -> TrainingTable:
        """Return how it trains, with a training of one's own as a script, packed."""
        from labkit.testbed.run.own_scripts import STAGED, OwnScript

        if self.own is None:
            return self.training
        with TemporaryDirectory() as folder:
            self.own.save(Path(folder))
            (Path(folder) / "train.py").write_text(STUB, encoding="utf-8")
            script = OwnScript.of(Path(folder) / "train.py").packed(place / STAGED)
        return self.training.changed(scripts={self.name: script})


def program_of(
    model: str | Path | nn.Module | ScriptLoop, data: Any, loss: Callable[[Any, Any], Any] | None, *,
    training: TrainingTable, args: Sequence[str] = (),
) -> AutoProgram:  # fmt: skip
    """Return what is trained, and how.

    The name of a training of one's own ends with the hash of what was written: of the file and of what it imports
    beside it, or of the module and the loss. Final plans are kept by it, so that a training that was changed starts
    anew. Raise InputError if it defines what a job that configures itself does not take: which.
    """
    from labkit.elastic import models
    from labkit.elastic.data import as_dataset
    from labkit.testbed.run.own_scripts import pickle_by_value

    if isinstance(model, str) and not is_file(model):
        name = models.size_of(model, width=training.widths.get(model, training.width)).name
        return AutoProgram(name, None, training)
    if isinstance(model, str | Path):
        path = Path(model)
        own, stem = read_training(path, seed=training.seed, args=args), path.stem
        content = content_of(path, *args)
        own.check_unvalidated(str(path), instead="leave it out, or --auto")
        pickle_by_value(path.absolute().parent)
        training = _with_options(training, own, where=path)
    else:
        if loss is None or (data is None and not isinstance(model, ScriptLoop)):
            raise InputError("auto(model) with a module needs data and loss, too: auto(model, data, loss, steps=...).")
        own = of_loop(model, loss) if isinstance(model, ScriptLoop) else OwnTraining(model, data, loss)
        own, stem = replace(own, data=as_dataset(own.data)), type(own.model).__name__.lower()
        written = "\n".join([repr(own.model), _source(type(own.model)), _source(own.loss)])
        content = hashlib.sha256(written.encode()).hexdigest()
        training = _with_options(training, own, where="the training")
    own.check()
    program = AutoProgram(f"{stem}-{content[:12]}", own, training)
    return program.with_batch(training.batch or own.batch or program.batch)


def _source(of: Any) -> str:
    try:
        return getsource(of)
    except (OSError, TypeError):
        return repr(of)


def _with_options(training: TrainingTable, own: OwnTraining, *, where: Path | str) -> TrainingTable:
    """Return how a job trains, with the options of its file that are not set otherwise; the others go with the file."""
    usual, known = type(training)(), signature(start).parameters
    names = [each.name for each in fields(training) if each.name not in ("scripts", "widths", "width", "samples")]
    for name, value in own.options.items():
        if name not in names and name not in known:
            raise unknown(f"option of {where} for --auto", name, sorted({*names, *known}))
        if name in names and getattr(training, name) == getattr(usual, name):
            training = training.changed(**{name: value})
    return training


def opener_of(
    model: str | Path | nn.Module | ScriptLoop | AutoProgram,
    data: Any = None,
    loss: Callable[[Any, Any], Any] | None = None,
    *,
    steps: int,
    cores: float | None = None,
    workers: int = 2,
    servers: int = 1,
    max_workers: int = MOST_WORKERS,
    max_servers: int = MOST_SERVERS,
    scheduler: Scheduler | str | None = None,
    runs: str | Path = "runs",
    history: str | Path | None = None,
    lease_s: float = LEASE_S,
    training: TrainingTable | None = None,
    args: Sequence[str] = (),
) -> Preflight:
    """Return a run that may begin; parameters and errors are those of `auto`."""
    from labkit.testbed.run.session import local_inventory
    from labkit.testbed.run.training import TrainingTable

    if not isinstance(model, AutoProgram):
        model = program_of(model, data, loss, training=training or TrainingTable(), args=args)
    kept = Path(runs)
    training = model.packed(kept / PLACE)
    hosts = local_inventory(kept / PLACE, cores=cores)
    there = float(hosts.cluster().capacity.sum(axis=0)[1])
    jobs = job_of(
        model.name, steps=steps, cores=there, workers=workers, servers=servers, batch=model.batch,
        max_workers=max_workers, max_servers=max_servers, own=bool(training.scripts),
    )  # fmt: skip
    return Preflight.of(
        jobs, inventory=hosts, scheduler=brain_for(there) if scheduler is None else scheduler, runs=kept,
        name="dlrover" if scheduler is None else None, training=training.changed(network="local"),
        lease_s=lease_s, history=kept / FILE if history is None else Path(history),
    )  # fmt: skip


def with_batch_of(
    program: AutoProgram, batches: Sequence[int], *, steps: int, tell: Callable[[str], None],
    **options: Unpack[AutoFields],
) -> tuple[AutoProgram, int, Reason]:  # fmt: skip
    """Return what is trained with the batch size that trials show to be enough, in how many steps, and why."""
    allowed = checked_batches(batches)
    options["history"] = history = Path(options.get("history") or Path(options.get("runs", "runs")) / FILE)
    tell(f"batches {', '.join(map(str, allowed))} are tried on copies of the job, {TRIAL_S:.0f} s each")
    with TemporaryDirectory(prefix="labkit-trials-") as folder:
        options["runs"] = folder
        usual = program.batch if program.batch in allowed else allowed[0]
        first = opener_of(program.with_batch(usual), steps=steps, **options)
        plan = plan_found(first)
        tell(f"trials with {plan or 'what was asked for'}")
        options["scheduler"], options["history"] = "static", Path(folder) / FILE
        if plan is not None and isinstance(brain := first.scheduler, Dlrover):  # it holds tasks to their cores
            add(Path(folder) / FILE, Likeness(program.name, 0.0, USER), plan)
            options["scheduler"] = replace(brain, rules=replace(brain.rules, gap_s=float(ENDLESS)))
        trials = tried(
            lambda batch: opener_of(program.with_batch(batch), steps=ENDLESS, **options), allowed, tell
        )  # fmt: skip
    taken = chosen(trials).batch
    if plan is not None:  # with which it was tried: the job begins with it
        add(history, Likeness(program.name, taken, USER), plan)
    n_steps = math.ceil(steps * program.batch / taken)
    return program.with_batch(taken), n_steps, reason_of(trials, steps=n_steps, before=(program.batch, steps))


class AutoFields(TypedDict, total=False):
    """Arguments of `auto` that say what trains and with what."""

    cores: float | None
    workers: int
    servers: int
    max_workers: int
    max_servers: int
    scheduler: Scheduler | str | None
    runs: str | Path
    history: str | Path | None
    lease_s: float
    training: TrainingTable | None
    args: Sequence[str]


def auto(
    model: str | Path | nn.Module | ScriptLoop,
    data: Any = None,
    loss: Callable[[Any, Any], Any] | None = None,
    *,
    steps: int,
    batches: Sequence[int] = (),
    tell: Callable[[str], None] = print,
    progress: bool = False,
    observers: Sequence[Observer] = (),
    observer_factory: ObserverFactory | None = None,
    on_start: OnStart | None = None,
    **options: Unpack[AutoFields],
) -> RunRecord:
    """Train a model on this machine until its steps are done; its workers, servers and cores are found on the way.

    Parameters
    ----------
    model : str or Module
        One of `labkit.elastic.models.available()`, or the start of its name; or a file of one's own that defines
        model(), data() and loss(model, batch); or a module; or a job of `labkit.elastic`, whose `auto` calls this.
    data, loss
        With a module: its samples and its loss, as `labkit.elastic.start` takes them.
    steps : int
        Updates of the parameters; with `batches`, of the training's own batch size: samples stay as many.
    batches : sequence of int
        Batch sizes that it may train with. Each is tried for some seconds on a copy of the job, before it begins; the
        smallest with 90% of the best samples/s is taken. The learning rate stays as it is.
    tell : callable
        Is called with a line for each trial; by default it is printed.
    progress : bool
        Show a progress bar.
    observers : sequence of callables
        Each is called with every batch of events.
    observer_factory : callable, optional
        Is called with the list of reasons of decisions, which grows, and returns one more observer.
    on_start : callable, optional
        Called with the run's folder as soon as it is there.
    options
        cores : float, optional
            What there is to share; by default all that this process may use.
        workers, servers : int
            What it gets where nothing can be measured: cores shared evenly.
        max_workers, max_servers : int
            The most that it may get.
        scheduler : Scheduler or str, optional
            By default the brain, with seconds and parts of cores that suit this machine: `brain_for`.
        runs : path
            Where runs are kept, each in a folder of its own.
        history : path, optional
            Final plans of earlier runs; by default plans.jsonl in the folder of runs.
        lease_s : float
            Seconds that the job trains on without a heartbeat from this process.
        training : TrainingTable, optional
            How it trains: batch, width, samples, optimizer.
        args : sequence of str
            Arguments that a file of one's own finds in `sys.argv`.

    Returns
    -------
    RunRecord
        As of any run.

    Raises
    ------
    InputError
        If it cannot train, there are not so many cores, or the folder cannot be written; nothing has been started then.
    """
    from labkit.testbed.run.training import TrainingTable

    training = options.get("training") or TrainingTable()
    program = program_of(model, data, loss, training=training, args=options.get("args", ()))
    decided: tuple[Reason, ...] = ()
    if batches:
        program, steps, why = with_batch_of(program, batches, steps=steps, tell=tell, **options)
        decided = (why,)
    return run_opened(
        opener_of(program, steps=steps, **options), progress=progress, observers=observers,
        observer_factory=observer_factory, on_start=on_start, decided=decided,
    )  # fmt: skip
