"""What a placer must pass."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from labkit.core import Gangs, Placement, Placer, Snapshot
from labkit.core.resources import GPUS, Ints
from labkit.testing.placements import check_placement, counts, name_of, require
from labkit.testing.scenes import DecisionScene, empty_snapshot, paired, random_scenes
from labkit.testing.schedulers import same


def check_placer(placer: Placer, *, scenes: Iterable[DecisionScene] | None = None, seed: int = 0) -> None:
    """Check that a placer keeps its protocol, with random gangs on each scene, alone and in pairs.

    Gangs are placed whole or (only if they may) smaller; a job without room gets nothing, and is stopped if it ran;
    `strict` ends at the first gang without room; device types are kept; nothing is overfilled; two jobs that are to
    share their GPUs are placed together or not at all; the same question has the same answer; and on the empty cluster
    a single worker always finds a place.

    Parameters
    ----------
    scenes : iterable of DecisionScene, optional
        Where to try it; random ones of `seed` by default: ten, five with pairs, and five with slices and modes of GPUs.

    Raises
    ------
    ConformanceError
        In one sentence, with the placer's name.

    Examples
    --------
    >>> from labkit.placers import Pack
    >>> check_placer(Pack())
    """
    if scenes is None:
        scenes = [
            *random_scenes(seed=seed),
            *random_scenes(n=5, seed=seed, pairs=True),
            *random_scenes(n=5, seed=seed, kinds=True),
        ]
    for i, scene in enumerate(scenes):
        rng = np.random.default_rng([seed, i])
        for share in (0.0, 0.5, 1.0):
            for strict in (False, True):
                check_gangs(placer, gangs=_gangs(rng, scene, share), scene=scene, strict=strict)
        _check_single_workers(placer, scene)
        for strict in (False, True):
            pairs = _able_pairs(paired(rng, _gangs(rng, scene, 0.5), scene.jobs), scene)
            check_gangs(placer, gangs=pairs, scene=scene, strict=strict)


def _gangs(rng: np.random.Generator, scene: DecisionScene, shrinks: float) -> Gangs:
    """Return random gangs, of which about such a share may shrink."""
    table, active = scene.jobs, scene.snapshot().jobs.number
    jobs = rng.permutation(active)[: rng.integers(1, len(active) + 1)]
    n_types = scene.runs_on.shape[1]
    wanted = rng.integers(-1, n_types, len(jobs))
    wanted[~scene.runs_on[jobs, wanted]] = -1
    most_ps = table.max_ps[jobs]
    return Gangs.of(
        jobs,
        n_workers=rng.integers(1, table.max_workers[jobs] + 1),
        n_ps=np.where(most_ps > 0, rng.integers(1, np.maximum(most_ps, 1) + 1), 0),
        device_type=wanted,
        shrinks=rng.random(len(jobs)) < shrinks,
    )


def _able_pairs(gangs: Gangs, scene: DecisionScene) -> Gangs:
    """Return the gangs with a device type for pairs that both jobs run on."""
    kind = gangs.device_type.copy()
    for i in np.flatnonzero(gangs.partner >= 0):
        if kind[i] >= 0 and not scene.runs_on[gangs.partner[i], kind[i]]:
            kind[i] = -1
    return Gangs(gangs.job, gangs.n_workers, gangs.n_ps, kind, gangs.shrinks, gangs.partner)


def check_gangs(placer: Placer, *, gangs: Gangs, scene: DecisionScene, strict: bool = False) -> Placement:
    """Check how a placer places some gangs on a scene, and return its answer.

    Raises
    ------
    ConformanceError
        In one sentence, with the placer's name.
    """
    name = name_of(placer)
    snapshot = scene.snapshot()
    placement = placer.place(snapshot, gangs, strict=strict)
    check_placement(placement, snapshot=snapshot, name=name)
    require(
        same(placement, placer.place(scene.snapshot(), gangs, strict=strict)),
        f"{name} answers the same question differently the second time.",
    )
    stray = np.setdiff1d(placement.set_jobs, gangs.named)
    require(not len(stray), f"{name} sets jobs {stray.tolist()}, for which no gang was asked.")
    n_workers, n_ps = (column[: len(gangs)] for column in counts(placement, jobs=gangs.named))
    _check_sizes(name, gangs, n_workers, n_ps)
    _check_settled(name, snapshot, gangs, placement)
    _check_pairs(name, snapshot, gangs, placement, n_workers)
    _check_types(name, snapshot, gangs, placement)
    if strict:
        missed = int(np.argmin(n_workers))  # the first without workers, if there is one
        late = gangs.job[missed:][n_workers[missed:] > 0]
        require(
            n_workers[missed] or not len(late),
            f"{name} places jobs {late.tolist()} although job {gangs.job[missed]} before them found no room.",
        )
    return placement


def _check_sizes(name: str, gangs: Gangs, n_workers: Ints, n_ps: Ints) -> None:
    may_shrink = gangs.may_shrink()
    for i, job in enumerate(gangs.job):
        got, wanted = (int(n_workers[i]), int(n_ps[i])), (int(gangs.n_workers[i]), int(gangs.n_ps[i]))
        smaller = 1 <= got[0] <= wanted[0] and got[1] <= wanted[1] and (got[1] > 0) == (wanted[1] > 0)
        require(
            got in {(0, 0), wanted} or (may_shrink[i] and smaller),
            f"{name} gives job {job} {got[0]} workers and {got[1]} PSs of a gang of {wanted[0]} and {wanted[1]}.",
        )


def _check_pairs(name: str, snapshot: Snapshot, gangs: Gangs, placement: Placement, n_workers: Ints) -> None:
    partner = dict(zip(placement.set_jobs.tolist(), placement.partner.tolist(), strict=False))
    wanted = gangs.partner if len(gangs.partner) else np.full(len(gangs), -1)
    for job, other, n in zip(gangs.job.tolist(), wanted.tolist(), n_workers.tolist(), strict=True):
        got = partner.get(job, -1)
        require(got == (other if n else -1), f"{name} gives job {job} the partner {got} instead of {other}.")
        if other >= 0:
            n_other, n_ps = counts(placement, jobs=placement.set_jobs)
            at = np.flatnonzero(placement.set_jobs == other)
            pair = (int(n_other[at[0]]), int(n_ps[at[0]])) if len(at) else (0, 0)
            right = (n, int(snapshot.table.n_ps[other])) if n else (0, 0)
            require(
                pair == right,
                f"{name} gives job {other}, which is to share with job {job}, {pair[0]} workers and {pair[1]} PSs "
                f"instead of {right[0]} and {right[1]}.",
            )


def _check_settled(name: str, snapshot: Snapshot, gangs: Gangs, placement: Placement) -> None:
    ran_on = gangs.named[~np.isin(gangs.named, placement.job) & snapshot.holds(gangs.named)]
    forgotten = np.setdiff1d(ran_on, placement.set_jobs)
    require(
        not len(forgotten), f"{name} finds no room for the running jobs {forgotten.tolist()}, but does not set them."
    )


def _check_types(name: str, snapshot: Snapshot, gangs: Gangs, placement: Placement) -> None:
    cluster, table = snapshot.cluster, snapshot.table
    for job, wanted in zip(gangs.job, gangs.device_type, strict=True):
        if table.worker_demand[job, GPUS] == 0:
            continue
        rows = (placement.job == job) & (placement.role == 0)
        types = np.unique(cluster.group_type[placement.group[rows]])
        require(
            wanted < 0 or not len(types) or types.tolist() == [wanted],
            f"{name} puts job {job} on the device types {types.tolist()} instead of {wanted}.",
        )


def _check_single_workers(placer: Placer, scene: DecisionScene) -> None:
    snapshot = empty_snapshot(scene.jobs, cluster=scene.cluster, runs_on=scene.runs_on)
    for job in range(len(scene.jobs)):
        placement = placer.place(snapshot, Gangs.of([job], n_workers=1))
        require(
            len(placement) == 1,
            f"{name_of(placer)} finds no place for one worker of job {job} ({scene.jobs.worker_demand[job].tolist()}: "
            f"GPUs, cores, GB) on the empty cluster {scene.cluster}.",
        )
