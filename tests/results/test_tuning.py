"""What a job held from when to when, and how fast it was with that."""

from __future__ import annotations

import numpy as np

from labkit.core import Jobs
from labkit.core.events import Events, Kind, Role, joined
from labkit.core.resources import amounts
from labkit.results.spans import configurations
from labkit.testbed.run.tasks import at, row

JOBS = Jobs.of(
    arrival_s=[0.0],
    total_steps=[100],
    n_workers=1,
    n_ps=1,
    worker_demand=amounts(cpus=0.5),
    ps_demand=amounts(cpus=0.5),
)


def placed(time_s: float, workers: int, cores: float) -> list[Events]:
    rows = [row(Kind.PLACED, job=0, role=Role.WORKER, group=0, value=workers, cpus=cores)]
    return at([*rows, row(Kind.PLACED, job=0, role=Role.PS, group=0, value=1)], time_s)


def test_each_configuration_has_its_time_its_cores_and_its_speed() -> None:
    rows = joined([
        *placed(0.0, 1, np.nan), *at([row(Kind.STARTED, job=0, value=0.0, speed=0.0)], 2.0),
        *placed(6.0, 4, 0.25), *at([row(Kind.RESCALED, job=0, value=20.0, speed=5.0)], 12.0),
        *at([row(Kind.COMPLETED, job=0, value=100.0, speed=0.0)], 16.0),
    ])  # fmt: skip
    told = configurations(rows, JOBS)
    assert told["start_s"].tolist() == [2.0, 12.0]
    assert told["n_workers"].tolist() == [1, 4]
    assert told["cores"].tolist() == [1.0, 1.5]
    assert told["steps_per_s"].tolist() == [2.0, 20.0]


def test_a_run_that_goes_on_is_told_as_far_as_it_is() -> None:
    rows = joined([
        *placed(0.0, 1, np.nan), *at([row(Kind.STARTED, job=0, value=0.0, speed=0.0)], 2.0),
        *at([row(Kind.PROGRESSED, job=0, value=30.0, speed=10.0)], 5.0),
    ])  # fmt: skip
    assert configurations(rows, JOBS)["steps_per_s"].tolist() == [10.0]
    assert len(configurations(rows[:1], JOBS)) == 0
