"""What a scheduler must pass."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import fields
from typing import Any

import numpy as np

from labkit.core import Jobs, Kind, Placement, PlacementError, Scheduler, Snapshot, StalledError
from labkit.core.errors import TruthError
from labkit.core.jobs import TRUTH
from labkit.core.life import Context, Traits, begin
from labkit.experiment import Cadence, Session, at_events, every_slot
from labkit.experiment.context import context
from labkit.simulator import Faults, Overheads
from labkit.testing.placements import ConformanceError, check_placement, counts, name_of, require
from labkit.testing.scenes import DecisionScene, SharedSpeeds, fits_empty, random_scenes

MAX_DECISIONS = 5000
N_SCENES = 10


def check_scheduler(
    scheduler: Scheduler, *, scenes: Iterable[DecisionScene] | None = None, seed: int = 0, n_scenes: int = N_SCENES
) -> None:
    """Check that a scheduler keeps its protocol; each scene gets a fresh (deep) copy of it.

    On each scene: what `check_answer` checks; then whole runs of the scene's jobs: decisions at events, in slots with
    overheads, and with failing machines. In some scenes jobs share their GPUs, whatever the scheduler thinks of that;
    in others GPUs are slices or belong to one task, and jobs demand slices, types and memory.

    Parameters
    ----------
    scheduler : Scheduler
        As a user would pass it to a session.
    scenes : iterable of DecisionScene, optional
        Where to try it; random ones of `seed` by default: `n_scenes`, as many with slices (decisions at events alone),
        and as many with pairs (answers alone).
    seed, n_scenes : int
        Of these scenes; the first ones are small.

    Raises
    ------
    ConformanceError
        In one sentence, with the scheduler's name.

    Examples
    --------
    >>> from labkit.schedulers import make
    >>> check_scheduler(make("fifo"))
    """
    require(not isinstance(scheduler, type), f"{name_of(scheduler)} is a class; make one: {name_of(scheduler)}().")
    require(
        callable(getattr(scheduler, "schedule", None)),
        f"{name_of(scheduler)} has no method schedule; expected schedule(self, snapshot) -> Placement.",
    )
    for scene in random_scenes(n=n_scenes, seed=seed, pairs=True) if scenes is None else ():
        check_answer(deepcopy(scheduler), scene=scene)
    for scene in random_scenes(n=n_scenes, seed=seed, kinds=True) if scenes is None else ():
        check_answer(deepcopy(scheduler), scene=scene)
        check_run(deepcopy(scheduler), scene=scene)
    for scene in random_scenes(n=n_scenes, seed=seed) if scenes is None else scenes:
        check_answer(deepcopy(scheduler), scene=scene)
        check_run(deepcopy(scheduler), scene=scene)
        check_run(deepcopy(scheduler), scene=scene, cadence=every_slot(300), overheads=Overheads(5, 20, 10))
        rng = np.random.default_rng(seed)
        check_run(deepcopy(scheduler), scene=scene, faults=Faults(3000, 200, 60), rng=rng)


def check_answer(scheduler: Scheduler, *, scene: DecisionScene) -> Placement:
    """Check one answer, and return it.

    It can be carried out (`check_placement`), rigid jobs get their whole gang or nothing, it leaves the snapshot and
    the table of jobs as they were, it is the
    same when asked again, and it does not depend on what jobs really need or on those that have not arrived; the last
    two cannot be told of one that declares `stochastic = True`.

    Raises
    ------
    ConformanceError
        In one sentence, with the scheduler's name.
    """
    name = name_of(scheduler)
    begin(scheduler, _context(scene))
    snapshot = scene.snapshot()
    before = deepcopy(_everything(snapshot))
    placement = _answer(scheduler, snapshot, name)
    changed = _first_difference(before, _everything(snapshot))
    require(changed is None, f"{name} changes the snapshot that it was shown: {changed} is no longer the same.")
    check_placement(placement, snapshot=snapshot, name=name)
    _check_rigid(placement, snapshot, name)
    if Traits.of(scheduler).stochastic:
        return placement
    require(
        same(placement, _answer(scheduler, scene.snapshot(), name)),
        f"{name} answers the same question differently the second time; keep what must last out of schedule(), and "
        "declare stochastic = True if it draws.",
    )
    future = _other_future(scene)
    begin(scheduler, _context(scene, jobs=future))
    require(
        same(placement, _answer(scheduler, scene.snapshot(jobs=future), name)),
        f"{name} looks at jobs that have not arrived yet; read only rows of snapshot.jobs.number in snapshot.table.",
    )
    return placement


def _context(scene: DecisionScene, *, jobs: Jobs | None = None) -> Context:
    """Return a scheduler's context of a scene; `jobs` are declared in place of the scene's own."""
    speed = SharedSpeeds(scene.jobs, scene.cluster, runs_on=scene.runs_on)
    return context(scene.jobs if jobs is None else jobs, scene.cluster, speed=speed, seed=0)


def _answer(scheduler: Scheduler, snapshot: Snapshot, name: str) -> Placement:
    try:
        placement: object = scheduler.schedule(snapshot)
    except TruthError as error:
        raise ConformanceError(f"{name} looks at what only the simulator may know: {error}") from error
    if not isinstance(placement, Placement):
        expected = "expected a Placement, Placement.nothing() to change nothing."
        raise ConformanceError(f"{name}.schedule() returns {placement!r:.40}; {expected}")
    return placement


def _other_future(scene: DecisionScene) -> Jobs:
    """Return the jobs of a scene, of which those that have not arrived yet come later and are longer."""
    jobs, n_arrived = scene.jobs, int((scene.rows["kind"] == Kind.ARRIVED).sum())
    coming = np.arange(len(jobs)) >= n_arrived
    return jobs.with_columns(
        arrival_s=jobs.arrival_s + 1000.0 * coming,
        total_steps=jobs.total_steps * np.where(coming, 7, 1),
        duration_s=jobs.duration_s * np.where(coming, 3, 1),
        weight=jobs.weight * np.where(coming, 5, 1),
    )


def check_run(
    scheduler: Scheduler, *, scene: DecisionScene, cadence: Cadence | None = None, **disturbances: Any
) -> Session:
    """Check that all jobs of a scene complete when run from time 0, every answer on the way being valid.

    Parameters
    ----------
    cadence : Cadence, optional
        When to decide; at events by default, and every `quantum_s` of a scheduler that has one.
    disturbances
        What `labkit.simulator.Simulator` takes.

    Returns
    -------
    Session
        At its end.

    Raises
    ------
    ConformanceError
        In one sentence, with the scheduler's name.
    """
    name = name_of(scheduler)
    cadence = cadence or at_events(quantum_s=Traits.of(scheduler).quantum_s)
    session = Session(scene.simulator(**disturbances), cadence=cadence, runs_on=scene.runs_on)
    begin(scheduler, _context(scene))
    while not session.done:
        snapshot = session.snapshot()
        placement = _answer(scheduler, snapshot, name)
        decision = f"{name}'s decision {snapshot.number}"
        check_placement(placement, snapshot=snapshot, name=decision)
        _check_rigid(placement, snapshot, decision)
        _step(session, placement, name, scene)
        require(
            session.n_decisions < MAX_DECISIONS,
            f"{name} has completed {session.ledger.n_done} of {len(scene.jobs)} jobs after {MAX_DECISIONS} decisions.",
        )
    return session


def _check_rigid(placement: Placement, snapshot: Snapshot, name: str) -> None:
    """Check that jobs that cannot train with another gang get the one that they asked for, or have, or nothing."""
    table, held = snapshot.table, snapshot.allocations
    rigid = placement.set_jobs[~table.malleable[placement.set_jobs]]
    for job, workers, servers in zip(rigid, *counts(placement, jobs=rigid), strict=True):
        gang = int(table.n_workers[job]), int(table.n_ps[job])
        require(
            (workers, servers) in {(0, 0), gang, (int(held["n_workers"][job]), int(held["n_ps"][job]))},
            f"{name} gives job {job} {workers} workers and {servers} PSs; it is rigid and trains with the {gang[0]} "
            f"and {gang[1]} that it asked for or not at all.",
        )


def _step(session: Session, placement: Placement, name: str, scene: DecisionScene) -> None:
    try:
        session.step(placement)
    except PlacementError as error:
        raise ConformanceError(f"{name} gave a placement that the simulator refuses: {error}") from error
    except StalledError as error:
        for job in session.ledger.waiting():
            if fits_empty(scene.jobs, scene.cluster, scene.runs_on, int(job)):
                raise ConformanceError(f"{name} stalls although job {job} fits the empty cluster: {error}") from error
        if session.ledger.n_holding:
            raise ConformanceError(f"{name} gives jobs gangs with which they do not train: {error}") from error
        raise


def same(one: Placement, other: Placement) -> bool:
    """Return whether two placements do the same, whatever the order of their jobs."""
    return _plain(one) == _plain(other)


def _plain(placement: Placement) -> tuple[list[tuple[int, int]], list[tuple[float, ...]]]:
    amounts = (np.nan_to_num(c if len(c) else np.full(len(placement), np.nan), nan=-1.0)
             for c in (placement.cpus, placement.memory_gb))  # fmt: skip
    columns = (placement.job, placement.role, placement.group, placement.count, *amounts)
    partner = placement.partner if len(placement.partner) else np.full(len(placement.set_jobs), -1)
    jobs = sorted(zip(placement.set_jobs.tolist(), partner.tolist(), strict=True))
    return jobs, sorted(zip(*(c.tolist() for c in columns), strict=True))


def _everything(snapshot: Snapshot) -> dict[str, Any]:
    table: Jobs = snapshot.table
    columns = {f"table.{f.name}": getattr(table, f.name) for f in fields(table) if f.name not in TRUTH}
    cluster = {f"cluster.{f.name}": getattr(snapshot.cluster, f.name) for f in fields(snapshot.cluster)}
    del cluster["cluster.network"]
    return flat(snapshot.freeze()) | columns | cluster | {"runs_on": snapshot.runs_on}


def flat(frozen: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays of `Snapshot.freeze` by dotted names: "jobs.speed", "tasks.0", ..."""
    jobs = {f"jobs.{name}": column for name, column in frozen["jobs"].items()}
    tasks = {f"tasks.{i}": column for i, column in enumerate(frozen["tasks"])}
    return {k: v for k, v in frozen.items() if k not in {"jobs", "tasks"}} | jobs | tasks


def _first_difference(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    for name, value in before.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            equal = np.array_equal(value, after[name], equal_nan=True)
        else:
            equal = np.array_equal(value, after[name])
        if not equal:
            return name
    return None
