"""One decision: all jobs of the queue, by arrival, each placed where it is worth most, or left waiting."""

from __future__ import annotations

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.kernels import kernel
from labkit.kernels.arrays import fill_with
from labkit.schedulers.marl.candidates import hold
from labkit.schedulers.marl.network import CandidateBuffers, Net, Scene, best_of, gang_of, weigh
from labkit.speed.what_if import Slow, put, renew


@kernel(error_model="numpy")
def place_waiting(
    scene: Scene, slow: Slow, net: Net, waiting: Ints, now_s: float, arrival_s: Floats, n_running: int, stays: bool,
    desk: CandidateBuffers,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Return which jobs start, (C,), and the device groups of their tasks, workers first, (C, K)."""
    chosen = np.zeros(len(waiting), np.int64)
    groups, n_chosen = np.full((len(waiting), scene.tasks.group.shape[1]), -1, np.int64), 0
    for i in range(len(waiting)):
        job = waiting[i]
        n_top = weigh(
            scene, slow, net, job, now_s, arrival_s[job], len(waiting) - n_chosen, n_running + n_chosen, stays, desk
        )  # fmt: skip
        if n_top == 0:
            continue
        k = best_of(desk, n_top)
        if k == n_top:
            continue
        n = scene.n_workers[job] + scene.n_ps[job]
        mine = desk.placements.group[desk.top[k], :n]
        fill_with(groups[n_chosen, :n], mine)
        hold(scene.room, gang_of(scene, job), mine, 1)
        put(scene.facts, scene.tasks, job, mine, scene.n_workers[job])
        renew(scene.facts, slow, scene.tasks, job, desk.others)
        chosen[n_chosen] = job
        n_chosen += 1
    return chosen[:n_chosen], groups[:n_chosen]
