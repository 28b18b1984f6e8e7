"""Rescalings are told from events alone: when, and to what."""

from __future__ import annotations

from labkit.core import Jobs
from labkit.core.events import Kind, Role, events
from labkit.core.resources import amounts
from labkit.experiment import simulate
from labkit.results import rescalings


def log(*told: tuple):
    rows = events(len(told))
    for row, (kind, time_s, role, value) in zip(rows, told, strict=True):
        row["kind"], row["time_s"], row["job"], row["role"], row["value"] = kind, time_s, 0, role, value
    return rows


def test_the_rows_of_a_decision_are_one_gang_and_the_last_decision_counts():
    rows = log(
        (Kind.PLACED, 1.0, Role.WORKER, 1), (Kind.PLACED, 1.0, Role.WORKER, 2), (Kind.PLACED, 1.0, Role.PS, 1),
        (Kind.STARTED, 2.0, -1, 0), (Kind.PLACED, 5.0, Role.WORKER, 4), (Kind.PLACED, 5.0, Role.PS, 2),
        (Kind.RESCALED, 6.0, -1, 120),
    )  # fmt: skip
    assert rescalings(rows).to_dict("records") == [{"job": 0, "time_s": 6.0, "steps": 120.0, "n_workers": 4, "n_ps": 2}]
    assert len(rescalings(rows[:5])) == 0


def test_a_simulated_run_has_as_many_as_its_summary_says():
    jobs = Jobs.of(
        arrival_s=[0, 20, 40], total_steps=600, duration_s=100, n_workers=1, max_workers=4,
        worker_demand=amounts(gpus=1),
    )  # fmt: skip
    record = simulate(jobs, cluster="no_network(1)", scheduler="drf")
    assert len(rescalings(record.events)) == record.summary["n_rescales"] > 0
