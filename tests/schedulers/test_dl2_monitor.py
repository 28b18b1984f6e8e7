"""DL2 watched: weights that are broken on purpose, what its fallback does then, and where that is reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit.core import InputError, Jobs, Kind, Placement
from labkit.core.events import Doubt
from labkit.experiment import Experiment, Session, every_slot
from labkit.experiment.caveats import Caveat
from labkit.learning.dl2 import Policy
from labkit.results.notes import notes
from labkit.schedulers import make
from labkit.schedulers.dl2 import DL2, Weights
from labkit.schedulers.dl2.drafts import placement_of
from labkit.schedulers.dl2.keeping import keep
from labkit.schedulers.dl2.scheduler import Familiar
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.topology import build
from labkit.workloads import dl2_jobs
from labkit.workloads.catalogue import DL2_MODELS

SLOT_S = 1200.0
FOUND = Kind.FELL_BACK


def broken(folder: Path, *, stop: float = 0.0, worth: list[float] | None = None, **options: object) -> DL2:
    """Return a scheduler to which stopping is worth that much, and a worker, a server and both are, to any job."""
    torch.manual_seed(0)
    made = Policy(len(DL2_MODELS), 16)
    with torch.no_grad():
        made.worth.weight.zero_()
        made.worth.bias.copy_(torch.tensor([0.0, 0.0, 0.0] if worth is None else worth))
        made.stop.fill_(stop)
    Weights(made.net(), tuple(DL2_MODELS), SLOT_S, "broken on purpose").save(folder / "w.safetensors")
    return DL2(weights=str(folder / "w.safetensors"), **options)  # type: ignore[arg-type]


def experiment(seed: int = 1, cluster: str = "dl2-16n") -> Experiment:
    return Experiment.of(
        dl2_jobs("short_48n", seed=seed, pattern="google"), cluster=cluster, cadence=every_slot(SLOT_S)
    )


def doubts(rows: np.ndarray) -> set[int]:
    return {int(value) for value in rows["value"][rows["kind"] == FOUND]}


def follow(made, weights):
    """Let a scheduler decide by other weights."""
    made._familiar = Familiar([weights])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_network_that_is_not_finite_decides_nothing_and_the_run_is_that_of_the_fallback(value, tmp_path):
    made = broken(tmp_path, window=10_000)
    poisoned = made._policy.net._replace(worth_bias=np.full(3, value, np.float32))
    follow(made, replace(made._policy, net=poisoned))
    with pytest.warns(Caveat, match="its fallback drf decided in its place at times"):
        run = experiment().run(made)
    assert run.summary["mean_jct_s"] == experiment().run("drf").summary["mean_jct_s"]
    assert doubts(run.events) == {Doubt.NOT_FINITE}
    assert (run.events["kind"] == FOUND).sum() == (run.events["kind"] == Kind.DECIDED).sum()
    told = next(note for note in notes([run]) if "its fallback drf made" in note)
    assert "because its network gave out what is no finite number (first at 0 s)" in told


def test_a_network_that_overflows_is_caught_where_all_its_weights_are_finite(tmp_path):
    made = broken(tmp_path)
    follow(made, replace(made._policy, net=made._policy.net._replace(worth=np.full((16, 3), 3e38, np.float32))))
    with pytest.warns(Caveat):
        run = experiment().run(made)
    assert Doubt.NOT_FINITE in doubts(run.events)
    assert run.summary["n_unfinished"] == 0


@pytest.mark.parametrize(
    ("how", "options"),
    [("all-void", {"stop": 1e6}), ("only workers", {"stop": -1e6, "worth": [1.0, -1e9, -1e9]})],
)
def test_a_policy_that_is_worse_than_its_fallback_is_replaced_after_a_window(how, options, tmp_path):
    """With one worker and one server for each job, or with workers alone, jobs take far longer than under DRF."""
    alone = experiment(cluster="dl2-48n").run(broken(tmp_path, **options, fallback=None))
    with pytest.warns(Caveat):
        watched = experiment(cluster="dl2-48n").run(broken(tmp_path, **options, window=10))
    assert doubts(watched.events) <= {Doubt.WORSE, Doubt.UNTRIED}, how
    assert Doubt.WORSE in doubts(watched.events)
    first_s = watched.events["time_s"][watched.events["kind"] == FOUND].min()
    assert first_s == 10 * SLOT_S
    assert watched.summary["mean_jct_s"] < 0.9 * alone.summary["mean_jct_s"]
    assert any("it would have done worse over the window before" in note for note in notes([watched]))


def test_the_policy_decides_again_after_a_window_in_which_it_would_have_been_no_worse(tmp_path):
    """It is rehearsed while the fallback decides, too."""
    made = broken(tmp_path, stop=1e6, window=5)
    good = DL2()._policy
    session = experiment(cluster="dl2-48n").session(made)
    while not session.done:
        if session.now_s == 10 * SLOT_S:
            assert Doubt.WORSE in doubts(session.log.rows)
            follow(made, good)
        session.step(made.schedule(session.snapshot()))
    rows = session.log.rows
    last_s = rows["time_s"][rows["kind"] == FOUND].max()
    assert last_s < 15 * SLOT_S


@pytest.mark.parametrize("cluster", ["dl2-8n", "dl2-48n"])
def test_the_shipped_policy_is_never_replaced_on_the_setting_that_it_learned(cluster):
    for seed in range(1, 6):
        made = DL2()
        assert not doubts(experiment(seed, cluster).run(made).events)
        assert made._monitor.ratios
        assert max(ratio for _, ratio in made._monitor.ratios) < 1


def starving() -> Experiment:
    """Many small jobs on 6 machines, and a rigid one behind them whose gang fits only beside their first gangs."""
    n = 8
    jobs = Jobs.of(
        arrival_s=[0.0] * n + [1.0], total_steps=[3e4] * n + [3e3], model=["vgg-16"] * (n + 1),
        n_workers=[1] * n + [3], n_ps=[1] * n + [3], max_workers=[8] * n + [3], max_ps=[8] * n + [3],
        worker_demand=[[1, 2, 0]] * n + [[1, 4, 0]], ps_demand=[[0, 2, 0]] * n + [[0, 1, 0]], duration_s=3e4,
    )  # fmt: skip
    cluster = build("dl2-6n")
    return Experiment.of(jobs, cluster=cluster, speed=Recorded(jobs, cluster), cadence=every_slot(SLOT_S))


def given(snapshot, first: int, others: int) -> np.ndarray:
    """Return what each active job gets, (J, 2): that many workers and servers for the first one and for the others."""
    n = np.full((len(snapshot.jobs), 2), others, np.int32)
    n[0] = first
    return n


def test_a_job_that_could_have_had_tasks_and_gets_none_starves_after_its_patience(tmp_path):
    """Whatever the policy is: the monitor looks at what it gives."""
    made = broken(tmp_path, patience=3)
    session = experiment().session(made)
    monitor, found = made._monitor, []
    assert monitor is not None
    for _ in range(8):
        snapshot = session.snapshot()
        answer = monitor.doubts(snapshot, given(snapshot, 6, 0), sound=True)
        assert answer == monitor.doubts(snapshot, given(snapshot, 6, 0), sound=True)  # same question, same answer
        found.append(answer)
        session.step(Placement.nothing())
    with_others = [len(each) for each in found]
    assert with_others.index(1) >= 3
    assert found[-1] == [Doubt.STARVED]
    assert monitor.doubts(session.snapshot(), given(session.snapshot(), 2, 1), sound=True) == []


def test_a_job_for_which_no_room_can_be_made_does_not_starve(tmp_path):
    """Twenty jobs have a first gang each, and the cluster holds no more."""
    n = 30
    jobs = Jobs.of(
        arrival_s=[0.0] * n, total_steps=[1e6] * n, model=["vgg-16"] * n, n_workers=1, n_ps=1, max_workers=8, max_ps=8,
        worker_demand=[[1, 4, 0]] * n, ps_demand=[[0, 4, 0]] * n, duration_s=1e6,
    )  # fmt: skip
    made = Experiment.of(jobs, cluster="dl2-6n", speed="recorded", cadence=every_slot(SLOT_S))
    scheduler = broken(tmp_path, patience=2)
    session = made.session(scheduler)
    for _ in range(6):
        session.step(scheduler.schedule(session.snapshot()))
    assert len(session.snapshot().waiting) > 0
    assert not doubts(session.log.rows)


def test_a_starving_job_gets_tasks_from_the_fallback_in_a_run(tmp_path, monkeypatch):
    """A policy that gives the first job all there is: the others have none until they starve."""
    from labkit.schedulers.dl2 import scheduler as module

    def selfish(batch, b, *_: object) -> bool:
        batch.n[b, 0], batch.placed[b, 0, :, 0] = 1, 1
        return True

    monkeypatch.setattr(module, "decide", selfish)
    made = broken(tmp_path, patience=3, window=10_000)
    with pytest.warns(Caveat):
        run = experiment(cluster="dl2-16n").run(made)
    assert doubts(run.events) == {Doubt.STARVED}
    assert run.summary["n_unfinished"] == 0
    assert any("because it would have let a job starve" in note for note in notes([run]))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("fallback='drff'", r"unknown scheduler 'drff'\. Did you mean 'drf'\?"),
        ("fallback='dl2'", "fallback dl2 has been trained itself; expected one such as 'drf'"),
        ("fallback='optimus(oracle=True)'", r"fallback optimus\(oracle=True\) decides by leases or slices, or is an"),
        ("fallback='lookahead'", "fallback lookahead decides by leases or slices, or is an oracle"),
        ("fallback=3", "fallback is 3; expected the name of a scheduler, e.g. 'drf', or None"),
        ("window=0", "window is 0; expected a number >= 1"),
        ("patience=0", "patience is 0; expected a number >= 1"),
        ("margin=-1.0", "margin is -1.0; expected a number >= 0"),
    ],
)
def test_options_that_cannot_be_are_told_in_one_line(options: str, told: str):
    with pytest.raises(InputError, match=told) as refused:
        make(f"dl2(weights='dl2', {options})")
    assert "\n" not in str(refused.value)


def test_a_fallback_may_measure_before_the_run_as_it_does_by_itself(tmp_path):
    made = broken(tmp_path, fallback="optimus", window=10_000)
    follow(made, replace(made._policy, net=made._policy.net._replace(worth_bias=np.full(3, np.nan, np.float32))))
    with pytest.warns(Caveat, match="its fallback optimus"):
        run = experiment().run(made)
    assert run.summary["mean_jct_s"] == experiment().run("optimus").summary["mean_jct_s"]


# --- which jobs stay where they are


def test_jobs_that_keep_their_number_of_tasks_stay_where_they_are_and_each_has_what_the_draft_says():
    made, scheduler = experiment(3, "dl2-8n"), DL2(fallback=None)
    session = made.session(scheduler)
    n_moved = n_as_before = 0
    while not session.done:
        snapshot = session.snapshot()
        before = {int(job): (w, p) for job, w, p in zip(snapshot.jobs.number, snapshot.jobs.n_workers,
                                                       snapshot.jobs.n_ps, strict=True)}  # fmt: skip
        happened = session.step(scheduler.schedule(snapshot))
        moved = np.unique(happened["job"][happened["kind"] == Kind.RESCALED])
        held = session.ledger.book.allocations
        same = [int(job) for job in moved if before.get(int(job)) == (held["n_workers"][job], held["n_ps"][job])]
        n_moved += len(moved)
        n_as_before += len(same)
    assert n_moved > 50
    assert n_as_before <= 0.15 * n_moved, "moved only where others found no room beside them"


@pytest.mark.parametrize("cluster", ["dl2-8n", "dl2-16n"])
def test_without_overheads_staying_changes_no_job_s_completion(cluster, monkeypatch):
    """DL2's speeds depend on numbers of tasks alone."""
    from labkit.schedulers.dl2 import scheduler as module

    kept = experiment(4, cluster).run(DL2())
    monkeypatch.setattr(module, "keep", placement_of)
    drafted = experiment(4, cluster).run(DL2())
    np.testing.assert_allclose(kept.table["jct_s"], drafted.table["jct_s"], rtol=1e-12)
    assert kept.summary["n_rescales"] < drafted.summary["n_rescales"]


def test_what_is_kept_is_what_the_draft_gives_when_it_finds_room_only_there():
    """A draft that no rule of ours would find: one job's tasks in the last group, although the first has room."""
    jobs = Jobs.of(arrival_s=[0.0], total_steps=[1e4], n_workers=1, max_workers=4, n_ps=1, max_ps=4, duration_s=1e4)
    cluster = build("dl2-6n")
    session = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)), cadence=every_slot(SLOT_S))
    draft = np.zeros((1, 2, cluster.n_groups), np.int16)
    draft[0, :, -1] = 1
    answer = keep(session.snapshot(), draft)
    assert answer.count.sum() == 2
    session.step(answer)
    assert len(keep(session.snapshot(), draft).set_jobs) == 0, "it holds that many already"
