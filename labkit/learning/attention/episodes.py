"""Whole runs of a trace in which attention places gangs, in compiled code: pods that forward, as in `Partitioned`."""

from __future__ import annotations

import numpy as np

from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.kernels import inner, kernel
from labkit.kernels.arrays import add_to
from labkit.learning.marl.episodes import DONE, World, begin_job, end_job, settle
from labkit.schedulers.marl.network import Scene
from labkit.schedulers.pods.attending import GangView, Net, Notes, Stand, place


def stand_of(scene: Scene, capacity: Floats) -> Stand:
    """Return the machines of a scene, empty; what is free there is that of the scene."""
    n = len(scene.facts.up_gbps)
    first = scene.room.first_group.astype(np.int64)
    return Stand(scene.room.free, np.ascontiguousarray(capacity, np.float64), first, np.zeros(n), np.zeros(n))


@inner
def _gang(scene: Scene, job: int, about: Floats, workers_on: Bools) -> GangView:
    room = scene.room
    for g in range(len(workers_on)):
        workers_on[g] = room.up[g] and (scene.worker[job, GPUS] <= 0 or scene.runs_on[job, room.group_type[g]])
    return GangView(
        scene.worker[job], scene.ps[job], scene.n_workers[job], scene.n_ps[job], workers_on, room.up, about[job]
    )


@inner
def _free_gpus(scene: Scene, stand: Stand, pod: int) -> float:
    """Return the GPUs that are free in a pod."""
    free, room = 0.0, scene.room
    for at in range(room.first_machine[pod], room.first_machine[pod + 1]):
        m = room.machines[at]
        for g in range(stand.first_group[m], stand.first_group[m + 1]):
            free += stand.free[g, GPUS]
    return free


@inner
def _pods(scene: Scene, stand: Stand, home: int) -> Ints:
    """Return the pods but one, those with most free GPUs first."""
    n = len(scene.room.first_machine) - 1
    key = np.array([-_free_gpus(scene, stand, pod) for pod in range(n)])
    order: Ints = np.argsort(key, kind="mergesort")
    others: Ints = order[order != home]
    return others


@inner
def _holds(scene: Scene, stand: Stand, gang: GangView, pod: int) -> bool:
    """Tell whether a pod has as many free GPUs and cores in all as a gang asks for."""
    room, free = scene.room, np.zeros(stand.free.shape[1])
    for at in range(room.first_machine[pod], room.first_machine[pod + 1]):
        m = room.machines[at]
        for g in range(stand.first_group[m], stand.first_group[m + 1]):
            free += stand.free[g]
    return bool((gang.n_workers * gang.worker + gang.n_ps * gang.ps <= free + 1e-9).all())


@inner
def _tried(
    net: Net, scene: Scene, stand: Stand, gang: GangView, pod: int, groups: Ints, draws: bool, rng: np.random.Generator,
    notes: Notes, job: int,
) -> bool:  # fmt: skip
    """Try to place a gang in a pod; what is free is as before, whether it fits or not."""
    if not _holds(scene, stand, gang, pod):
        return False
    room = scene.room
    machines = room.machines[room.first_machine[pod] : room.first_machine[pod + 1]]
    if not place(net, stand, gang, machines, groups, draws, rng, notes, job):
        return False
    for t in range(len(groups)):
        add_to(stand.free[groups[t]], gang.worker if t < gang.n_workers else gang.ps, 1)
    return True


@inner
def _note(scene: Scene, stand: Stand, length: Floats, job: int, groups: Ints, sign: int) -> None:
    for g in groups:
        stand.tasks[scene.facts.group_machine[g]] += sign
        stand.length[scene.facts.group_machine[g]] += sign * length[job]


@kernel(error_model="numpy")
def play(  # noqa: C901 - the loop over time, whose parts share the queue and the running jobs
    net: Net, scene: Scene, world: World, stand: Stand, about: Floats, length: Floats, draws: bool,
    rng: np.random.Generator, notes: Notes,
) -> None:  # fmt: skip
    """Simulate a trace to its end: each pod its own jobs in order of arrival, then those left over elsewhere."""
    n_jobs = len(world.steps)
    queue, running = np.zeros(n_jobs, np.int64), np.zeros(n_jobs, np.int64)
    others, workers_on = np.zeros(n_jobs, np.int64), np.zeros(len(stand.free), np.bool_)
    n_waiting, n_running, n_arrived, n_done, now_s = 0, 0, 0, 0, 0.0
    while n_done < n_jobs:
        next_s = world.arrival_s[n_arrived] if n_arrived < n_jobs else np.inf
        for i in range(n_running):
            j = running[i]
            next_s = min(next_s, world.since_s[j] + scene.left[j] / world.tasks.speed[j])
        if next_s == np.inf:
            return
        now_s = max(now_s, next_s)
        kept = 0
        for i in range(n_running):
            settle(scene, world, running[i], now_s)
        for i in range(n_running):
            j = running[i]
            if scene.left[j] <= DONE * world.steps[j]:
                n = scene.n_workers[j] + scene.n_ps[j]
                _note(scene, stand, length, j, scene.tasks.group[j, :n], -1)
                end_job(scene, world, world.slow, j, now_s, others)
                n_done += 1
            else:
                running[kept] = j
                kept += 1
        n_running = kept
        while n_arrived < n_jobs and world.arrival_s[n_arrived] <= now_s:
            queue[n_waiting] = n_arrived
            n_waiting += 1
            n_arrived += 1
        for elsewhere in (False, True):
            kept = 0
            for i in range(n_waiting):
                j = queue[i]
                gang, started, home = _gang(scene, j, about, workers_on), False, scene.home[j]
                groups = np.zeros(gang.n_workers + gang.n_ps, np.int64)
                if not elsewhere:
                    started = home >= 0 and _tried(net, scene, stand, gang, home, groups, draws, rng, notes, j)
                else:
                    for pod in _pods(scene, stand, home):
                        if _tried(net, scene, stand, gang, pod, groups, draws, rng, notes, j):
                            started = True
                            break
                if not started:
                    queue[kept] = j
                    kept += 1
                    continue
                begin_job(scene, world, world.slow, j, groups, now_s, others)
                _note(scene, stand, length, j, groups, 1)
                running[n_running] = j
                n_running += 1
            n_waiting = kept
