"""The rounds: which jobs run, for how long, and what becomes of what is owed to no job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from labkit.core import Jobs, Kind
from labkit.core.errors import InputError
from labkit.core.life import Profile
from labkit.experiment import Experiment, simulate
from labkit.experiment.caveats import Caveat
from labkit.schedulers import make
from labkit.schedulers.gavel.mechanism import Gavel
from labkit.schedulers.gavel.problem import Allocation, Problem
from labkit.schedulers.gavel.rounds import fill_up, most_overdue, trade
from labkit.simulator import Faults
from labkit.topology import no_network
from labkit.topology.servers import Server
from labkit.workloads.gavel_traces import gavel_jobs

ROUND_S = 360.0
TYPES = ("v100", "p100")


@dataclass(frozen=True)
class Fixed:
    """A policy that gives each job number the same shares whatever happens."""

    shares: tuple[tuple[float, ...], ...]

    def allocate(self, problem: Problem) -> Allocation:
        return Allocation(share=np.array(self.shares)[problem.job])


def cluster(*gpus: int):
    servers = [
        (1, Server(kind, sockets=((n, 64, 256),), device_type=kind)) for kind, n in zip(TYPES, gpus, strict=False)
    ]
    return no_network(len(servers), servers=servers)


def jobs_of(n: int, *, hours: float = 100.0, n_workers=1, arrival_s=0.0) -> Jobs:
    steps = np.full(n, hours * 3600)
    return Jobs.of(arrival_s=np.full(n, arrival_s) if np.isscalar(arrival_s) else arrival_s, total_steps=steps,
                   duration_s=steps, n_workers=n_workers)  # fmt: skip


def profile_of(speeds) -> Profile:
    alone = np.asarray(speeds, float)
    n = len(alone)
    return Profile(np.arange(n, dtype=np.int32), alone, alone, np.zeros(n), None, np.ones(alone.shape, bool))


def session_of(scheduler: Gavel, jobs: Jobs, where, speeds=None):
    scheduler.learn(profile_of(np.ones((len(jobs), len(where.device_types))) if speeds is None else speeds))
    return Experiment.of(jobs, cluster=where, speed="recorded").session(scheduler)


def held_s(session, *, until_s: float) -> np.ndarray:
    """Return the seconds that each job held GPUs of each type, from the events, (N, T)."""
    rows, where = session.log.rows, session.backend.cluster
    held = np.zeros((len(session.backend.jobs), len(where.device_types)))
    since: dict[int, tuple[float, int]] = {}
    for row in rows[rows["time_s"] <= until_s]:
        job = int(row["job"])
        if row["kind"] in (Kind.PLACED, Kind.PREEMPTED, Kind.COMPLETED) and job in since:
            began_s, kind = since.pop(job)
            held[job, kind] += row["time_s"] - began_s
        if row["kind"] == Kind.PLACED:
            since[job] = float(row["time_s"]), int(where.group_type[row["group"]])
    for job, (began_s, kind) in since.items():
        held[job, kind] += until_s - began_s
    return held


def run_until(session, scheduler, until_s: float) -> None:
    while not session.done and session.now_s < until_s:
        session.step(scheduler.schedule(session.snapshot()))


SHARES = ((0.6, 0.0), (0.2, 0.6), (0.2, 0.4))
"""The example of the paper's section 3.1 in two types: three jobs, two devices."""


@pytest.mark.parametrize(("stay", "within"), [(0.0, 2), (4.0, 6)])
@pytest.mark.parametrize("fill", [True, False])
def test_time_on_each_type_follows_the_shares_within_a_few_rounds(fill, stay, within):
    scheduler = Gavel(Fixed(SHARES), fill=fill, stay=stay)
    session = session_of(scheduler, jobs_of(3), cluster(1, 1))
    until_s = 100 * ROUND_S
    run_until(session, scheduler, until_s)
    assert np.abs(held_s(session, until_s=until_s) / ROUND_S - 100 * np.array(SHARES)).max() <= within


def test_trades_are_paid_back_within_a_few_rounds():
    """The paper's three jobs gain differently by the faster type; their shares hold all the same."""
    scheduler = Gavel(Fixed(SHARES))
    session = session_of(scheduler, jobs_of(3), cluster(1, 1), speeds=[[4.0, 1.0], [3.0, 1.0], [2.0, 1.0]])
    until_s = 200 * ROUND_S
    run_until(session, scheduler, until_s)
    assert np.abs(held_s(session, until_s=until_s) / ROUND_S - 200 * np.array(SHARES)).max() <= 8


def test_staying_saves_moves():
    moves = {}
    for stay in (0.0, 4.0):
        scheduler = Gavel(Fixed(SHARES), stay=stay)
        session = session_of(scheduler, jobs_of(3), cluster(1, 1))
        run_until(session, scheduler, 100 * ROUND_S)
        moves[stay] = np.count_nonzero(session.log.rows["kind"] == Kind.PLACED)
    assert 3 * moves[4.0] < moves[0.0]


def test_no_job_is_stopped_within_a_round():
    arrivals = np.sort(np.random.default_rng(0).uniform(0, 20_000, 40))
    jobs = Jobs.of(arrival_s=arrivals, total_steps=2000, duration_s=2000)
    scheduler = make("gavel_isolated")
    session = session_of(scheduler, jobs, cluster(2, 2))
    session.run(scheduler)
    rows = session.log.rows
    moved = rows["time_s"][np.isin(rows["kind"], [Kind.PREEMPTED, Kind.RESCALED])]
    assert len(moved) > 10
    assert np.allclose(moved % ROUND_S, 0)


def test_what_becomes_free_within_a_round_is_given_out_at_once():
    jobs = Jobs.of(arrival_s=[0, 0, 0], total_steps=[100, 1000, 1000], duration_s=[100, 1000, 1000])
    scheduler = Gavel(Fixed(((1.0,), (0.0,), (0.0,))))
    session = session_of(scheduler, jobs, cluster(1))
    session.step(scheduler.schedule(session.snapshot()))
    session.step(scheduler.schedule(session.snapshot()))
    rows = session.log.rows
    assert rows["time_s"][(rows["kind"] == Kind.STARTED) & (rows["job"] != 0)].tolist() == [100.0]


def test_without_filling_what_is_owed_to_no_job_stays_idle():
    scheduler = Gavel(Fixed(((1.0,), (0.0,))), fill=False)
    session = session_of(scheduler, jobs_of(2, hours=1), cluster(2))
    session.step(scheduler.schedule(session.snapshot()))
    assert session.snapshot().jobs.n_workers.tolist() == [1, 0]


def test_a_gang_of_all_gpus_gets_its_turn_though_small_jobs_keep_coming():
    small_s, gap_s, n = 500.0, 160.0, 80
    jobs = Jobs.of(
        arrival_s=np.append(100.0, np.arange(n) * gap_s),
        total_steps=np.append(1800, np.full(n, small_s)),
        duration_s=np.append(1800, np.full(n, small_s)),
        n_workers=np.append(4, np.ones(n, int)),
    )
    where, big = cluster(4), 1
    done_s = {}
    for scheduler in (make("gavel_isolated"), make("fifo(backfill=True)")):
        session = Experiment.of(jobs, cluster=where, speed="recorded").session(scheduler)
        session.run(scheduler)
        rows = session.log.rows
        done_s[type(scheduler).__name__] = float(
            rows["time_s"][(rows["kind"] == Kind.COMPLETED) & (rows["job"] == big)][0]
        )
    assert jobs.n_workers[big] == 4
    assert done_s["Gavel"] < (n - 1) * gap_s < done_s["Fifo"]  # while small ones still come; backfilling starves it


def test_a_gang_larger_than_any_type_runs_on_a_mixture():
    speed = np.zeros((1, 2))
    profile = Profile(np.zeros(1, np.int32), speed, speed, np.array([3.0]), None, np.zeros((1, 2), bool))
    jobs = jobs_of(1, hours=1, n_workers=3)
    scheduler = Gavel(Fixed(((0.0, 0.0, 1.0),)))
    session = session_of(scheduler, jobs, cluster(2, 2))
    scheduler.learn(profile)
    session.run(scheduler)
    placed = session.log.rows[session.log.rows["kind"] == Kind.PLACED]
    assert set(session.backend.cluster.group_type[placed["group"]]) == {0, 1}


def fill(speed, *, n_gpus, free, column, moves=True):
    chosen = np.array(column, np.int32)
    left = np.array(free, float)
    n = len(speed)
    fill_up(
        np.array(speed, float), np.ones(n), np.array(n_gpus, float), np.eye(len(free)), left, chosen,
        np.full(n, -1, np.int32), np.full(n, moves),
    )  # fmt: skip
    return chosen.tolist(), left.tolist()


def test_what_is_left_goes_to_the_job_that_gains_most():
    assert fill([[1, 5], [1, 9]], n_gpus=[1, 1], free=[1, 1], column=[-1, -1]) == ([0, 1], [0, 0])


def test_a_job_that_runs_moves_to_a_faster_type_and_leaves_its_place():
    assert fill([[2, 9], [1, 1.5]], n_gpus=[1, 1], free=[0, 1], column=[0, -1]) == ([1, 0], [0, 0])
    assert fill([[2, 9], [1, 1.5]], n_gpus=[1, 1], free=[0, 1], column=[0, -1], moves=False) == ([0, 1], [0, 0])


def test_two_jobs_change_places_where_one_gains_more_than_the_other_loses():
    speed, column = np.array([[10.0, 9.0], [10.0, 2.0], [10.0, 1.0]]), np.array([0, 1, 1], np.int32)
    trade(speed, np.array([0.1, 0.1, 0.1]), np.array([1.0, 1.0, 2.0]), column, np.ones(3, bool))
    assert column.tolist() == [1, 0, 1]  # the third gains most, but is larger


def test_a_pair_and_its_members_alone_never_run_at_once():
    column, partner = np.full(2, -1, np.int32), np.full(2, -1, np.int32)
    most_overdue(
        np.array([0, 1, 0], np.int32), np.array([-1, -1, 1], np.int32), np.array([[0.4], [0.5], [0.9]]), np.ones(2),
        np.eye(1), np.array([2.0]), column, partner,
    )  # fmt: skip
    assert (column.tolist(), partner.tolist()) == ([0, 0], [1, 0])


def test_a_unit_that_does_not_fit_is_passed_over():
    column, partner = np.full(2, -1, np.int32), np.full(2, -1, np.int32)
    most_overdue(
        np.array([0, 1], np.int32), np.array([-1, -1], np.int32), np.array([[0.9], [0.5]]), np.array([3.0, 1.0]),
        np.eye(1), np.array([2.0]), column, partner,
    )  # fmt: skip
    assert column.tolist() == [-1, 0]


@pytest.mark.parametrize("options", [{"round_s": 0}, {"round_s": np.inf}, {"recompute_s": -1.0}])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(InputError, match=r"gavel: .* expected seconds"):
        Gavel(Fixed(((1.0,),)), **options)


def test_patience_shorter_than_staying_is_refused():
    with pytest.raises(InputError, match=r"stay is 4.0 and patience 2.0; expected rounds"):
        Gavel(Fixed(((1.0,),)), patience=2.0)


def test_the_published_rounds_know_neither_sharing_nor_placement():
    with pytest.raises(InputError, match="published=True goes alone"):
        Gavel(Fixed(((1.0,),)), published=True, space_sharing=True)


def test_in_the_ideal_every_job_trains_at_the_allotted_mean_speed_all_the_time():
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=[3600, 7200], duration_s=[3600, 7200])
    record = Experiment.of(jobs, cluster=cluster(1), speed="recorded").run("gavel_las(ideal=True)")
    assert record.table["jct_s"].tolist() == pytest.approx([7200, 10800], rel=1e-5)
    assert record.summary["utilisation"] == pytest.approx(1, rel=1e-5)


def test_in_the_ideal_jobs_wait_while_no_machine_is_there_and_go_on_from_their_checkpoints():
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=[3600, 7200], duration_s=[3600, 7200])
    faults = Faults(mtbf_s=4000, mttr_s=500, checkpoint_s=60)
    with pytest.warns(Caveat, match="the cluster is one machine"):
        record = simulate(jobs, cluster=cluster(1), speed="recorded", scheduler="gavel_las(ideal=True)", faults=faults)
    events = record.events
    left = events["time_s"][events["kind"] == Kind.LEFT]
    back = events["time_s"][events["kind"] == Kind.JOINED]
    assert len(left) >= 1
    starts = events["time_s"][events["kind"] == Kind.STARTED]
    for begin, end in zip(left, np.append(back, np.inf), strict=False):
        assert not ((begin < starts) & (starts < end)).any()
        assert end == np.inf or (starts == end).any()  # both continue as soon as it is there again
    assert (events["kind"] == Kind.COMPLETED).sum() == 2
    assert record.table["jct_s"].to_numpy().max() > 10800 + (back - left[: len(back)]).sum()


def test_rounds_come_close_to_the_ideal():
    jobs = gavel_jobs(60, seed=0, mean_gap_s=1500, multi_gpu=True)
    experiment = Experiment.of(jobs, cluster="gavel-8-16-24")
    ideal, rounds = (experiment.run(name).summary["mean_jct_s"] for name in ("gavel_las(ideal=True)", "gavel_las"))
    assert rounds == pytest.approx(ideal, rel=0.05)
