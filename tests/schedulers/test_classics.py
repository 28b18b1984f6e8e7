"""Classic schedulers by hand: which jobs start, which stop, in which order."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import Cluster, InputError, Jobs, Kind
from labkit.experiment import Session, at_events
from labkit.placers import ByNetwork, Even, Pack
from labkit.schedulers import available, make
from labkit.schedulers.base import least
from labkit.schedulers.drf import Drf
from labkit.schedulers.las import Las
from labkit.schedulers.tetris import by_score
from labkit.simulator import Faults, Simulator
from labkit.speed.recorded import Recorded
from labkit.topology import no_network
from labkit.topology.servers import Server

FOUR_GPUS = no_network(1, servers=Server("s", sockets=((4, 64, 256),)))


def run(jobs: Jobs, scheduler: str, *, cluster: Cluster = FOUR_GPUS, quantum_s: float = np.inf) -> Session:
    session = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)), cadence=at_events(quantum_s=quantum_s))
    session.run(make(scheduler))
    return session


def moments(session: Session, kind: Kind) -> dict[int, list[float]]:
    rows = session.log.rows[session.log.rows["kind"] == kind]
    return {job: rows["time_s"][rows["job"] == job].tolist() for job in range(len(session.backend.jobs))}


def first_starts(session: Session) -> list[float]:
    return [starts[0] for starts in moments(session, Kind.STARTED).values()]


def completed(session: Session) -> list[float]:
    return [at_s[0] for at_s in moments(session, Kind.COMPLETED).values()]


def jobs_of(*rows: tuple[float, float, int], **columns: Any) -> Jobs:
    """Return jobs from (arrival, seconds, GPUs)."""
    arrival_s, seconds, gpus = zip(*rows, strict=True)
    return Jobs.of(
        **{"arrival_s": arrival_s, "total_steps": seconds, "duration_s": seconds, "n_workers": gpus} | columns
    )


# --- fifo, sjf, srtf

QUEUE = jobs_of((0, 100, 3), (1, 50, 4), (2, 30, 1), (3, 40, 1))


def test_fifo_lets_all_wait_behind_the_first_that_does_not_fit() -> None:
    assert first_starts(run(QUEUE, "fifo")) == [0, 100, 150, 150]


def test_fifo_with_backfill_passes_over_it() -> None:
    assert first_starts(run(QUEUE, "fifo(backfill=True)")) == [0, 100, 2, 32]


def test_fifo_starts_ties_in_the_order_of_the_trace() -> None:
    assert first_starts(run(jobs_of((0, 10, 4), (0, 5, 4), (0, 1, 4)), "fifo")) == [0, 10, 15]


def test_sjf_takes_the_shortest_that_waits_and_preempts_none() -> None:
    session = run(jobs_of((0, 100, 4), (1, 50, 4), (2, 30, 4), (3, 40, 4)), "sjf")
    assert first_starts(session) == [0, 170, 100, 130]
    assert not any(moments(session, Kind.PREEMPTED).values())


def test_srtf_preempts_for_less_remaining_time() -> None:
    session = run(jobs_of((0, 100, 4), (10, 50, 4), (20, 95, 4), (30, 25, 4)), "srtf")
    # at 10 s 100 - 10 = 90 > 50; at 20 s 40 < 95; at 30 s 30 > 25
    assert moments(session, Kind.PREEMPTED) == {0: [10], 1: [30], 2: [], 3: []}
    assert completed(session) == [10 + 75 + 90, 85, 175 + 95, 55]


def test_srsf_runs_the_job_with_the_least_gpu_seconds_left() -> None:
    """30 s on 4 GPUs are more service than 100 s on 1."""
    jobs = jobs_of((0, 30, 4), (0, 100, 1))
    assert first_starts(run(jobs, "srtf")) == [0, 30]
    assert first_starts(run(jobs, "srtf(service=True)")) == [100, 0]


def test_srtf_keeps_the_running_one_in_a_tie() -> None:
    """Job 1 arrives with just the time that job 0 has left: the order of arrival decides."""
    session = run(jobs_of((0, 100, 4), (40, 60, 4)), "srtf")
    assert not any(moments(session, Kind.PREEMPTED).values())


def test_srtf_preempts_only_as_many_as_it_must() -> None:
    session = run(jobs_of((0, 100, 2), (0, 200, 2), (10, 5, 2)), "srtf")
    assert moments(session, Kind.PREEMPTED) == {0: [], 1: [10], 2: []}
    assert completed(session) == [100, 205, 15]


def test_a_preempted_job_goes_on_where_it_was_when_there_was_no_room_for_its_rival() -> None:
    """Two machines of two GPUs; a worker of two GPUs fits neither of them while one GPU of each is taken."""
    cluster = no_network(2, servers=Server("s", sockets=((2, 8, 64),)))
    demand = np.array([(1, 1, 0), (2, 1, 0), (1, 1, 0)])
    jobs = Jobs.of(
        arrival_s=[0, 0, 50], total_steps=[100, 200, 20], duration_s=[100, 200, 20], worker_demand=demand,
        n_workers=[1, 1, 1],
    )  # fmt: skip
    session = run(jobs, "srtf", cluster=cluster)
    assert not any(moments(session, Kind.PREEMPTED).values())
    assert completed(session) == [100, 200, 70]


# --- las


def test_las_moves_jobs_to_the_second_queue_at_the_threshold() -> None:
    """Tiresias, two queues at 100 GPU-seconds (25 s of 4 GPUs); first come, first served in each."""
    session = run(jobs_of((0, 60, 4), (5, 60, 4), (10, 20, 4)), "las(threshold_gpu_s=100)", quantum_s=5)
    # 0-25 job 0, 25-50 job 1, 50-70 job 2 done, then the second queue by arrival: 35 s of job 0, 35 s of job 1
    assert moments(session, Kind.STARTED) == {0: [0, 70], 1: [25, 105], 2: [50]}
    assert completed(session) == [105, 140, 70]


def test_las_counts_gpus_times_seconds() -> None:
    """Two GPUs for 50 s are as much service as four for 25 s."""
    session = run(jobs_of((0, 80, 2), (0, 80, 2), (0, 60, 4)), "las(threshold_gpu_s=100)", quantum_s=5)
    assert first_starts(session)[2] == 50


def test_las_lets_similar_jobs_not_take_turns() -> None:
    session = run(jobs_of((0, 60, 4), (1, 60, 4)), "las(threshold_gpu_s=1e9)", quantum_s=5)
    assert not any(moments(session, Kind.PREEMPTED).values())


# --- drf


def allocation(scheduler: Drf, jobs: Jobs, cluster: Cluster) -> dict[int, int]:
    session = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)))
    placement = scheduler.schedule(session.snapshot())
    workers = placement.role == 0
    return {int(j): int(placement.count[workers & (placement.job == j)].sum()) for j in placement.set_jobs}


def ghodsi(**columns: Any) -> Jobs:
    """Return users A with tasks of 1 CPU, 4 GB and B with 3 CPUs, 1 GB as malleable jobs."""
    demand = np.array([(0, 1, 4), (0, 3, 1)])
    given = {"arrival_s": [0, 0], "total_steps": 60, "duration_s": 60, "worker_demand": demand, "max_workers": 9}
    return Jobs.of(**given | columns)


def test_drf_reproduces_the_published_example() -> None:
    """Ghodsi et al., NSDI 2011, sec. 4.1: of 9 CPUs and 18 GB A gets three tasks and B two."""
    cluster = no_network(1, servers=Server("s", sockets=((1, 9, 18),)))
    assert allocation(Drf(), ghodsi(), cluster) == {0: 3, 1: 2}


def test_drf_divides_shares_by_weights() -> None:
    """With twice the weight B's dominant share may be twice A's: 1 task of A (2/9), 2 of B (2/3); see sec. 4.3."""
    cluster = no_network(1, servers=Server("s", sockets=((1, 90, 180),)))
    equal = allocation(Drf(), ghodsi(max_workers=99), cluster)
    weighted = allocation(Drf(), ghodsi(max_workers=99, weight=[1, 2]), cluster)

    def dominant(got: dict[int, int]) -> tuple[float, float]:
        return got[0] * 4 / 180, got[1] * 3 / 90

    a, b = dominant(equal)
    assert a == pytest.approx(b, abs=1 / 30)
    a, b = dominant(weighted)
    assert 2 * a == pytest.approx(b, abs=2 / 30)


def test_drf_stops_at_what_a_job_can_use_and_gives_the_rest_to_others() -> None:
    cluster = no_network(1, servers=Server("s", sockets=((1, 9, 18),)))
    assert allocation(Drf(), ghodsi(max_workers=[1, 9]), cluster) == {0: 1, 1: 2}


def test_drf_resizes_malleable_jobs_when_another_arrives() -> None:
    jobs = jobs_of((0, 1000, 1), (100, 1000, 1), max_workers=4)
    session = run(jobs, "drf")
    placed = session.log.rows[session.log.rows["kind"] == Kind.PLACED]
    sizes = [(float(row["time_s"]), int(row["job"]), int(row["value"])) for row in placed]
    assert sizes == [(0, 0, 4), (100, 0, 2), (100, 1, 2), (400, 1, 4)]
    # 400 steps alone, then two a second: job 0 has 600 left; job 1 then 400 left, four a second
    assert completed(session) == [400, 500]


def test_drf_gives_a_bundle_of_a_worker_and_a_server() -> None:
    cluster = no_network(1, servers=Server("s", sockets=((4, 8, 64),)))
    jobs = Jobs.of(arrival_s=0, total_steps=9, duration_s=9, n_ps=1, max_workers=9, max_ps=2)
    session = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)))
    session.step(make("drf").schedule(session.snapshot()))
    placed = session.log.rows[session.log.rows["kind"] == Kind.PLACED]
    assert {int(row["role"]): int(row["value"]) for row in placed} == {0: 4, 1: 2}


def test_drf_never_preempts_rigid_jobs() -> None:
    session = run(jobs_of((0, 100, 4), (10, 10, 1), (10, 10, 1)), "drf")
    assert not any(moments(session, Kind.PREEMPTED).values())
    assert first_starts(session) == [0, 100, 100]


# --- tetris


def test_tetris_scores_by_alignment_and_by_work_left() -> None:
    """By hand: alignment (demand . free) 0.5, 1.0, 0.2; eps = mean alignment / mean (1 - left) = (1.7/3) / 0.5."""
    demand = np.array([[0.25, 0.25], [0.5, 0.5], [0.1, 0.1]])
    left = np.array([1.0, 0.5, 0.0])
    # scores: 0.5, 1 + 0.567 = 1.567, 0.2 + 1.133 = 1.333; then with half free: 0.25 and 0.1 + 1.133
    assert by_score(demand, left, np.ones(2)).tolist() == [1, 2, 0]


def test_tetris_prefers_what_aligns_when_work_is_equal() -> None:
    """CPUs are what is left: the job of CPUs scores higher than the job of GPUs."""
    demand = np.array([[0.3, 0.1], [0.1, 0.3]])
    assert by_score(demand, np.ones(2), np.array([0.4, 1.0])).tolist() == [1, 0]


def test_tetris_passes_over_what_does_not_fit() -> None:
    demand = np.array([[0.8, 0.1], [0.3, 0.3], [0.3, 0.3]])
    assert by_score(demand, np.array([1.0, 1.0, 0.5]), np.array([0.5, 0.5])).tolist() == [2]


def test_tetris_fills_a_machine_before_it_opens_the_next() -> None:
    cluster = no_network(20, servers=Server("s", sockets=((0, 32, 64),)))
    jobs = Jobs.of(arrival_s=np.zeros(40), total_steps=60, duration_s=60, worker_demand=(0, 5, 10))
    session = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)))
    placement = make("tetris").schedule(session.snapshot())
    assert len(placement.set_jobs) == 40
    assert len(np.unique(placement.group)) == 7


def test_tetris_goes_on_with_jobs_that_outlived_their_declaration_and_lost_their_machine() -> None:
    jobs = jobs_of((0, 100, 1), (0, 100, 1), true_steps=[5000, 3000])
    faults = Faults(mtbf_s=700, mttr_s=50, checkpoint_s=10)
    backend = Simulator(jobs, FOUR_GPUS, speed=Recorded(jobs, FOUR_GPUS), faults=faults, rng=np.random.default_rng(1))
    session = Session(backend)
    rows = session.run(make("tetris"))
    assert (rows["kind"] == Kind.FAILED).sum() > 2


# --- names


def test_every_scheduler_is_found_by_its_file() -> None:
    assert {"drf", "fifo", "las", "optimus", "sjf", "srtf", "tetris"} <= set(available())
    assert "base" not in available()
    assert "published" not in available()


def test_options_may_stand_in_the_name() -> None:
    assert make("las(threshold_gpu_s=60)") == Las(threshold_gpu_s=60)
    assert make(" las( threshold_gpu_s = 60 ) ") == make("las", threshold_gpu_s=60)
    assert make("las(threshold_gpu_s=60)", threshold_gpu_s=70) == Las(threshold_gpu_s=70)
    assert make("drf", placer=Pack()) == Drf(placer=Pack())
    assert make("drf").placer == ByNetwork(networked=Even(), otherwise=Pack())
    assert make("drf(placer=pack)") == make("drf(placer='pack')") == make("drf", placer="pack") == Drf(placer=Pack())
    assert make("optimus", look_ahead=np.int64(2)).look_ahead == 2
    assert make("las(promote=inf)") == make("las")
    assert make("sia(grow=inf)").grow == np.inf


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "srft",
            r"unknown scheduler 'srft'\. Did you mean 'srtf'\? Known: srtf, [^.]* others\. `labkit schedulers` lists",
        ),
        ("", r"unknown scheduler ''\. Known: [^.]* others\."),
        ("base", "unknown scheduler 'base'"),
        ("FIFO", r"unknown scheduler 'FIFO'\. Did you mean 'fifo'\?"),
        ("las(treshold_gpu_s=60)", r"unknown option of las 'treshold_gpu_s'\. Did you mean 'threshold_gpu_s'\?"),
        ("las(60)", r"scheduler 'las\(60\)' cannot be read; expected a name, or name\(option=value, ...\)"),
        ("las(threshold_gpu_s=", "cannot be read"),
        ("las(threshold_gpu_s=open('x'))", "cannot be read"),
        ("las(**{'a': 1})", "cannot be read"),
        ("__import__('os').system('x')", "cannot be read"),
        ("las(threshold_gpu_s=0)", "las: threshold_gpu_s is 0; expected GPU-seconds > 0"),
        ("las(threshold_gpu_s='long')", "las: threshold_gpu_s is 'long'; expected a number"),
    ],
)
def test_a_misspelt_scheduler_is_told_what_is_there(name: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        make(name)


@given(st.lists(st.sampled_from([1.0, 2.0, 3.0, np.inf, np.nan]) | st.floats(0, 9), min_size=1, max_size=80), st.data())
def test_the_least_of_some_jobs_are_the_first_of_a_stable_sort(values, data):
    by = np.array(values)
    jobs = np.array(data.draw(st.permutations(range(len(by)))), np.int32)
    n = data.draw(st.integers(1, len(by)))
    expected = jobs[np.argsort(by[jobs], kind="stable")][:n]
    assert least(jobs, by, n).tolist() == expected.tolist()


def test_jobs_of_unknown_length_give_way_to_all_others_in_a_long_queue():
    by = np.array([np.nan] * 8 + [2.0] * 91 + [1.0])
    assert least(np.arange(100, dtype=np.int32), by, 3).tolist() == [99, 8, 9]


@pytest.mark.parametrize("name", ["fifo", "fifo(backfill=True)", "sjf", "srtf", "las"])
def test_room_that_fractions_of_a_gpu_gave_back_is_whole_again(name):
    """0.1 + 0.2 + 0.3 of a GPU come back as 0.999...9; a job that needs a whole one starts all the same."""
    jobs = Jobs.of(
        arrival_s=[0, 0, 0, 10],
        total_steps=[3, 1, 2, 5],
        duration_s=[3, 1, 2, 5],
        worker_demand=[[0.1, 0, 0], [0.2, 0, 0], [0.3, 0, 0], [1, 0, 0]],
    )
    cluster = no_network(1, servers=Server("one", sockets=((1.0, 4.0, 8.0),), device_type="gpu"))
    session = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)))
    session.run(make(name))
    assert session.now_s == pytest.approx(15.0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fifo(backfill='yes')", "fifo: backfill is 'yes'; expected True or False"),
        ("las(threshold_gpu_s=True)", "las: threshold_gpu_s is True; expected a number"),
        ("optimus(look_ahead='far')", "optimus: look_ahead is 'far'; expected a whole number"),
        ("optimus(look_ahead=2.5)", "optimus: look_ahead is 2.5; expected a whole number"),
        ("optimus(n_pre_runs=0)", "optimus: n_pre_runs is 0; expected a number of gangs >= 1"),
        ("optimus(young_factor=-1)", "optimus: young_factor is -1; expected a factor > 0"),
        ("optimus(published=True, speeds=3)", "optimus: speeds has 0 axes; expected 3"),
        ("fifo(placer=pakc)", "unknown placer 'pakc'. Did you mean 'pack'?"),
        ("fifo(placer=3)", "fifo: placer is 3; expected an object that has place(), or one of best_fit, by_network"),
    ],
)
def test_an_option_of_the_wrong_type_is_refused(name, said):
    with pytest.raises(InputError, match=re.escape(said)):
        make(name)
