"""Lucid's simulator [1]_, which is Helios', beside ours: FIFO, SJF, SRTF and QSSF on three of its virtual clusters.

Ours runs all three at once, as partitions of one cluster whose gangs wait. Two lines of theirs are changed for SRTF: it
lets a job that is done hold its GPUs for one more second, and preemptions cost 40 or 60 s.

.. [1] Hu et al., "Lucid: a non-intrusive, scalable and interpretable scheduler for deep learning training jobs", ASPLOS
   2023.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

import labkit
from benchmarks.foreign import Agreement, agreement, copied
from labkit.core import Cluster, Jobs, Placement, Scheduler, Snapshot
from labkit.core.later_snapshot import LaterSnapshot
from labkit.placers import Pack
from labkit.schedulers.base import capacity, choose, place, requested_gangs
from labkit.topology import no_network
from labkit.topology.servers import Server

CLUSTERS: Final = {"vcKrE": 4, "vc8Gr": 6, "vcYVn": 11}
"""Virtual clusters and their machines of 8 GPUs, of their file."""
N_JOBS: Final = 400
POLICIES: Final = {
    "fifo": "FirstInFirstOut", "sjf": "ShortestJobFirst", "srtf": "ShortestRemainingTimeFirst",
    "qssf": "QuasiShortestServiceFirst",
}  # fmt: skip
OURS: Final = {"qssf": "qssf(predict='declared',published=True,placer=pack)"}
"""What is not `POLICY(placer=pack)`; their QSSF has an estimator that knows durations."""
MENDED: Final = {'if job["remain"] == 0:': 'if job["remain"] <= 1:', "self.ckpt_overhead(job)": "0"}
DRIVER: Final = """
import json, logging, os, sys, time, types
import pandas as pd
import policy
from cluster import Cluster
from job import Job, Trace
name, vcs = sys.argv[1], json.loads(sys.argv[2])
frame = pd.read_csv("ours.csv").assign(
    start_time=sys.maxsize, end_time=sys.maxsize, ckpt_times=0, queue=0, jct=0, status=None, gpu_util=0.0, gmem=0)
frame["remain"], frame["priority"] = frame["duration"], -1
trace = Trace()
for _, row in frame.iterrows():
    trace.append_job(Job(row))
trace.sort_jobs("submit_time")
logging.disable(logging.CRITICAL)
os.makedirs("log", exist_ok=True)
began = time.process_time()
for vc in Cluster(vcs, 8, 96).vc_list:
    known = [types.SimpleNamespace(name="LGBEstimator", inference=lambda job: job["duration"] * job["gpu_num"])]
    estimator = known if name.startswith("Quasi") else []
    getattr(policy, name)(trace, vc, "consolidate", "log", logging.getLogger(), 0, *estimator).simulate()
jct = {str(job["job_id"]): float(job["end_time"] - job["submit_time"]) for job in trace.job_list}
print(json.dumps([jct, time.process_time() - began]))
"""


def rows(folder: Path) -> Iterator[Agreement]:
    """Return a row for each policy and virtual cluster."""
    jobs = made_jobs(seed=7)
    frame = jobs.to_frame()
    with tempfile.TemporaryDirectory() as scratch:
        place = copied(folder, "simulation", Path(scratch))
        told = frame[["id", "partition", "n_workers", "arrival_s", "duration_s"]].astype(
            {"arrival_s": int, "duration_s": int}
        )
        told.to_csv(place / "ours.csv", index=False, header=["job_id", "vc", "gpu_num", "submit_time", "duration"])
        program = place / "policy" / "srtf.py"
        text = program.read_text()
        for theirs, mended in MENDED.items():
            text = text.replace(theirs, mended)
        program.write_text(text)
        for policy in POLICIES:
            yield from _rows(place, jobs, policy)


def made_jobs(*, seed: int) -> Jobs:
    """Return jobs of 1 to 32 GPUs for each virtual cluster, which are too many for it."""
    rng, parts = np.random.default_rng(seed), []
    for vc, machines in CLUSTERS.items():
        gpus = rng.choice([1, 2, 4, 8, 16, 32], N_JOBS, p=[0.5, 0.13, 0.13, 0.16, 0.06, 0.02])
        seconds = np.maximum(rng.lognormal(6.0, 1.3, N_JOBS).astype(int), 10)
        gap_s = (gpus * seconds).mean() / (8 * machines)
        parts.append((np.cumsum(rng.exponential(gap_s, N_JOBS)).astype(int), seconds, gpus, np.full(N_JOBS, vc)))
    arrival_s, duration_s, gpus, vc = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Jobs.of(
        name="ours", arrival_s=arrival_s, total_steps=duration_s, duration_s=duration_s, n_workers=gpus,
        partition=vc.tolist(), consolidate="wait",
    )  # fmt: skip


def cluster() -> Cluster:
    """Return the machines of the virtual clusters, as partitions of one cluster."""
    made = no_network(sum(CLUSTERS.values()), servers=Server("node", sockets=((8, 8, 8),)))
    names = iter(made.machines)
    return made.with_partitions({vc: [next(names) for _ in range(n)] for vc, n in CLUSTERS.items()})


class SrtfThatWaits:
    """SRTF as theirs does it: what stops for a gang that then finds no room does not go on, nor does anybody else.

    Equals are in the order in which they began to wait, and then of those that run in which they started.
    """

    def __init__(self) -> None:
        self._order: list[int] = []

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start and which stop."""
        jobs = snapshot.jobs
        left = dict(zip(jobs.number.tolist(), jobs.remaining_s.round(6).tolist(), strict=True))
        known = [job for job in self._order if job in left]
        known += [job for job in left if job not in known]
        known.sort(key=lambda job: bool(snapshot.holds(np.array([job]))[0]))
        order = np.array(sorted(known, key=lambda job: left[job]), np.int32)
        chosen, runs = choose(order, snapshot.table.gang_demand, capacity(snapshot), True), snapshot.holds(order)
        stop, start = order[runs & ~chosen], order[~runs & chosen]
        then = LaterSnapshot(snapshot, snapshot.free_without(stop))
        placed = place(Pack(), then, requested_gangs(snapshot, start))
        last = [*stop.tolist(), *placed.set_jobs.tolist()]
        self._order = [job for job in known if job not in last] + last
        return Placement.joined([placed, Placement.of(stop)])


def _rows(folder: Path, jobs: Jobs, policy: str) -> Iterator[Agreement]:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, POLICIES[policy], json.dumps(CLUSTERS)],
        cwd=folder, check=True, capture_output=True, text=True,
    )  # fmt: skip
    theirs, their_cpu_s = json.loads(done.stdout.splitlines()[-1])
    name = OURS.get(policy, f"{policy}(placer=pack)")
    plain, ours_cpu_s = ours, _ = _ours(jobs, name)
    if policy == "srtf":
        name = "SrtfThatWaits"
        ours, ours_cpu_s = _ours(jobs, SrtfThatWaits())
    vc_of = dict(zip(jobs.id, jobs.partition_names(), strict=True))
    for vc, machines in CLUSTERS.items():
        mine = {job: jct_s for job, jct_s in theirs.items() if vc_of[job] == vc}
        equal, n, gap = agreement(mine, ours)
        note = f"srtf, which lets others go on: {agreement(mine, plain)[0]} equal, mean JCT" if policy == "srtf" else ""
        if note:
            means = [np.mean([jct[job] for job in mine]) for jct in (plain, theirs)]
            note += f" {means[0] / means[1] - 1:+.1%}"
        yield Agreement(
            "lucid", f"{vc} {machines}x8", f"{policy}, consolidate = {name}, wait", equal, n, gap,
            their_cpu_s / len(CLUSTERS), ours_cpu_s / len(CLUSTERS), note,
        )  # fmt: skip


def _ours(jobs: Jobs, scheduler: Scheduler | str) -> tuple[dict[str, float], float]:
    """Return the JCT of each job in ours, and its CPU seconds, kernels compiled before."""
    cpu_s = 0.0
    for _ in range(2):
        began = time.process_time()
        table = labkit.simulate(jobs, cluster=cluster(), scheduler=scheduler).table
        cpu_s = time.process_time() - began
    return dict(zip(table["id"], table["jct_s"], strict=True)), cpu_s
