"""`srtf` and `las` where gangs wait for whole machines: each job ends when it does in a plain loop of the same rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import Jobs
from labkit.core.events import Kind
from labkit.experiment import Experiment
from labkit.schedulers import make
from labkit.topology import no_network
from labkit.topology.servers import Server

GPUS, QUANTUM_S, THRESHOLD_GPU_S, BEHIND = 8, 600.0, 3600.0, 64


class PlainLoop:
    """Machines of 8 GPUs, and jobs that run at full speed on as few of them as hold their gang."""

    def __init__(self, jobs: Jobs, n_machines: int, *, by: str, moves: bool) -> None:
        self.arrival_s, self.left_s, self.gpus = (
            column.tolist() for column in (jobs.arrival_s, jobs.duration_s, jobs.n_workers)
        )
        self.free, self.by, self.moves, self.now_s = [GPUS] * n_machines, by, moves, 0.0
        self.since_s, self.attained = [0.0] * len(jobs), [0.0] * len(jobs)
        self.lies: dict[int, list[tuple[int, int]]] = {}
        self.active: list[int] = []

    def ends_s(self) -> list[float]:
        """Return when each job ends."""
        ended, waits = [math.nan] * len(self.gpus), [*range(len(self.gpus))]
        while waits or self.active:
            for j in [j for j in self.lies if self.since_s[j] + self.left_s[j] <= self.now_s]:
                self.take(self.lies.pop(j), -1)
                self.active.remove(j)
                ended[j] = self.now_s
            while waits and self.arrival_s[waits[0]] <= self.now_s:
                self.active.append(waits.pop(0))
            self.decide()
            moments = [self.since_s[j] + self.left_s[j] for j in self.lies] + [self.arrival_s[j] for j in waits[:1]]
            if self.by == "las" and self.active:
                moments.append((self.now_s // QUANTUM_S + 1) * QUANTUM_S)
            self.now_s = min(moments, default=0.0)
        return ended

    def key(self, j: int) -> tuple[float, int]:
        """Return what jobs are ordered by."""
        ran_s = self.now_s - self.since_s[j] if j in self.lies else 0.0
        if self.by == "srtf":
            return self.left_s[j] - ran_s, j
        return float(self.attained[j] + self.gpus[j] * ran_s >= THRESHOLD_GPU_S), j

    def chosen(self) -> tuple[list[int], list[int], list[int]]:
        """Return which jobs are to start and to stop, and those that wait and were not chosen, by sums of GPUs."""
        budget, start, stop, behind = GPUS * len(self.free), list[int](), list[int](), list[int]()
        for j in sorted(self.active, key=self.key):
            if self.gpus[j] <= budget:
                budget -= self.gpus[j]
                start += [j] * (j not in self.lies)
            else:
                (stop if j in self.lies else behind).append(j)
        return start, stop, behind

    def decide(self) -> None:
        """Start the chosen jobs, let others stay or move, stop the rest, and try those behind."""
        before = dict(self.lies)
        if self.moves:
            self.place_all()
        else:
            start, stop, behind = self.chosen()
            for j in stop:
                self.take(self.lies[j], -1)
            started = [j for j in start if self.placed(j)]
            for j in [j for j in stop if not self.stays(j)]:
                if not self.placed(j):
                    del self.lies[j]
            if len(started) < len(start):
                started += [j for j in behind[:BEHIND] if self.placed(j)]
            assert started or self.lies == before
        for j in before.keys() - self.lies.keys():
            self.left_s[j] -= self.now_s - self.since_s[j]
            self.attained[j] += self.gpus[j] * (self.now_s - self.since_s[j])
        for j in self.lies.keys() - before.keys():
            self.since_s[j] = self.now_s

    def place_all(self) -> None:
        """Place all jobs anew, in order."""
        order = sorted(self.active, key=self.key)
        for j in [*self.lies]:
            self.take(self.lies.pop(j), -1)
        for j in order:
            self.placed(j)

    def stays(self, j: int) -> bool:
        """Let a job stay where there is still room for it."""
        there = all(self.free[m] >= n for m, n in self.lies[j])
        if there:
            self.take(self.lies[j], 1)
        return there

    def placed(self, j: int) -> bool:
        """Place a job on whole machines and one more for the rest, the first with room each."""
        whole, rest = divmod(self.gpus[j], GPUS)
        on: list[tuple[int, int]] = []
        for n in [GPUS] * whole + [rest] * (rest > 0):
            used = {m for m, _ in on}
            m = next((m for m, free in enumerate(self.free) if free >= n and m not in used), -1)
            if m < 0:
                return False
            on.append((m, n))
        self.take(on, 1)
        self.lies[j] = on
        return True

    def take(self, on: list[tuple[int, int]], sign: int) -> None:
        """Take GPUs of machines, or give them back."""
        for m, n in on:
            self.free[m] -= sign * n


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("name", ["srtf", "las"])
@given(seed=st.integers(0, 2**32 - 1))
def test_each_job_ends_as_in_a_plain_loop(name: str, moves: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, n_machines = 60, 4
    gpus, duration_s = (
        rng.choice([1, 1, 2, 4, 6, 8, 12, 20], n),
        rng.lognormal(6, 1.5, n),
    )  # no two alike: ties fall by rounding
    arrival_s = np.cumsum(rng.exponential(1, n)) * (gpus * duration_s).sum() / (GPUS * n_machines * n)
    jobs = Jobs.of(arrival_s=arrival_s, duration_s=duration_s, total_steps=duration_s, n_workers=gpus)
    cluster = no_network(n_machines, servers=Server("eight", ((GPUS, 64.0, 512.0),)))
    scheduler = make(f"{name}(moves={moves})")
    record = Experiment.of(jobs, cluster=cluster, speed="recorded", consolidate="wait").run(scheduler)
    theirs = PlainLoop(jobs, n_machines, by=name, moves=moves).ends_s()
    rows = record.events[record.events["kind"] == Kind.COMPLETED]
    ours = rows["time_s"][np.argsort(rows["job"])]
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
