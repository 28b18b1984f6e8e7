"""How a run on machines begins: it is checked, has a folder, is rehearsed, and then its hosts get ready."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.consent import keep
from labkit.core.devices import refuse_parts, refuse_slices
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.life import Traits
from labkit.core.protocols import Scheduler
from labkit.experiment.experiment import Experiment
from labkit.experiment.fitting import refuse_unfit
from labkit.experiment.history import FILE, Remembers, attach_history
from labkit.experiment.scenario import Fields, Scenario
from labkit.results.record import COLD_STARTS, RunInfo
from labkit.results.store import RunWriter, refuse_taken
from labkit.schedulers import named
from labkit.speed.recorded import Recorded

if TYPE_CHECKING:
    from labkit.testbed.inventory import Inventory
    from labkit.testbed.run.backend import SshBackend
    from labkit.testbed.run.retries import Retries
    from labkit.testbed.run.training import TrainingTable

OnStart = Callable[[Path], None]
"""Called with the folder of a run that begins."""
LEASE_S: Final = 600.0
SHORTEST_LEASE_S, LONGEST_LEASE_S = 5.0, 30 * 86400.0
NAMED_AS: Final = "asked"
"""In the options of a run: the scheduler as it was named, whatever the run is called."""
REHEARSED: Final = 5
"""Decisions in a simulation before those on machines."""


class Preflight:
    """A run on machines that may begin: its jobs and its scheduler are checked, nothing is asked of the hosts yet.

    Raise InputError if a job cannot train or fits no host, or the scheduler needs a simulator.

    Parameters
    ----------
    experiment : Experiment
        Jobs, and the inventory's cluster.
    inventory : Inventory
        The hosts.
    scheduler : Scheduler or str
        Whose run it is, or its name.
    name : str, optional
        What the run is called; by default as its scheduler.
    runs : path
        Where runs are kept, each in a folder of its own.
    training : TrainingTable, optional
        How jobs train.
    lease_s : float
        Seconds a host keeps the run alive without a heartbeat from this process.
    retries : Retries, optional
        How patient it is with jobs that fail and hosts that fail jobs.
    run : str, optional
        Its id, which no other run may have; by default one that is free, made of scheduler and trace.
    config : mapping, optional
        What else its record is to say of it.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        inventory: Inventory,
        scheduler: Scheduler | str,
        name: str | None = None,
        runs: str | Path = "runs",
        training: TrainingTable | None = None,
        lease_s: float = LEASE_S,
        retries: Retries | None = None,
        run: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        from labkit.testbed.run.training import TrainingTable

        if not SHORTEST_LEASE_S <= lease_s <= LONGEST_LEASE_S:
            raise InputError(f"a lease of {lease_s:g} s; expected {SHORTEST_LEASE_S:g} s to 30 days.")
        self.lease_s, self.retries = lease_s, retries
        self.run, self.config = run, dict(config or {})
        if run is not None:
            refuse_taken(run, root=runs)
        self.scheduler, self.name = named(scheduler, name)
        if training is not None and isinstance(self.scheduler, Remembers):
            experiment, training = _by_content(experiment, training)
        self.experiment, self.inventory, self.runs = experiment, inventory, Path(runs)
        self.named_as = scheduler if isinstance(scheduler, str) else ""
        self.training = _measured(training or TrainingTable(), experiment.measured_every_s(self.scheduler))
        _refuse_leases(self.scheduler, self.name)
        _refuse_unknown_durations(self.scheduler, self.name, experiment.jobs)
        if experiment.troubles is not None:
            raise InputError("troubles are those of a simulation; jobs on machines have their own: leave them out.")
        attach_history(
            experiment.history, self.scheduler
        )  # a file that cannot be used is told before the run has a folder
        self.training.check(experiment.jobs)
        refuse_parts(experiment.jobs)
        refuse_slices(experiment.cluster)
        refuse_unfit(experiment.jobs, experiment.cluster, experiment.speed.runs_on())

    @classmethod
    def of(
        cls,
        jobs: Scenario | Jobs | str | Path,
        *,
        inventory: Inventory | str | Path | None = None,
        scheduler: Scheduler | str,
        name: str | None = None,
        runs: str | Path = "runs",
        training: TrainingTable | None = None,
        lease_s: float = LEASE_S,
        retries: Retries | None = None,
        run: str | None = None,
        config: Mapping[str, Any] | None = None,
        **fields: Unpack[Fields],
    ) -> Self:
        """Return an opener for a trace, which may be a path, on the hosts of an inventory, which may be one too.

        Fields are those of a `Scenario`; final plans of earlier runs are by default those in the folder of runs.
        """
        from labkit.testbed.inventory import Inventory

        hosts = inventory if isinstance(inventory, Inventory) else Inventory.read(inventory)
        fields.setdefault("history", Path(runs) / FILE)
        fields["cluster"] = hosts.cluster()
        experiment = on_machines(jobs, () if training is None else training.scripts, **fields)
        return cls(
            experiment, inventory=hosts, scheduler=scheduler, name=name, runs=runs, training=training,
            lease_s=lease_s, retries=retries, run=run, config=config,
        )  # fmt: skip

    def open(self, *, on_start: OnStart | None = None) -> tuple[SshBackend, RunWriter]:
        """Make the folder of the run, rehearse, and get all hosts ready; the caller closes both.

        `on_start` is called with the folder as soon as `labkit watch` can show it. Raise InputError if a host cannot be
        used; nothing has been started and there is no folder then.
        """
        from labkit.testbed.run.backend import SshBackend

        experiment = self.experiment
        info = experiment.info(self.scheduler, name=self.name)
        named_as = {NAMED_AS: self.named_as} if self.named_as else {}
        info = replace(info, run=self.run or info.run, config={**info.config, **named_as, **self.config})
        writer = RunWriter.create(
            self.runs, info=replace(info, backend="testbed"), jobs=experiment.jobs, cluster=experiment.cluster,
            numbered=self.run is None,
        )  # fmt: skip
        try:
            if on_start is not None:
                on_start(writer.folder)
            _rehearse(experiment, self.scheduler)
            training = self.training.packed(writer.folder)
            keep()
            backend = SshBackend(
                experiment.jobs, self.inventory, run=name_on_hosts(writer.info), folder=writer.folder,
                training=training, lease_s=self.lease_s, retries=self.retries,
            )  # fmt: skip
        except BaseException:
            writer.discard()
            raise
        return backend, writer


def on_machines(
    jobs: Scenario | Jobs | str | Path, scripts: Iterable[str], **fields: Unpack[Fields]
) -> Experiment:  # fmt: skip
    """Return an experiment on machines, where models with a script of one's own need no durations before the run."""
    scenario = Scenario.of(jobs, **fields)
    own = set(scripts)
    if own and scenario.speed == "auto" and scenario.throughputs is None:
        read = scenario.jobs()
        if np.isnan(read.duration_s).any() and not own.isdisjoint(read.models):
            assert isinstance(scenario.cluster, Cluster)
            scenario = replace(scenario, speed=Recorded(read, scenario.cluster, measured_later=True))
    return Experiment.of(scenario)


def _by_content(experiment: Experiment, training: TrainingTable) -> tuple[Experiment, TrainingTable]:
    """Return jobs and training with models of one's own named by what their scripts hold: mine-0123456789ab.

    A scheduler that remembers final plans takes a script that was changed for another training.
    """
    names = {
        name: f"{name}-{each.content[:12]}" for name, each in training.scripts.items() if each.content
    }  # fmt: skip
    if not names:
        return experiment, training
    jobs = replace(experiment.jobs, models=tuple(names.get(name, name) for name in experiment.jobs.models))
    scripts = {names.get(name, name): each for name, each in training.scripts.items()}
    widths = {names.get(name, name): each for name, each in training.widths.items()}
    return replace(experiment, jobs=jobs), training.changed(scripts=scripts, widths=widths)


def _measured(training: TrainingTable, every_s: float | None) -> TrainingTable:
    """Return how jobs train, measured as often as the scheduler or the caller wants it."""
    wanted = [s for s in (training.measure_every_s, every_s) if s is not None]
    return training.changed(measure_every_s=min(wanted, default=None))


def _rehearse(experiment: Experiment, scheduler: Scheduler) -> None:
    """Let a copy of a scheduler decide in a simulation: what the first decisions compile is ready when jobs wait."""
    with suppress(Exception):  # what goes wrong is told by the run itself
        copy = deepcopy(scheduler)
        session = replace(experiment, history=None).session(copy)
        while session.n_decisions < REHEARSED and not session.done:
            session.step(copy.schedule(session.snapshot()))


def name_on_hosts(info: RunInfo) -> str:
    """Return the name of a run on the hosts: several notebooks may use one testbed."""
    return f"{info.run[:50]}-{secrets.token_hex(4)}"


def tell_end(writer: RunWriter, backend: SshBackend) -> None:
    """Note which jobs were given up, and how many processes were started cold, for `run.json`."""
    config = writer.info.config
    n_cold = config.get(COLD_STARTS, 0) + backend.n_cold_starts
    writer.tell(dropped=dict(backend.dropped), config={**config, COLD_STARTS: n_cold})


def _refuse_unknown_durations(scheduler: Scheduler, name: str, jobs: Jobs) -> None:
    """Raise InputError if a scheduler decides by durations that are not known."""
    unknown = np.flatnonzero(np.isnan(jobs.duration_s))
    if len(unknown) and Traits.of(scheduler).needs_durations:
        raise InputError(
            f"scheduler '{name}' decides by duration_s, which job {jobs.id[unknown[0]]} does not have; add the column, "
            "or take one that needs none: fifo, las, optimus, dlrover."
        )


def _refuse_leases(scheduler: Scheduler, name: str) -> None:
    """Refuse a scheduler whose jobs rest at the end of a lease, as in Gavel's published simulator.

    Raise InputError with what to take instead.
    """
    if getattr(scheduler, "lease_s", None) is not None:
        raise InputError(
            f"scheduler '{name}' gives leases, which only the simulator has: jobs on a testbed continue until the next "
            "decision. Take it without published=True."
        )
