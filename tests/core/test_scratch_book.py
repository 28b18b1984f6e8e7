"""The scratch book: what is taken and given back, and where there is room, against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core.resources import CPUS, GPUS
from labkit.core.scratch_book import (
    SLACK,
    ScratchBook,
    allocate,
    allocate_if_room,
    empty_book,
    free_in_pod,
    may_hold,
    restore,
    sum_machines,
    usable_rooms,
)
from labkit.kernels import kernel
from labkit.testing.scenes import random_cluster


@kernel
def summed(book: ScratchBook) -> None:
    sum_machines(book)


@kernel
def in_pod(book: ScratchBook, pod: int) -> tuple[float, float]:
    return free_in_pod(book, pod)


@kernel
def restored(book: ScratchBook, group: int, free: np.ndarray) -> None:
    restore(book, group, free)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_allocated_and_released_leaves_sums_by_machine_right(seed):
    rng = np.random.default_rng(seed)
    cluster = random_cluster(rng, n_machines=4, n_types=2)
    book = empty_book(cluster)
    summed(book)
    first = book.free.copy()
    for _ in range(30):
        group, demand = int(rng.integers(len(first))), rng.choice([0.0, 0.3, 1.0, 2.0], first.shape[1])
        n = allocate_if_room(book, demand, np.ones(2, np.bool_), group, 2)
        if n and rng.random() < 0.3:
            allocate(book, demand, group, -2)
        if n and rng.random() < 0.3:
            restored(book, group, first[group])
    assert (book.free > -SLACK * 10).all()
    free, load = book.machine_free.copy(), book.load.copy()
    summed(book)
    assert free == pytest.approx(book.machine_free)
    assert load == pytest.approx(book.load)


@pytest.mark.parametrize("seed", range(10))
def test_room_is_there_on_machines_that_are_up_and_types_that_a_job_runs_on(seed):
    rng = np.random.default_rng(seed)
    cluster = random_cluster(rng, n_machines=5, n_types=3)
    book = empty_book(cluster)
    book.free[:] *= rng.choice([0.0, 0.5, 1.0], (len(book.free), 1))
    book.up[:] = rng.random(len(book.up)) < 0.7
    runs_on, demand = rng.random(3) < 0.6, np.array([float(rng.integers(2)), 2.0, 0.0])
    fits = usable_rooms(book, demand, runs_on)
    for g in range(len(fits)):
        holds = [(book.free[g, r] + SLACK) // demand[r] for r in range(3) if demand[r] > 0]
        may = book.up[g] and (demand[GPUS] == 0 or runs_on[cluster.group_type[g]])
        assert fits[g] == (min(holds) if may else 0)
    for pod in range(int(cluster.partition.max()) + 1):
        mine = (cluster.partition[cluster.group_machine] == pod) & book.up
        assert in_pod(book, pod) == pytest.approx(tuple(book.free[mine][:, [GPUS, CPUS]].sum(axis=0)))
        n, nothing = int(fits[mine].sum()), np.zeros(3)
        assert may_hold(book, pod, demand, nothing, n, 0, runs_on)
        assert not may_hold(book, pod, demand, nothing, n + 1, 0, runs_on)
