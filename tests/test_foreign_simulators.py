"""The rule of Tiresias ("yarn") and Lucid against an oracle of our own, and the table of others' simulators."""

from __future__ import annotations

import heapq
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labkit
from benchmarks.foreign import SYSTEMS, agreement
from benchmarks.foreign import __main__ as foreign
from benchmarks.foreign.__main__ import lines
from benchmarks.foreign.muri import LosesAtEvents
from labkit.core import Cluster, Jobs, Kind
from labkit.core.errors import InputError
from labkit.experiment.cadence import Cadence
from labkit.experiment.session import Session
from labkit.schedulers import make
from labkit.speed.recorded import Recorded
from labkit.topology import no_network
from labkit.topology.servers import Server

GPUS = 8
FOREIGN = os.environ.get("LABKIT_FOREIGN")


def yarn(free: list[int], gpus: int) -> dict[int, int]:
    """Where a gang goes: whole machines first, then the first one with room for the rest; nowhere where one lacks."""
    whole, rest = divmod(gpus, GPUS)
    idle = [m for m, n in enumerate(free) if n == GPUS][:whole]
    last = [m for m, n in enumerate(free) if rest and n >= rest and m not in idle][:1]
    if len(idle) < whole or len(last) < (rest > 0):
        return {}
    return dict.fromkeys(idle, GPUS) | dict.fromkeys(last, rest)


def take(free: list[int], where: dict[int, int], sign: int) -> None:
    """Take GPUs of machines, or give them back."""
    for m, n in where.items():
        free[m] -= sign * n


def oracle(jobs: Jobs, n_machines: int, *, passes: bool) -> list[float]:
    """When each job ends: by arrival, each where `yarn` puts it; one without room is passed over, or stops all."""
    free, waiting, done = [GPUS] * n_machines, list[int](), [0.0] * len(jobs)
    events = [(float(at), j, 0) for j, at in enumerate(jobs.arrival_s)]
    held: dict[int, dict[int, int]] = {}
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, job, ends = heapq.heappop(events)
            if ends:
                done[job] = now
                take(free, held.pop(job), -1)
            else:
                waiting = sorted([*waiting, job])
        for job in list(waiting):
            held[job] = yarn(free, int(jobs.n_workers[job]))
            if not (held[job] or passes):
                break
            if held[job]:
                take(free, held[job], 1)
                heapq.heappush(events, (now + float(jobs.duration_s[job]), job, 1))
                waiting.remove(job)
    return done


def machines(n: int) -> Cluster:
    return no_network(n, servers=Server("eight", sockets=((GPUS, 64, 512),)))


def made(rng: np.random.Generator, *, n: int, gpus: Sequence[int]) -> Jobs:
    seconds = np.maximum(rng.lognormal(4, 1, n).astype(int), 1)
    return Jobs.of(
        arrival_s=np.cumsum(rng.integers(0, 40, n)), total_steps=seconds, duration_s=seconds,
        n_workers=rng.choice(gpus, n),
    )  # fmt: skip


@pytest.mark.parametrize(("name", "passes"), [("fifo", False), ("fifo(backfill=True)", True)])
@given(seed=st.integers(0, 2**32 - 1), n_machines=st.integers(2, 6))
def test_gangs_that_wait_end_when_an_oracle_of_the_yarn_rule_says(
    name: str, passes: bool, seed: int, n_machines: int
) -> None:
    jobs = made(np.random.default_rng(seed), n=60, gpus=[1, 2, 3, 4, 6, 8, 12, 16])
    record = labkit.simulate(jobs, cluster=machines(n_machines), scheduler=name, consolidate="wait")
    assert record.table["completion_s"].tolist() == oracle(jobs, n_machines, passes=passes)


def test_a_split_gang_ends_no_later_than_on_one_machine_of_all_gpus() -> None:
    """Tiresias' "count": only the number of free GPUs matters, whatever the pieces."""
    jobs = made(np.random.default_rng(4), n=200, gpus=[1, 2, 4, 8, 16])
    pooled = no_network(1, servers=Server("one", sockets=((4 * GPUS, 256, 2048),)))
    apart, together = (
        labkit.simulate(jobs, cluster=cluster, scheduler="fifo", consolidate="split").table["completion_s"].tolist()
        for cluster in (machines(4), pooled)
    )
    assert apart == together


def test_a_system_is_cloned_once_or_skipped_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(foreign, "KEPT", tmp_path / "kept")
    _, *told = lines([])
    assert [line.split()[:2] for line in told] == [[name, "skipped:"] for name in SYSTEMS]
    assert "no folder of its repository; git clone https://" in told[0]
    with pytest.raises(InputError, match=r"no such folder; git clone https://.*, then lucid=FOLDER"):
        list(lines([f"lucid={tmp_path / 'gone'}"]))
    monkeypatch.setattr(foreign, "SYSTEMS", {"lucid": str(tmp_path / "theirs")})
    assert "skipped: git clone failed (fatal: repository" in list(lines(["lucid"]))[1]
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tmp_path / "theirs")]
    subprocess.run(["git", "init", "-q", str(tmp_path / "theirs")], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "made"], check=True)
    assert "skipped: Cannot save" in list(lines(["lucid"]))[1]  # it has none of their files
    assert (tmp_path / "kept" / "lucid" / ".git").is_dir()
    monkeypatch.undo()
    with pytest.raises(InputError, match="Did you mean 'lucid'"):
        list(lines(["lucd"]))


def test_an_event_costs_a_job_that_runs_on_seconds_of_its_work_and_one_that_ends_at_it_nothing() -> None:
    """As in Muri's simulator; jobs A, B and C of 100 s arrive at 0, 10 and 103 s."""
    jobs = Jobs.of(arrival_s=[0, 10, 103], total_steps=100, duration_s=100, n_workers=1)
    backend = LosesAtEvents(jobs, machines(1), speed=Recorded(jobs, machines(1)))
    backend.cost_s = np.full(3, 4.0)
    rows = Session(backend, cadence=Cadence.published("muri")).run(make("fifo"))
    done = rows[rows["kind"] == Kind.COMPLETED]
    # events at 10, 103, 108 and 118 s: A loses 2 x 4 s, B 2 x 4 s and C 2 x 4 s
    assert done["job"].tolist() == [0, 1, 2]
    assert done["time_s"].tolist() == [108.0, 118.0, 211.0]


def test_agreement_counts_equal_jobs_and_the_largest_gap() -> None:
    assert agreement({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 1.0, "b": 2.5, "c": 1.0}) == (1, 3, -2.0)


@pytest.mark.skipif(FOREIGN is None, reason="LABKIT_FOREIGN names no folder with clones of others' simulators")
@pytest.mark.parametrize("system", ["tiresias", "lucid", "muri"])
def test_others_simulators_agree_in_all_jobs(system: str) -> None:
    _, *told = lines([system])
    assert told
    for line in told:
        equal, _, n = next(word for word in line.split() if "/" in word and word[0].isdigit()).partition("/")
        assert equal == n, line
