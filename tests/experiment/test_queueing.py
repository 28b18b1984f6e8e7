"""The simulator against queueing theory: M/M/1, processor sharing, optimal orders, conservation."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from labkit.core import Jobs, Kind
from labkit.core.resources import Bools, Floats
from labkit.core.running import Running
from labkit.experiment import Session, every_slot
from labkit.schedulers import make
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.testing.strategies import rngs
from labkit.topology import no_network
from labkit.topology.servers import Server

ONE_GPU = Server("one", sockets=((1, 1e9, 1e9),))
N_BATCHES = 40


def jct(rows: np.ndarray, jobs: Jobs) -> Floats:
    done = rows[rows["kind"] == Kind.COMPLETED]
    assert len(done) == len(jobs)
    at_s = np.empty(len(jobs))
    at_s[done["job"]] = done["time_s"]
    return at_s - jobs.arrival_s


def on_one_gpu(jobs: Jobs, scheduler: str) -> Floats:
    cluster = no_network(1, servers=ONE_GPU)
    return jct(Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster))).run(make(scheduler)), jobs)


def poisson(rng: np.random.Generator, n: int, *, rate: float, service: float = 1.0, **columns: Any) -> Jobs:
    work = rng.exponential(service, n)
    arrival_s = np.cumsum(rng.exponential(1 / rate, n))
    return Jobs.of(arrival_s=arrival_s, total_steps=work, duration_s=work, **columns)


def confidence(values: Floats) -> tuple[float, float]:
    """Return the mean and its 99.9% half width by batch means, without the first tenth."""
    settled = values[len(values) // 10 :]
    batches = settled[: len(settled) // N_BATCHES * N_BATCHES].reshape(N_BATCHES, -1).mean(axis=1)
    return float(batches.mean()), 3.55 * float(batches.std(ddof=1)) / np.sqrt(N_BATCHES)


@pytest.mark.parametrize(("rate", "seed"), [(0.3, 1), (0.5, 2), (0.7, 3)])
def test_fifo_on_one_gpu_is_an_mm1_queue(rate: float, seed: int) -> None:
    """Mean time in an M/M/1 queue is 1 / (mu - lambda)."""
    jobs = poisson(np.random.default_rng(seed), 40_000, rate=rate)
    mean, half = confidence(on_one_gpu(jobs, "fifo"))
    assert half < 0.15 / (1 - rate)
    assert abs(mean - 1 / (1 - rate)) < half


@given(rng=rngs(), rate=st.sampled_from([0.5, 0.9, 2.0]))
def test_fifo_on_one_gpu_is_lindleys_recursion(rng: np.random.Generator, rate: float) -> None:
    """W(j + 1) = max(0, W(j) + S(j) - A(j + 1)), job by job."""
    jobs = poisson(rng, 60, rate=rate)
    waited, expected = 0.0, []
    for j in range(60):
        if j:
            waited = max(0.0, waited + jobs.duration_s[j - 1] - (jobs.arrival_s[j] - jobs.arrival_s[j - 1]))
        expected.append(waited + jobs.duration_s[j])
    np.testing.assert_allclose(on_one_gpu(jobs, "fifo"), expected, rtol=1e-9)


class ProcessorSharing:
    """All running jobs share one unit of speed."""

    local = False

    def __init__(self, jobs: Jobs) -> None:
        self.n_jobs = len(jobs)

    def speeds(self, running: Running) -> Floats:
        return np.full(len(running.job), 1 / max(len(running.job), 1))

    def runs_on(self) -> Bools:
        return np.ones((self.n_jobs, 1), np.bool_)

    def durations_s(self) -> Floats:
        return np.full(self.n_jobs, np.nan)


def sharing(jobs: Jobs) -> Floats:
    cluster = no_network(1, servers=Server("large", sockets=((1e9, 1e9, 1e9),)))
    return jct(Session(Simulator(jobs, cluster, speed=ProcessorSharing(jobs))).run(make("fifo")), jobs)


@pytest.mark.parametrize(("rate", "seed"), [(0.6, 5)])
def test_jobs_that_share_one_processor_are_an_mm1_ps_queue(rate: float, seed: int) -> None:
    """Mean time as in M/M/1; a job of work x takes x / (1 - rho) in the mean, whatever its size."""
    jobs = poisson(np.random.default_rng(seed), 12_000, rate=rate)
    took = sharing(jobs)
    mean, half = confidence(took)
    assert half < 0.2 / (1 - rate)
    assert abs(mean - 1 / (1 - rate)) < half
    for low, high in ((0.05, 0.5), (0.5, 1.5), (1.5, 9.0)):
        some = (jobs.duration_s > low) & (jobs.duration_s < high)
        assert (took[some] / jobs.duration_s[some]).mean() == pytest.approx(1 / (1 - rate), rel=0.1)


def plain_sharing(arrival_s: list[float], work: list[float]) -> list[float]:
    """Return completions under processor sharing, event by event in plain Python."""
    now_s, left, done = 0.0, {}, {}
    waiting = sorted(range(len(work)), key=lambda j: arrival_s[j])
    while waiting or left:
        next_done = now_s + min(left.values()) * len(left) if left else np.inf
        next_s = min(next_done, arrival_s[waiting[0]] if waiting else np.inf)
        left = {j: rest - (next_s - now_s) / len(left) for j, rest in left.items()}
        now_s = next_s
        for j in [j for j, rest in left.items() if rest <= 1e-9]:
            done[j] = now_s
            del left[j]
        while waiting and arrival_s[waiting[0]] <= now_s:
            j = waiting.pop(0)
            left[j] = work[j]
    return [done[j] for j in range(len(work))]


@given(rng=rngs())
def test_shared_speeds_follow_the_plain_computation(rng: np.random.Generator) -> None:
    jobs = poisson(rng, 25, rate=1.0)
    expected = np.array(plain_sharing(jobs.arrival_s.tolist(), jobs.duration_s.tolist()))
    np.testing.assert_allclose(sharing(jobs) + jobs.arrival_s, expected, rtol=1e-6, atol=1e-6)


# --- orders


@given(rng=rngs(), rate=st.sampled_from([0.7, 1.0, 3.0]))
def test_srtf_on_one_gpu_is_never_worse_than_fifo_sjf_or_las(rng: np.random.Generator, rate: float) -> None:
    """SRPT minimises the mean time in a single-server queue on every path (Schrage, 1968)."""
    jobs = poisson(rng, 40, rate=rate)
    best = on_one_gpu(jobs, "srtf").mean()
    for other in ("fifo", "sjf", "las(threshold_gpu_s=1)", "tetris"):
        assert best <= on_one_gpu(jobs, other).mean() * (1 + 1e-9)


@example(rng=np.random.default_rng(20501))  # a job arrives that is shorter than 1 % of the one that runs
@given(rng=rngs())
def test_srtf_on_one_gpu_is_shortest_remaining_processing_time(rng: np.random.Generator) -> None:
    jobs = poisson(rng, 25, rate=1.0)
    now_s, left, expected = 0.0, dict(enumerate(jobs.duration_s.tolist())), {}
    while left:
        here = {j: rest for j, rest in left.items() if jobs.arrival_s[j] <= now_s}
        later = [jobs.arrival_s[j] for j in left if jobs.arrival_s[j] > now_s]
        if not here:
            now_s = min(later)
            continue
        shortest = min(here, key=lambda j: (here[j], j))
        until_s = min([now_s + here[shortest], *later])
        left[shortest] -= until_s - now_s
        if until_s == now_s + here[shortest]:
            expected[shortest] = until_s
            del left[shortest]
        now_s = until_s
    got = on_one_gpu(jobs, "srtf") + jobs.arrival_s
    np.testing.assert_allclose(got, [expected[j] for j in range(25)], rtol=1e-9)


@given(work=st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_sjf_is_the_best_order_of_jobs_that_are_all_there(work: list[int]) -> None:
    """Against every permutation."""
    jobs = Jobs.of(arrival_s=np.zeros(len(work)), total_steps=work, duration_s=work)
    best = min(np.cumsum(order).mean() for order in permutations(work))
    for name in ("sjf", "srtf"):
        assert on_one_gpu(jobs, name).mean() == pytest.approx(best)


@pytest.mark.parametrize("name", ["fifo", "sjf", "srtf", "las(threshold_gpu_s=1)", "drf", "tetris"])
@given(rng=rngs())
def test_one_gpu_never_idles_while_there_is_work(name: str, rng: np.random.Generator) -> None:
    """Conservation: all schedulers are done at the same moment, as none wastes time or work."""
    jobs = poisson(rng, 30, rate=1.2)
    busy_until_s = 0.0
    for arrival_s, work in zip(jobs.arrival_s, jobs.duration_s, strict=True):
        busy_until_s = max(busy_until_s, arrival_s) + work
    assert (on_one_gpu(jobs, name) + jobs.arrival_s).max() == pytest.approx(busy_until_s)


@pytest.mark.parametrize("rate", [0.5, 0.7])
def test_littles_law_holds(rate: float) -> None:
    """Mean number of jobs in the system = rate of arrivals x mean time in it, counted from the events alone."""
    jobs = poisson(np.random.default_rng(6), 5000, rate=rate)
    cluster = no_network(1, servers=ONE_GPU)
    rows = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster))).run(make("fifo"))
    moves = rows[np.isin(rows["kind"], [Kind.ARRIVED, Kind.COMPLETED])]
    n_there = np.cumsum(np.where(moves["kind"] == Kind.ARRIVED, 1, -1))[:-1]
    span_s = moves["time_s"][-1] - moves["time_s"][0]
    mean_there = (n_there * np.diff(moves["time_s"])).sum() / span_s
    assert mean_there == pytest.approx(len(jobs) / span_s * jct(rows, jobs).mean(), rel=1e-9)


def test_slots_only_add_waiting() -> None:
    """Deciding in slots of s delays each start; M/M/1 with slots is slower, by less than the slots waited for."""
    jobs = poisson(np.random.default_rng(7), 3000, rate=0.5)
    cluster = no_network(1, servers=ONE_GPU)
    run = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)), cadence=every_slot(0.1))
    slotted, at_once = jct(run.run(make("fifo")), jobs), on_one_gpu(jobs, "fifo")
    assert (slotted >= at_once - 1e-9).all()
    assert 0.05 < (slotted - at_once).mean() < 0.4
