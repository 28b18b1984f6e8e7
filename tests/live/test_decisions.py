"""Decisions are told in words, each with its reason beside it."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.core.events import Kind, Role, events
from labkit.experiment import simulate
from labkit.live.decisions import MOST, DecisionLog
from labkit.topology import no_network


@pytest.fixture
def log() -> DecisionLog:
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=60, duration_s=60, n_workers=1, id=["a", "b"])
    return DecisionLog(jobs, no_network(2), reasons=["shortest <first>"])


def rows(*told: dict) -> np.ndarray:
    made = events(len(told))
    for row, columns in zip(made, told, strict=True):
        for name, value in columns.items():
            row[name] = value
    return made


def test_a_placement_is_one_entry_and_its_reason_stands_beside_it(log):
    placed = {"kind": Kind.PLACED, "job": 0, "time_s": 5.0, "role": Role.WORKER, "value": 2, "cpus": 0.5}
    batch = rows(
        {"kind": Kind.DECIDED, "time_s": 5.0, "value": 1},
        {**placed, "group": 0}, {**placed, "group": 2}, {**placed, "group": 0, "role": Role.PS, "value": 1},
        {"kind": Kind.EXPLAINED, "time_s": 5.0, "job": 0, "value": 0},
        {"kind": Kind.PREEMPTED, "time_s": 9.0, "job": 1}, {"kind": Kind.LEFT, "time_s": 9.5, "machine": 1},
    )  # fmt: skip
    log.fold(batch)
    assert [entry.line() for entry in log.entries] == [
        "5.0 s: job a: 4 workers, 1 PS with 0.5 cores each on m0, m1: shortest <first>",
        "9.0 s: job b: loses its tasks",
        "9.5 s: m1: is gone",
    ]
    assert log.n == 3


def test_a_reason_that_comes_later_or_for_nothing_stands_alone(log):
    log.fold(rows({"kind": Kind.EXPLAINED, "time_s": 1.0, "job": 1, "value": 0}))
    log.fold(rows({"kind": Kind.EXPLAINED, "time_s": 2.0, "job": 1, "value": 7}))  # its text is not there yet
    assert [(entry.what, entry.why) for entry in log.entries] == [("", "shortest <first>"), ("", "")]


def test_only_the_newest_are_kept_and_all_are_counted(pytestconfig):
    jobs = Jobs.of(arrival_s=np.arange(300.0), total_steps=60, duration_s=60, n_workers=1)
    run = simulate(jobs, cluster="no_network(200)", scheduler="fifo")
    log = DecisionLog(run.jobs, run.cluster, reasons=run.reasons)
    log.fold(run.events)
    assert log.n == 300
    assert len(log.entries) == MOST
    assert log.entries[-1].about == "job 299"
