"""Machine first: Tetris' score, machine by machine, by hand; whole gangs only."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import Events, Jobs, Kind
from labkit.core.scratch_book import empty_book
from labkit.experiment import Session
from labkit.placers.machine_first import fill
from labkit.schedulers import make
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.topology import no_network

CLUSTER = no_network(3)  # machines of two groups of 2 GPUs and 8 cores


def placed(jobs: Jobs) -> Events:
    session = Session(Simulator(jobs, CLUSTER, speed=Recorded(jobs, CLUSTER)))
    session.run(make("fifo(backfill=True, placer=machine_first)"))
    return session.log.rows[session.log.rows["kind"] == Kind.PLACED]


def test_tasks_fill_one_machine_before_the_next_where_tasks_first_would_spread() -> None:
    jobs = Jobs.of(n_workers=[2, 2, 2], arrival_s=np.zeros(3), duration_s=10.0, total_steps=10,
                   worker_demand=np.array([1.0, 1.0, 0.0]))  # fmt: skip
    machine = CLUSTER.group_machine[placed(jobs)["group"]]
    assert set(machine.tolist()) == {0, 1}


def test_a_machine_takes_the_task_that_fits_it_best() -> None:
    """On an empty machine of 4 GPUs and 16 cores a task of (2, 8) scores 2/4 + 8/16 = 1, one of (1, 2) 3/8.

    Of jobs as long as each other the larger one goes first; of a long large one and a short small one, with a mean
    score of 11/16 and a mean shortness of 0.45 (eps = 1.53), the short one has 3/8 + 0.9 eps = 1.75 > 1.
    """
    demand = np.array([[[1.0, 2, 0], [0, 0, 0]], [[2.0, 8, 0], [0, 0, 0]]])
    usable, wanted = np.ones((2, CLUSTER.n_groups), np.bool_), np.array([[1, 0], [1, 0]], np.int32)
    for short, first in ((np.zeros(2), 1), (np.array([0.9, 0.0]), 0)):
        fitted, tasks = fill(empty_book(CLUSTER), demand, wanted, usable, short)
        assert fitted.all()
        assert tasks[0, 0] == first


@given(seed=st.integers(0, 10_000))
def test_gangs_are_whole_or_not_there_and_nothing_is_overfull(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 8))
    demand = np.stack([[[1.0, 2, 0], [0, 2, 0]]] * n)
    wanted = rng.integers(1, 5, (n, 2)).astype(np.int32)
    usable = np.ones((n, CLUSTER.n_groups), np.bool_)
    fitted, tasks = fill(empty_book(CLUSTER), demand, wanted, usable, rng.random(n))
    for i in range(n):
        mine = tasks[tasks[:, 0] == i]
        got = [int((mine[:, 1] == role).sum()) for role in range(2)]
        assert got == (wanted[i].tolist() if fitted[i] else [0, 0])
    free = CLUSTER.capacity.copy()
    for i, role, group in tasks.tolist():
        free[group] -= demand[i, role]
    assert (free >= -1e-9).all()
    assert fitted.any()  # three machines hold the largest gang
