"""Where the tasks of a plan go: what stays, what moves, and what is left free."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import Jobs, Role
from labkit.core.resources import CPUS, MEMORY_GB, amounts
from labkit.experiment import Experiment
from labkit.experiment.session import Session
from labkit.schedulers import make
from labkit.schedulers.dlrover.carry import CarriedRoom
from labkit.schedulers.dlrover.plan import Plan
from labkit.topology import no_network
from labkit.topology.presets import DLROVER

N_MACHINES = 3
CORES = 64


def session_of(n_jobs: int = 2, **columns: object) -> Session:
    given = {
        "n_workers": 2, "n_ps": 1, "max_workers": 60, "max_ps": 16, "sync": False,
        "worker_demand": amounts(cpus=4, memory_gb=4), "ps_demand": amounts(cpus=8, memory_gb=8),
    } | columns  # fmt: skip
    jobs = Jobs.of(arrival_s=np.zeros(n_jobs), total_steps=1e6, model=["wide-deep"] * n_jobs, **given)
    return Experiment.of(jobs, cluster=no_network(N_MACHINES, servers=DLROVER)).session(make("dlrover"))


def room_of(session: Session) -> CarriedRoom:
    snapshot = session.snapshot()
    return CarriedRoom(snapshot, snapshot.running())


def taken(room: CarriedRoom, job: int) -> np.ndarray:
    """Return the cores and GB that the rows of a job take of each group, (G, 2)."""
    rows, each = room.rows(job)
    used = np.zeros((len(room.trial.free), 2))
    np.add.at(used, rows[:, 1], rows[:, 2:] * each)
    return used


def cores_of(room: CarriedRoom, job: int, role: Role) -> list[float]:
    """Return the cores of each task of a role, in the order of the rows."""
    rows, each = room.rows(job)
    mine = rows[:, 0] == role
    return np.repeat(each[mine, 0], rows[mine, 2]).tolist()


def test_a_plan_takes_what_it_says_and_what_is_refused_takes_nothing():
    room = room_of(session_of())
    before = room.trial.free.copy()
    assert room.settle(0, Plan(3, 5.0, 2, 7.0, ps_memory_gb=9.0)) == Plan(3, 5.0, 2, 7.0, ps_memory_gb=9.0)
    assert (before - room.trial.free)[:, [CPUS, MEMORY_GB]].sum(axis=0).tolist() == [3 * 5 + 2 * 7, 3 * 4 + 2 * 9]
    assert (before - room.trial.free)[:, [CPUS, MEMORY_GB]] == pytest.approx(taken(room, 0))
    after = room.trial.free.copy()
    assert room.settle(1, Plan(1, 4.0, 1, CORES + 1)) is None
    assert room.settle(1, Plan(1000, 4.0, 1, 8.0), whole=True) is None
    assert np.array_equal(room.trial.free, after)
    assert not len(room.rows(1)[0])


def test_where_not_all_workers_fit_there_are_fewer_and_all_servers():
    room = room_of(session_of())
    got = room.settle(0, Plan(1000, 4.0, 2, 8.0))
    assert got is not None
    assert (got.n_ps, got.worker_cores) == (2, 4.0)
    assert got.n_workers == (N_MACHINES * CORES - 2 * 8) // 4
    assert not room.holds_one_more(0, 4.0)
    assert room.trial.free.min() >= 0


def test_tasks_that_stay_as_large_stay_where_they_are():
    session = session_of()
    room = room_of(session)
    room.settle(0, Plan(2, 4.0, 1, 8.0))
    session.step(room.placement())
    room = room_of(session)
    was = room.rows(0)[0].tolist()
    assert room.settle(0, Plan(4, 4.0, 1, 8.0)) == Plan(4, 4.0, 1, 8.0)
    now = {(role, group): count for role, group, count in room.rows(0)[0].tolist()}
    assert all(now[role, group] >= count for role, group, count in was)
    assert room.placement().set_jobs.tolist() == [0]


def test_what_a_job_has_already_is_no_change():
    session = session_of()
    room = room_of(session)
    room.settle(0, Plan(2, 4.0, 1, 8.0))
    session.step(room.placement())
    room = room_of(session)
    room.settle(0, Plan(2, 4.0, 1, 8.0))
    assert not len(room.placement().set_jobs)


def test_servers_with_other_cores_keep_their_numbers():
    room = room_of(session_of())
    plan = Plan(1, 4.0, 4, 8.0, extra=((1, 12.0),))
    assert room.settle(0, plan) == plan
    assert sorted(cores_of(room, 0, Role.PS)) == [8.0, 8.0, 8.0, 12.0]
    assert room.resize(0, Role.PS, {2: 10.0})
    assert cores_of(room, 0, Role.PS)[2] == 10.0
    assert not room.resize(0, Role.PS, {0: CORES + 1.0})


def test_memory_is_given_where_servers_are_or_not_at_all():
    room = room_of(session_of())
    room.settle(0, Plan(1, 4.0, 2, 8.0))
    before = room.trial.free[:, MEMORY_GB].sum()
    assert room.remember(0, 20.0)
    assert before - room.trial.free[:, MEMORY_GB].sum() == pytest.approx(2 * (20 - 8))
    assert not room.remember(0, 1e6)
    assert room.rows(0)[1][:, 1].max() == 20.0


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_asked_no_group_gives_more_than_it_has_and_books_balance(seed):
    """Random plans of three jobs, one after another; what is free and what is held add up to what was there."""
    rng, room = np.random.default_rng(seed), room_of(session_of(3))
    whole = room.trial.free.copy()
    for _ in range(40):
        n_ps = int(rng.integers(1, 5))
        extra = ((int(rng.integers(n_ps)), 24.0),) if rng.random() < 0.3 else ()
        plan = Plan(int(rng.integers(1, 30)), float(rng.integers(1, 9)), n_ps, float(rng.choice([4, 8, 16])), extra)
        room.settle(int(rng.integers(3)), plan, whole=bool(rng.random() < 0.3))
        held = sum(taken(room, job) for job in range(3))
        assert room.trial.free.min() > -1e-6
        assert (whole - room.trial.free)[:, [CPUS, MEMORY_GB]] == pytest.approx(held, abs=1e-6)
