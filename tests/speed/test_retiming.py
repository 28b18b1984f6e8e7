"""Re-timing only the jobs that a change touches gives the speeds of timing all, whatever changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import Cluster, Jobs
from labkit.core.running import Running
from labkit.speed.interference import Interference, InterferenceModel, level
from labkit.speed.interference.measured import profile
from labkit.speed.interference.model import MODELS
from labkit.speed.network import Share
from labkit.speed.retiming import LEAST
from labkit.speed.step_time import StepTime
from labkit.topology import build
from labkit.workloads.catalogue import DL2_MODELS

N = 24
CLUSTERS = ("vl2(8, 4, per_rack=2, gbps=(10, 10, 20))", "fat_tree(4)", "no_network(6)")
LEVEL = {kind: InterferenceModel(kind).fit(profile("mild", rng=np.random.default_rng(0))) for kind in MODELS}


def jobs_of(rng: np.random.Generator) -> Jobs:
    n_ps = rng.integers(0, 4, N)
    return Jobs.of(
        arrival_s=np.zeros(N), total_steps=100, model=rng.choice(DL2_MODELS, N), n_workers=rng.integers(1, 5, N),
        n_ps=n_ps, sync=(n_ps == 0) | (rng.random(N) < 0.5),
    )  # fmt: skip


def model_of(jobs: Jobs, cluster: Cluster, *, kind: str | None, share: Share, rng: np.random.Generator) -> StepTime:
    uses = level("calibrated").uses
    slowdown = None if kind is None else Interference(LEVEL[kind], jobs, cluster, uses=uses)
    return StepTime(
        jobs, cluster, compute_s=rng.uniform(0.1, 2, N), model_bytes=rng.uniform(1e7, 2e9, N), share=share,
        slowdown=slowdown, updates_per_step=rng.uniform(0.5, 2, N),
    )  # fmt: skip


def placed(jobs: Jobs, cluster: Cluster, rng: np.random.Generator, job: int) -> list[tuple[int, int, int, int]]:
    """Return rows of tasks of a job at random: job, role, group, count."""
    near = rng.integers(cluster.n_groups, size=rng.integers(1, 4))
    rows = [
        (job, role, int(rng.choice(near)), int(rng.integers(1, 3))) for role in (0, 0, 1) if role == 0 or jobs.n_ps[job]
    ]
    return rows[:-1] if rng.random() < 0.05 else rows


def running_of(tasks: dict[int, list[tuple[int, int, int, int]]]) -> Running:
    job = np.array(list(tasks), np.int32)
    rows = np.array([row for each in tasks.values() for row in each], np.int64).reshape(-1, 4)
    first = np.concatenate([[0], np.cumsum([len(each) for each in tasks.values()])]).astype(np.int32)
    n = [[sum(row[3] for row in each if row[1] == role) for each in tasks.values()] for role in (0, 1)]
    return Running(
        job, first, rows[:, 1].astype(np.int8), rows[:, 2].astype(np.int32), rows[:, 3].astype(np.int32),
        np.array(n[0], np.int32), np.array(n[1], np.int32),
    )  # fmt: skip


@given(
    seed=st.integers(0, 2**32 - 1), where=st.sampled_from(CLUSTERS), share=st.sampled_from(["max-min", "equal"]),
    kind=st.sampled_from([None, *MODELS]),
)  # fmt: skip
def test_speeds_change_by_change_are_those_of_timing_all(seed, where, share, kind):
    rng, cluster = np.random.default_rng(seed), build(where)
    jobs = jobs_of(rng)
    model = model_of(jobs, cluster, kind=kind, share=share, rng=rng)
    if model._retiming is None:
        assert (kind, cluster.network) == (None, None)  # such a model is local
        return
    tasks: dict[int, list[tuple[int, int, int, int]]] = {}
    for change in range(25):
        for job in rng.integers(N, size=rng.integers(0, 4) if change else 16).tolist():
            if job in tasks and rng.random() < 0.6:
                del tasks[job]
            else:
                tasks[job] = placed(jobs, cluster, rng, job)
        if change == 20:
            model._retiming._most = 0  # the flows that are kept are gone through
        now = running_of(tasks)
        np.testing.assert_allclose(model.speeds(now), model._speeds(now, alone=False), rtol=1e-12, atol=0)


def test_a_completion_touches_the_jobs_on_its_machines_and_links_alone():
    """Two jobs in each of two racks: when one ends, its neighbour is faster, and the other rack is not looked at."""
    cluster = build("vl2(8, 4, per_rack=2, gbps=(10, 20, 40))")
    jobs = Jobs.of(arrival_s=np.zeros(4), total_steps=1, model=["vgg-16"] * 4, n_workers=1, n_ps=1)
    speed = StepTime(
        jobs, cluster, compute_s=0.1, model_bytes=5e8, slowdown=level("calibrated").slowdown(jobs, cluster)
    )
    tasks = {j: [(j, 0, 2 * (j // 2), 1), (j, 1, 2 * (j // 2) + 1, 1)] for j in range(4)}
    before = speed.speeds(running_of(tasks))
    assert before == pytest.approx([before[0]] * 4)
    speed._retiming._speed[2:] = [7.0, 8.0]  # what is not touched is taken as it was
    del tasks[0]
    after = speed.speeds(running_of(tasks))
    assert after[0] > before[1]
    assert after[1:].tolist() == [7.0, 8.0]


def test_what_jobs_that_are_gone_exchanged_is_not_kept_for_ever():
    cluster = build(CLUSTERS[0])
    rng = np.random.default_rng(0)
    jobs = jobs_of(rng)
    model = model_of(jobs, cluster, kind="two_stage", share="max-min", rng=rng)
    most = 0
    for _ in range(3000):
        model.speeds(running_of({j: [*placed(jobs, cluster, rng, j), (j, 0, 0, 8), (j, 1, 3, 8)] for j in range(4)}))
        most = max(most, len(model._retiming._owner))
    assert most < 4 * LEAST
