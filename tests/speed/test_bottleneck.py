"""The bottleneck of asynchronous training on CPU cores, against DLRover's Table 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.core.resources import amounts
from labkit.core.running import Running
from labkit.experiment.speeds import speed_model
from labkit.speed.bottleneck import WORK, Bottleneck, Work, softmin
from labkit.testing import check_speed_model
from labkit.topology import no_network
from labkit.topology.servers import Server

CLUSTER = no_network(6, servers=Server("cpu", sockets=((0, 64, 192),)))


def jobs_of(model: str, *, n: int = 1, **columns: object) -> Jobs:
    given = {
        "n_workers": 24, "n_ps": 8, "worker_demand": amounts(cpus=3), "ps_demand": amounts(cpus=16), "sync": False,
    } | columns  # fmt: skip
    return Jobs.of(arrival_s=np.zeros(n), total_steps=1000, model=model, **given)


def running(rows: list[tuple[int, int, float]], *, job: int = 0) -> Running:
    """Return one job with rows of (role, count, cores of each)."""
    role, count, cpus = (np.array(column) for column in zip(*rows, strict=True))
    each = [np.array([count[role == r].sum()], np.int32) for r in (0, 1)]
    return Running(
        np.array([job], np.int32), np.array([0, len(rows)], np.int32), role.astype(np.int8),
        np.zeros(len(rows), np.int32), count.astype(np.int32), *each, cpus=cpus.astype(np.float64),
    )  # fmt: skip


def steps_per_s(model: str, rows: list[tuple[int, int, float]]) -> float:
    return float(Bottleneck(jobs_of(model), CLUSTER).speeds(running(rows))[0])


TABLE_1 = [
    ("wide-deep", [(0, 1, 32), (1, 1, 32)], 12.0),
    ("wide-deep", [(0, 24, 3), (1, 8, 16)], 210.0),
    ("wide-deep", [(0, 24, 3), (1, 6, 16), (1, 2, 24)], 258.0),  # two hot servers replaced
    ("xdeepfm", [(0, 1, 32), (1, 1, 32)], 6.2),
    ("xdeepfm", [(0, 8, 20), (1, 2, 16)], 47.8),
    ("xdeepfm", [(0, 10, 20), (1, 2, 16)], 56.0),  # two more workers
]


@pytest.mark.parametrize(("model", "rows", "published"), TABLE_1)
def test_table_1_of_dlrover(model, rows, published):
    """Constants are from the sample rows (12, 6.2), and the hottest share from 210; the other four are predicted."""
    assert steps_per_s(model, rows) == pytest.approx(published, rel=0.06)


@pytest.mark.parametrize(
    ("model", "n", "rows", "published"),
    [
        ("wide-deep", 24, [(0, 24, 3), (1, 8, 16)], 0.73),
        ("xdeepfm", 8, [(0, 8, 20), (1, 2, 16)], 0.96),
    ],
)
def test_speed_up_ratios_of_dlrover(model, n, rows, published):
    one = steps_per_s(model, [(0, 1, 32), (1, 1, 32)])
    assert steps_per_s(model, rows) / (n * one) == pytest.approx(published, rel=0.06)


def test_each_limit_by_hand():
    """c = 2, u = 1, t = 0.5: 4 workers with 1 core compute 2 steps/s; far from the other limits the minimum is it."""
    work = Work(2.0, 1.0, 0.5)
    assert work.speed(4, worker_cores=1, n_ps=2, ps_cores=50) == pytest.approx(2.0, rel=1e-3)
    assert work.speed(40, worker_cores=9, n_ps=2, ps_cores=4) == pytest.approx(8.0, rel=1e-3)  # 4 / (1 x 1/2)
    assert work.speed(4, worker_cores=90, n_ps=2, ps_cores=90) == pytest.approx(8.0, rel=1e-3)
    hot = replace(work, hot=1.5)
    assert hot.speed(40, worker_cores=9, n_ps=3, ps_cores=2) == pytest.approx(4.0, rel=1e-3)  # 2 / (1 x 1.5/3)
    assert softmin(2.0, 2.0) == pytest.approx(2 * 2 ** (-1 / 8))
    assert softmin(0.0, 3.0) == 0.0


def test_rows_of_a_job_agree_with_gangs_that_are_all_alike():
    """Cores as decisions (`Running.cpus`) or as declared, in one row or in several."""
    work = WORK["wide-deep"]
    alike = float(work.speed(24, worker_cores=3, n_ps=8, ps_cores=16))
    model = Bottleneck(jobs_of("wide-deep"), CLUSTER)
    assert model.speeds(running([(0, 10, 3), (0, 14, 3), (1, 3, 16), (1, 5, 16)]))[0] == pytest.approx(alike)
    declared = replace(running([(0, 24, 99), (1, 8, 99)]), cpus=np.empty(0))
    assert model.speeds(declared)[0] == pytest.approx(alike)
    assert model.durations_s() == pytest.approx(1000 / alike)


def test_use_is_what_the_work_of_the_steps_takes():
    model, rows = Bottleneck(jobs_of("wide-deep"), CLUSTER), running([(0, 24, 3), (1, 8, 16)])
    use, speed = model.use(rows), model.speeds(rows)[0]
    assert use.cores[0] * 24 == pytest.approx(speed * WORK["wide-deep"].compute_core_s)
    assert use.load.tolist()[1] == pytest.approx(1.266 / 8)
    assert use.step_s[0] == pytest.approx(24 / speed)
    assert use.cores[0] < 3
    assert use.compute_s[0] < use.step_s[0]


def test_it_is_a_speed_model_that_can_be_named_and_the_default_of_such_jobs():
    jobs = jobs_of("wide-deep", n=5, n_workers=[1, 2, 3, 4, 5], n_ps=[1, 1, 2, 1, 2])
    check_speed_model(Bottleneck(jobs, CLUSTER), jobs=jobs, cluster=CLUSTER)
    for kind in ("bottleneck", "auto"):
        assert isinstance(speed_model(jobs, CLUSTER, kind=kind), Bottleneck)
    assert not isinstance(speed_model(jobs.with_columns(sync=np.ones(5, bool)), CLUSTER), Bottleneck)


def test_a_step_that_is_a_sample_is_counted_as_one():
    jobs = jobs_of("wide-deep", samples_per_step=1.0)
    rows = running([(0, 24, 3), (1, 8, 16)])
    assert Bottleneck(jobs, CLUSTER).speeds(rows)[0] == pytest.approx(
        512 * Bottleneck(jobs_of("wide-deep"), CLUSTER).speeds(rows)[0]
    )


def test_what_it_does_not_know_is_refused():
    with pytest.raises(InputError, match="model dssm has no work on CPU cores that is known; speed model 'bottleneck'"):
        Bottleneck(jobs_of("dssm"), CLUSTER)
    with pytest.raises(InputError, match=r"job 0 is synchronous, and 0 more; .* take 'step-time'"):
        Bottleneck(jobs_of("w&d", sync=True), CLUSTER)
    with pytest.raises(InputError, match="job 0 has no parameter server"):
        Bottleneck(jobs_of("w&d", n_ps=0), CLUSTER)
    with pytest.raises(InputError, match=r"rest_s is nan; expected a finite number >= 0\."):
        Work(1.0, 1.0, float("nan"))
