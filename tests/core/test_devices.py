"""GPUs of a group one by one: never overfilled, never refused where room is, against integer programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from labkit.core import Jobs, Placement, PlacementError
from labkit.core.binding import bound
from labkit.core.book import Book
from labkit.core.device_types import may_run_on
from labkit.core.devices import rooms_when_empty, widened
from labkit.core.errors import InputError
from labkit.core.events import Kind
from labkit.core.resources import GPUS
from labkit.core.scratch_book import rooms
from labkit.experiment import Experiment, Session, at_events
from labkit.experiment.fitting import without_too_large
from labkit.schedulers import make
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.testing.scenes import Chaos
from labkit.topology import no_network
from labkit.topology.servers import Server

PARTS = (0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.9, 1.0, 1.0, 2.0)


def one_group(gpus: int):  # type: ignore[no-untyped-def]
    return no_network(1, servers=Server("one", ((gpus, 640.0, 1e4),)))


def packs(sizes: list[float], n_gpus: int) -> bool:
    """Return whether GPUs hold all sizes at once, by an integer program: sum_d x_id = 1, sum_i s_i x_id <= 1."""
    n = len(sizes)
    if not n:
        return True
    once = np.kron(np.eye(n), np.ones(n_gpus))
    within = np.kron(np.array(sizes), np.eye(n_gpus))
    rules = [LinearConstraint(once, 1, 1), LinearConstraint(within, -np.inf, 1 + 1e-9)]
    answer = milp(np.zeros(n * n_gpus), constraints=rules, integrality=np.ones(n * n_gpus), bounds=Bounds(0, 1))
    return bool(answer.status == 0)


def shares_of(demands: np.ndarray) -> list[float]:
    """Return what tasks take of one GPU each: whole ones become as many GPUs."""
    return [part for gpus in demands for part in ([gpus] if gpus < 1 else [1.0] * round(gpus))]


@given(seed=st.integers(0, 2**32 - 1))
def test_tasks_find_gpus_exactly_where_an_integer_program_finds_some(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_gpus, n = int(rng.integers(1, 5)), int(rng.integers(1, 9))
    gpus = rng.choice(PARTS, n)
    gpus[0] = 0.5  # so that GPUs count one by one
    jobs = Jobs.of(arrival_s=np.zeros(n), total_steps=1.0, worker_demand=np.stack([gpus, gpus * 0, gpus * 0], axis=1))
    book = Book(jobs, one_group(n_gpus))
    made = bound(Placement.of(np.arange(n), job=np.arange(n), group=0), book)
    found = bool((made.devices > 0).all())
    assert found == packs(shares_of(gpus), n_gpus)
    if found:
        there = (made.devices[:, None] >> np.arange(n_gpus)) & 1
        taken = np.minimum(made.count * gpus[made.job], 1.0)
        assert ((there * taken[:, None]).sum(axis=0) <= 1 + 1e-9).all()
        assert (there.sum(axis=1) == np.maximum(np.round(gpus[made.job] * made.count), 1)).all()


@given(seed=st.integers(0, 2**32 - 1))
def test_room_is_what_an_integer_program_finds(seed: int) -> None:
    """max sum_d n_d with n_d parts of a GPU beside what is in use of it."""
    rng = np.random.default_rng(seed)
    row = widened(np.array([[float(rng.integers(1, 5)), 1e3, 1e3]]), 5)
    row[:, 3:] *= rng.choice([0.0, 0.05, 0.3, 0.55, 0.75, 1.0], 5)
    row[:, GPUS] = row[:, 3:].sum()
    gpus = float(rng.choice(PARTS))
    if gpus < 1:
        rules = LinearConstraint(gpus * np.eye(5), -np.inf, row[0, 3:] + 1e-9)
        most = round(-milp(-np.ones(5), constraints=rules, integrality=np.ones(5)).fun)
    else:
        most = int((row[0, 3:] == 1).sum() // gpus)
    assert rooms(row, np.array([gpus, 0.0, 0.0])).tolist() == [most]


def test_three_jobs_of_six_tenths_start_at_0_0_and_100() -> None:
    jobs = Jobs.of(arrival_s=[0, 0, 0], total_steps=100, duration_s=100, worker_demand=(0.6, 1, 0))
    for name in (
        "fifo",
        "srtf",
        "las",
        "sjf",
        "easy",
        "tetris",
        "drf",
        "whole_gang",
        "gavel_las",
        "fifo(placer=fgd)",
        "slurm",
        "recorded",
    ):
        session = Experiment.of(jobs, cluster=one_group(2), speed="recorded").session(make(name))
        log = session.run(make(name))
        assert sorted(log["time_s"][log["kind"] == Kind.STARTED].tolist()) == [0, 0, 100], name


def random_session(rng: np.random.Generator, *, n: int = 24) -> Session:
    """Return a run of jobs with parts of GPUs and whole ones, on groups of 1 to 4 GPUs."""
    kinds = [(int(rng.integers(1, 3)), Server(f"s{g}", ((g, 16.0, 64.0),))) for g in rng.permutation([1, 2, 4])[:2]]
    cluster = no_network(sum(k for k, _ in kinds), servers=kinds)
    gpus = np.minimum(rng.choice(PARTS, n), cluster.capacity[:, GPUS].max())
    jobs = Jobs.of(
        arrival_s=np.sort(rng.choice([0.0, 1, 5, 30, 31], n)), total_steps=rng.choice([10.0, 25, 60], n), duration_s=20,
        n_workers=1, worker_demand=np.stack([gpus, gpus * 0 + 1, gpus * 0], axis=1),
    )  # fmt: skip
    return Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)), cadence=at_events())


def in_use(session: Session) -> tuple[np.ndarray, np.ndarray]:
    """Return what is in use of each GPU, (G, D), from the rows of the log alone, and by how many tasks."""
    n_devices = session.ledger.book.n_devices
    used, by = np.zeros((session.ledger.cluster.n_groups, n_devices)), {}
    for event in session.log.rows:
        if event["kind"] == Kind.PLACED:
            rows = by.setdefault(int(event["job"]), [])
            if rows and rows[0]["time_s"] != event["time_s"]:
                rows.clear()
            rows.append(event)
        elif event["kind"] in (Kind.COMPLETED, Kind.PREEMPTED, Kind.FAILED, Kind.DROPPED):
            by.pop(int(event["job"]), None)
    whole = np.zeros_like(used)
    for job, rows in by.items():
        gpus = session.ledger.jobs.worker_demand[job, GPUS]
        for row in rows:
            there = (int(row["task"]) >> np.arange(n_devices)) & 1
            assert there.sum() == (1 if gpus < 1 else round(gpus * row["value"]))
            used[int(row["group"])] += there * min(gpus * row["value"], 1.0)
            whole[int(row["group"])] += there * (gpus >= 1)
    assert ((whole == 0) | (used <= 1 + 1e-9)).all()
    return used, whole


@pytest.mark.parametrize(
    "name", ["fifo(backfill=True)", "srtf", "fifo(backfill=True,placer=fgd)", "sjf(backfill=True)", "recorded"]
)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_gpu_is_overfull_and_nobody_waits_where_room_is(name: str, seed: int) -> None:
    session, scheduler = random_session(np.random.default_rng(seed)), make(name)
    there = np.arange(session.ledger.book.n_devices) < session.ledger.cluster.capacity[:, GPUS, None]
    while not session.done:
        session.step(scheduler.schedule(session.snapshot()))
        used, _ = in_use(session)
        assert (used <= 1 + 1e-9).all()
        np.testing.assert_allclose(np.where(there, 1 - used, 0.0), session.ledger.book.left[:, 3:], atol=1e-9)
        if session.done:
            break
        snapshot = session.snapshot()
        answer = scheduler.schedule(snapshot)
        waits = np.setdiff1d(snapshot.waiting, answer.set_jobs)
        made = bound(answer, session.ledger.book)
        left = session.ledger.book.left_without(answer.set_jobs)
        for row in range(len(made)):
            gpus = snapshot.table.worker_demand[made.job[row], GPUS]
            there_too = (made.devices[row] >> np.arange(left.shape[1] - 3)) & 1
            left[made.group[row], 3:] -= there_too * min(gpus * made.count[row], 1.0)
            left[made.group[row], 1] -= made.count[row]
        for job in waits:
            gpus = snapshot.table.worker_demand[job, GPUS]
            free = left[:, 3:]
            fits = (free >= gpus - 1e-9).any(axis=1) if gpus < 1 else (free > 1 - 1e-9).sum(axis=1) >= gpus
            assert not (fits & (left[:, 1] >= 1)).any()


def types_that_hold(session: Session, job: int, left: np.ndarray) -> np.ndarray:
    """Return the types whose groups have room for a whole gang: its workers are alike, so that room adds up."""
    jobs, cluster = session.ledger.jobs, session.ledger.cluster
    gpus, cpus, _ = jobs.worker_demand[job]
    free = left[:, 3:]
    rooms = ((free + 1e-9) // gpus).sum(axis=1) if gpus < 1 else (free > 1 - 1e-9).sum(axis=1) // gpus
    rooms = np.minimum(rooms, left[:, 1] // cpus)
    of_type = np.bincount(cluster.group_type, rooms, len(cluster.device_types))
    asked = jobs.device_type[job]
    named = [kind.lstrip("!") for kind in asked.split("|")]
    open_to = np.array([not asked or (kind in named) != asked.startswith("!") for kind in cluster.device_types])
    return open_to & (of_type >= jobs.n_workers[job])


@pytest.mark.parametrize("placer", ["first_fit", "pack", "spread", "machine_first"])
@given(seed=st.integers(0, 2**32 - 1))
def test_no_gang_waits_where_gpus_of_one_of_its_types_have_room(placer: str, seed: int) -> None:
    """Gangs of parts of GPUs and of whole ones, sets of types, two groups a machine."""
    rng = np.random.default_rng(seed)
    kinds = [(1, Server(f"s{t}", tuple((g, 9.0, 64.0) for g in rng.integers(1, 3, 2)), device_type=t)) for t in "abc"]
    cluster, n = no_network(3, servers=kinds), 30
    gpus = rng.choice([0.2, 0.3, 0.5, 0.6, 1.0, 1.0], n)
    jobs = Jobs.of(
        arrival_s=np.sort(rng.choice([0.0, 1, 5, 30], n)), total_steps=rng.choice([10.0, 25, 60], n), duration_s=20,
        n_workers=rng.integers(1, 4, n), worker_demand=np.stack([gpus, gpus * 0 + 1, gpus * 0], axis=1),
        device_type=rng.choice(["", "a", "a|b", "!a", "b|c"], n).tolist(),
    )  # fmt: skip
    jobs = without_too_large(jobs, cluster, may_run_on(jobs, cluster))
    scheduler = make(f"fifo(backfill=True,placer={placer})")
    runs_on = may_run_on(jobs, cluster)
    session = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)), cadence=at_events(), runs_on=runs_on)
    while not session.done:
        session.step(scheduler.schedule(session.snapshot()))
        used, _ = in_use(session)
        assert (used <= 1 + 1e-9).all()
        if session.done:
            break
        if len(session.snapshot().waiting) and not len(scheduler.schedule(session.snapshot()).set_jobs):
            left = session.ledger.book.left
            assert not any(types_that_hold(session, job, left).any() for job in session.snapshot().waiting)


@given(seed=st.integers(0, 2**32 - 1))
def test_random_decisions_leave_simulator_and_ledger_with_the_same_gpus(seed: int) -> None:
    rng = np.random.default_rng(seed)
    session = random_session(rng)
    chaos = Chaos(rng)
    for _ in range(12):
        session.step(chaos.schedule(session.snapshot()))
        truth = session.backend._truth.book  # type: ignore[attr-defined]
        np.testing.assert_allclose(truth.left, session.ledger.book.left, atol=1e-9)
        in_use(session)
        if session.done:
            break


def test_a_task_that_stays_in_its_group_keeps_its_gpu() -> None:
    jobs = Jobs.of(arrival_s=[0, 0, 5, 6], total_steps=100, duration_s=100, worker_demand=(0.6, 1, 0))
    session = Experiment.of(jobs, cluster=one_group(2), speed="recorded").session(make("fifo"))
    session.step(Placement.of([0, 1], job=[0, 1], group=0))
    before = session.log.rows["task"][session.log.rows["kind"] == Kind.PLACED].tolist()
    assert sorted(before) == [1, 2]
    n = len(session.log)
    session.step(Placement.of([1, 0], job=[1, 0], group=0))
    assert not (session.log.rows["kind"][n:] == Kind.PLACED).any()


def test_a_placement_may_name_gpus_and_is_refused_where_they_are_full() -> None:
    jobs = Jobs.of(arrival_s=[0, 0, 5], total_steps=100, duration_s=100, worker_demand=(0.4, 1, 0))
    session = Experiment.of(jobs, cluster=one_group(2), speed="recorded").session(make("fifo"))
    session.step(_named([0], [2]))
    assert session.snapshot().devices_of(np.array([0], np.int32)).tolist() == [2]
    with pytest.raises(PlacementError, match="does not fit"):
        session.step(_named([1], [4]))


def _named(jobs: list[int], devices: list[int]) -> Placement:
    return replace(Placement.of(jobs, job=jobs, group=0), devices=np.array(devices, np.int32))


def test_whole_gpus_above_one_are_whole() -> None:
    jobs = Jobs.of(arrival_s=[0], total_steps=1, duration_s=1, worker_demand=(1.5, 1, 0))
    odd = Experiment.of(jobs, cluster=one_group(2))
    with pytest.raises(InputError, match=r"needs 1\.5 GPUs per worker; expected whole GPUs"):
        odd.session(make("fifo"))
    assert rooms_when_empty(one_group(3).capacity, 0.4).tolist() == [6]
