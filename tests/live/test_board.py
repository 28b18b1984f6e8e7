"""The board of a live view shows what the metrics compute from the whole log."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from labkit.core import Kind
from labkit.core.resources import GPUS
from labkit.experiment import Experiment
from labkit.live.board import Board, JobActivity, as_bytes
from labkit.results import heat_map, time_split
from labkit.simulator import Faults, Overheads
from labkit.workloads import read


def experiment(**options) -> Experiment:
    return Experiment.of("traces/demo.csv", cluster="demo", **options)


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch, pytestconfig):
    monkeypatch.chdir(pytestconfig.rootpath)


def folded(record, *, batches: int) -> Board:
    board = Board(record.jobs, record.cluster)
    for batch in np.array_split(record.events, batches):
        board.fold(batch)
    return board


DISTURBED = {
    "overheads": Overheads(start_s=30, restart_s=120, rescale_s=15),
    "faults": Faults(mtbf_s=40_000, mttr_s=3_000),
}


@pytest.fixture(scope="module", params=["fifo", "drf", "las"])
def record(request, pytestconfig):
    jobs = read(pytestconfig.rootpath / "traces" / "demo.csv")
    return Experiment.of(jobs, cluster="demo", **DISTURBED).run(request.param)


def test_times_by_doing_are_those_of_the_time_split(record):
    board = Board(record.jobs, record.cluster)
    board.fold(record.events)
    spent = np.zeros((len(record.jobs), 4))
    last: dict[int, tuple[float, JobActivity]] = {}
    for job, time_s, doing, _ in board.changes.jobs:
        if job in last:
            spent[job, last[job][1]] += time_s - last[job][0]
        last[job] = (time_s, doing)
    expected = time_split(record.events, record.jobs)
    for doing, column in (
        (JobActivity.WAITS, "waiting_s"),
        (JobActivity.HOLDS, "overhead_s"),
        (JobActivity.TRAINS, "training_s"),
    ):
        np.testing.assert_allclose(spent[:, doing], expected[column], atol=1e-6)


def test_gpus_held_per_machine_are_those_of_the_heat_map(record):
    board = Board(record.jobs, record.cluster)
    board.fold(record.events)
    end_s = float(record.events["time_s"].max())
    down = {m for m in range(record.cluster.n_machines) if (record.events["machine"][_left(record)] == m).any()}
    cells = heat_map(record.events, record.jobs, record.cluster, n_bins=1)
    for machine in set(range(record.cluster.n_machines)) - down:  # one that is gone shows as gone, not as held
        steps = [(t, g) for m, t, g in board.changes.machines if m == machine] + [(end_s, 0.0)]
        area = sum(gpus * (later - time_s) for (time_s, gpus), (later, _) in pairwise(steps))
        assert area / end_s == pytest.approx(float(cells["gpus"][machine]), abs=1e-6)


def _left(record):
    return record.events["kind"] == Kind.LEFT


def test_counts_and_mean_jct_are_those_of_the_summary(record):
    board = folded(record, batches=1)
    assert board.n_done == record.summary["n_jobs"]
    assert board.n_decisions == record.summary["n_decisions"]
    assert board.mean_jct_s == pytest.approx(record.summary["mean_jct_s"])
    assert (board.n_running, board.n_waiting, board.gpus_in_use) == (0, 0, pytest.approx(0.0))


def test_free_and_held_add_up_to_the_ledger_at_every_decision():
    setup = experiment(**DISTURBED)
    board = Board(setup.jobs, setup.cluster)
    from labkit.schedulers import make

    scheduler = make("drf")
    session = setup.session(scheduler, observers=[board.fold])
    built = setup.cluster.capacity[:, GPUS]
    while not session.done:
        snapshot = session.snapshot()
        held = [sum(board.tasks.get(g, {}).values()) for g in range(setup.cluster.n_groups)]
        there = snapshot.up[setup.cluster.group_machine]
        np.testing.assert_allclose(np.where(there, built - snapshot.free[:, GPUS], 0.0), held, atol=1e-9)
        assert (board.n_running, board.n_waiting) == (snapshot.n_running, len(snapshot.waiting))
        session.step(scheduler.schedule(snapshot))


def test_what_was_told_is_never_taken_back():
    record = experiment().run("drf")
    board = Board(record.jobs, record.cluster)
    told: list[tuple] = []
    for batch in np.array_split(record.events, 97):
        before = list(board.changes.jobs)
        board.fold(batch)
        assert board.changes.jobs[: len(before)] == before
        told += board.changes.jobs[len(before) :]
    assert told == board.changes.jobs


def test_rows_are_packed_as_little_endian_floats():
    assert np.frombuffer(as_bytes([(1, 2.5), (3, -1)]), "<f4").tolist() == [1.0, 2.5, 3.0, -1.0]
    assert as_bytes([]) == b""
