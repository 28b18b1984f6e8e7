"""What `decisions` shows of a slot is what the policy computes, and what it then does."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from labkit.core import Snapshot
from labkit.core.draft import PS, WORKER
from labkit.experiment import Experiment, every_slot
from labkit.schedulers import make
from labkit.schedulers.dl2 import load
from labkit.schedulers.dl2.drafts import draft_of
from labkit.schedulers.dl2.policy import BEST, DecisionRecord, decide, record
from labkit.schedulers.dl2.shown import COLUMNS, STOP, TASKS, decisions
from labkit.workloads import dl2_jobs

SLOT_S = 1200.0


def snapshot(seed: int, n_jobs: int, cluster: str) -> Snapshot:
    """Return what is seen of a run when some jobs are there."""
    policy = make("dl2(weights='dl2-fitted', fallback=None)")
    jobs = dl2_jobs("short_48n", pattern="google", seed=seed)
    session = Experiment.of(jobs, cluster=cluster, cadence=every_slot(SLOT_S)).session(policy)
    while len(session.snapshot().jobs) < n_jobs:
        assert not session.done, "there are never so many jobs"
        session.step(policy.schedule(session.snapshot()))
    return session.snapshot()


def computed(seen: Snapshot, name: str) -> tuple[DecisionRecord, np.ndarray]:
    """Return the decisions of the compiled policy with their log-chances, and the tasks of each job, (J, 2)."""
    policy, n = load(name), len(seen.jobs)
    batch = draft_of(seen, policy.models)
    kept = record(1, n_jobs=n, n_features=len(policy.net.seen), actions_per_slot=500)
    decide(batch, 0, policy.slot_s, policy.net, BEST._replace(keeps=True), kept, np.random.default_rng(0))
    return kept, batch.n[0]


@pytest.mark.parametrize("name", ["dl2", "dl2-fitted"])
@pytest.mark.parametrize(("seed", "n_jobs", "cluster"), [(1, 2, "dl2-48n"), (2, 8, "dl2-16n"), (3, 10, "dl2-8n")])
def test_chances_are_those_that_the_policy_computes(name: str, seed: int, n_jobs: int, cluster: str) -> None:
    seen = snapshot(seed, n_jobs, cluster)
    shown, (kept, _) = decisions(seen, name), computed(seen, name)
    taken = shown[shown["taken"]]
    assert taken["step"].tolist() == list(range(int(kept.n[2]))), "one action of each decision is taken"
    np.testing.assert_allclose(taken["chance"], np.exp(kept.log_chance[: len(taken)]), rtol=1e-4, atol=1e-7)
    assert (shown["chance"] >= 0).all()
    np.testing.assert_allclose(shown.groupby("step")["chance"].sum(), 1, rtol=1e-9)
    most = shown.groupby("step")["chance"].max().to_numpy()
    np.testing.assert_allclose(taken["chance"], most, rtol=1e-4, err_msg="the most probable one is taken")


def test_an_action_that_finds_no_room_is_not_shown_and_has_no_chance() -> None:
    seen = snapshot(3, 10, "dl2-8n")
    shown, (kept, _) = decisions(seen, "dl2"), computed(seen, "dl2")
    ids, n = [seen.table.id[k] for k in seen.jobs.number], len(seen.jobs)
    assert not kept.mask[: kept.n[2]].all(), "somewhere something finds no room"
    for step, rows in shown.groupby("step"):
        actions = {(job, task) for job, task in zip(rows["job"], rows["task"], strict=True) if job != STOP}
        may = np.flatnonzero(kept.mask[int(str(step)), : 3 * n])
        assert actions == {(ids[a // 3], TASKS[a % 3]) for a in may}
        assert (rows["job"] == STOP).sum() == 1, "stopping is always allowed"


def test_what_is_taken_adds_up_to_what_jobs_get() -> None:
    seen = snapshot(2, 8, "dl2-16n")
    shown, (_, given) = decisions(seen, "dl2"), computed(seen, "dl2")
    taken = shown[shown["taken"] & (shown["job"] != STOP)]
    for j, number in enumerate(seen.jobs.number):
        tasks = taken.loc[taken["job"] == seen.table.id[number], "task"]
        both = int((tasks == "both").sum())
        assert given[j, WORKER] == 1 + int((tasks == "worker").sum()) + both, "the first of each is no decision"
        assert given[j, PS] == 1 + int((tasks == "PS").sum()) + both


def test_nothing_is_shown_where_no_job_is() -> None:
    jobs = dl2_jobs("short_48n", seed=1).take(np.arange(2))
    session = Experiment.of(jobs, cluster="dl2-8n", cadence=every_slot(SLOT_S)).session(make("fifo"))
    session.run(make("fifo"))
    seen = session.snapshot()
    assert not len(seen.jobs)
    empty = decisions(seen)
    assert isinstance(empty, pd.DataFrame)
    assert empty.empty
    assert empty.columns.tolist() == list(COLUMNS)
