"""Muri's simulator [1]_ beside ours: its SRTF, SRSF and Tiresias, job by job, and what it published of eight traces.

In its simulator a start costs nothing. A job that runs on loses some seconds of its work at each event instead: that is
`LosesAtEvents` here. Seconds by model and GPUs are read from its program, published figures from its plots. Its import
of cvxpy is replaced by an empty module; only its Themis needs that.

.. [1] Zhao et al., "Multi-resource interleaving for deep learning training", SIGCOMM 2022.
"""

from __future__ import annotations

import ast
import csv
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.foreign import Agreement, agreement, copied
from labkit.core import Cluster, Events, Jobs, Kind, Placement, Scheduler, Snapshot, SpeedModel
from labkit.core.events import events, joined
from labkit.core.life import Context
from labkit.core.resources import Floats
from labkit.core.running import Running
from labkit.experiment.cadence import Cadence
from labkit.experiment.session import Session
from labkit.placers import FirstFit
from labkit.schedulers import make
from labkit.schedulers.muri import Muri
from labkit.simulator import Simulator, kernels
from labkit.speed.recorded import Recorded
from labkit.topology import no_network
from labkit.topology.servers import Server

TRACES: Final = tuple(f"trace{n}{part}" for n in (1, 2, 3, 4) for part in ("", "_pr"))
"""Its traces, in the order of its figures; in a `_pr` all jobs arrive at once."""
OURS: Final = {
    "shortest": ("SRTF", "srtf(moves=True)", "wait"),
    "shortest-gpu": ("SRSF", "srtf(moves=True,service=True)", "wait"),
    "dlas-gpu": ("Tiresias_L", "tiresias(published='muri')", "split"),
}
"""Name of each policy in its figures, what it is here, and how gangs are placed: its Tiresias counts GPUs alone."""
BY_JOB: Final = ("trace3", "trace4")
"""Traces on which both simulators run; the others take theirs minutes."""
PAIRS: Final = {
    "multi-resource-blossom-same-gpu": ("Muri-S", True),
}
"""Its own policy for jobs of known length, with `--packing_num=2`, and without `autopack`, as when it was published."""
PAIRED: Final = 1.33 / 1.015
"""What the iteration of two jobs takes, in parts of its stages."""
SLOTS: Final = 4
ITERATION: Final = 1.015
"""What an iteration takes, in parts of the time in the trace."""
WITHIN: Final = 1e-3
START: Final = """
import resource, runpy, sys, types
class Missing(types.ModuleType):
    def __getattr__(self, name):
        return type(name, (Exception,), {})
sys.modules["cvxpy"] = Missing("cvxpy")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stderr.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_utime))
"""


class Interleaved(Recorded):
    """Speed of jobs that share GPUs by the stages of their iterations, as Muri's simulator has them.

    `stages_s` (N, 3): seconds of storage and CPU, of the GPU and of the network. Two jobs make one iteration each in
    the shortest period in which no stage serves both at once, times `PAIRED`.
    """

    pairs = True

    def __init__(self, jobs: Jobs, cluster: Cluster, *, stages_s: Floats) -> None:
        super().__init__(jobs, cluster)
        self._stages_s, self._period_s = stages_s, dict[tuple[float, ...], float]()

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,)."""
        speeds = super().speeds(running)
        for i in np.flatnonzero(running.partner >= 0) if len(running.partner) else ():
            both = self._stages_s[[running.job[i], running.partner[i]]]
            key = (*both[0], *both[1])
            if key not in self._period_s:
                self._period_s[key] = period_s(both) * PAIRED
            speeds[i] = 1 / self._period_s[key]
        return speeds


def period_s(stages_s: Floats) -> float:
    """Return the shortest time in which each of two jobs makes one iteration, in the orders that Muri tries."""
    (s1, g1, n1), (s2, g2, n2) = stages_s.tolist()
    in_two = max(s1, g2 + n2) + max(s2, g1 + n1)
    return min(in_two, _in_slots(stages_s), _in_slots(stages_s[::-1]))


def _in_slots(stages_s: Floats) -> float:
    """Return the period of jobs that follow each other by a slot of four: storage takes two slots, the others one."""
    ends, n = [0.0], len(stages_s)
    for i in range(2 * SLOTS):
        network, gpu, storage = (i + 1) % SLOTS, (i + 2) % SLOTS, (i + 3) % SLOTS
        end = 0.0
        if network < n:
            end = max(end, ends[i] + stages_s[network, 2])
        if gpu < n:
            end = max(end, ends[i] + stages_s[gpu, 1])
        if i and storage < n:
            end = max(end, ends[i - 1] + stages_s[storage, 0])
        ends.append(end)
        if i >= SLOTS and math.isclose(ends[i + 1] - ends[i - 3], ends[i] - ends[i - 4], rel_tol=1e-3):
            return float(ends[i + 1] - ends[i - 3])
    return float(ends[-1] - ends[-1 - SLOTS])


class MuriAsPublished(Muri):
    """Muri of two jobs on a GPU as in its simulator: a job that never ran counts with the duration of its trace."""

    def __init__(self, jobs: Jobs, stages_s: Floats, *, known: bool) -> None:
        super().__init__(known=known, least_worth=0.0, placer=FirstFit(), moves=True, quantum_s=math.inf)
        rows = np.column_stack([stages_s, jobs.n_workers])
        _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        self._kind, self._worth = kind.reshape(-1).astype(np.int32), np.zeros((len(first), len(first)))
        for a, one in enumerate(first):
            for b, other in enumerate(first):
                both = stages_s[[one, other]]
                self._worth[a, b] = both.sum() / (SLOTS * PAIRED * period_s(both))

    def begin(self, context: Context) -> None:
        """Measure nothing: stages are known."""

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start, stop, or share GPUs from now on."""
        if not self.known:
            return super().schedule(snapshot)
        jobs = snapshot.jobs
        left = jobs.remaining_s * snapshot.table.gpus[jobs.number]
        left = np.where(jobs.attained_gpu_s > 0, left, left / ITERATION)
        return self._run(snapshot, jobs.number[np.argsort(left, kind="stable")])


class LosesAtEvents(Simulator):
    """A simulator in which each event costs every job that runs on some seconds of its work since the last one.

    `cost_s` (N,) are these seconds; of two that share GPUs each loses those of both. The end of a job is not put off by
    the event at which it ends.
    """

    cost_s: Floats
    _then_s = 0.0

    def advance(self, until_s: float, *, stop_at_event: bool) -> Events:
        """Let time pass until the next decision, and take from jobs that run on what it costs them."""
        truth, speed = self._truth, self._truth.records["speed"].copy()
        mate = truth.book.allocations["partner"].copy()
        happened = super().advance(until_s, stop_at_event=stop_at_event)
        since_s = truth.now_s - self._then_s
        self._then_s = truth.now_s
        jobs = truth.in_phase(kernels.RUNNING)
        if not len(jobs) or since_s <= 0:
            return happened
        at = truth.records[jobs]
        lost_s = np.minimum(since_s, self.cost_s[jobs] + np.where(mate[jobs] >= 0, self.cost_s[mate[jobs]], 0.0))
        at["steps"] = truth.steps_now(jobs) - lost_s * speed[jobs]
        at["since_s"] = truth.now_s
        at["next_s"] = truth.now_s + (at["until_steps"] - at["steps"]) / at["speed"]
        truth.records[jobs] = at
        rows = events(len(jobs))
        rows["time_s"], rows["kind"], rows["job"] = truth.now_s, Kind.PROGRESSED, jobs
        rows["value"], rows["speed"] = at["steps"], at["speed"]
        return joined([happened, rows])


def rows(folder: Path, *, traces: tuple[str, ...] = TRACES) -> Iterator[Agreement]:
    """Return a row for each policy: job by job, and against the published means."""
    with tempfile.TemporaryDirectory() as scratch:
        place = copied(folder, "simulator", Path(scratch))
        for policy in OURS:
            ours: dict[str, dict[str, float]] = {}
            cpu_s = dict[str, float]()
            for trace in traces:
                ours[trace], cpu_s[trace] = _ours(place, trace, policy)
                if trace in BY_JOB:
                    yield _by_job(place, trace, policy, ours[trace], cpu_s[trace])
            yield _published(place, policy, ours, sum(cpu_s.values()))
        for policy in PAIRS:
            yield _in_pairs(place, policy)


def _in_pairs(place: Path, policy: str) -> Agreement:
    """Return how far Muri with two jobs on a GPU agrees with its simulator on the first of `BY_JOB`."""
    name, known = PAIRS[policy]
    theirs, their_cpu_s = _theirs(place, BY_JOB[0], policy, "--packing_num=2", "--noautopack")
    jobs, cost_s, table = read(place, BY_JOB[0])
    stages_s = np.array([[float(row[f"resource_time_{i}"]) / 1000 for i in range(3)] for row in table])
    speed = Interleaved(jobs, cluster(), stages_s=stages_s)
    ours, cpu_s = _run(jobs, cost_s, speed, MuriAsPublished(jobs, stages_s, known=known))
    equal, n, gap = agreement(theirs, ours)
    our_s, their_s = (np.mean(list(jct.values())) for jct in (ours, theirs))
    note = f"{name}, two jobs on a GPU: mean JCT {our_s / their_s - 1:+.2%}; theirs matches exactly"
    return Agreement(
        "muri", f"{BY_JOB[0]} 8x8", f"{policy} = muri(known={known})", equal, n, gap, their_cpu_s, cpu_s, note
    )


def _by_job(place: Path, trace: str, policy: str, ours: Mapping[str, float], cpu_s: float) -> Agreement:
    theirs, their_cpu_s = _theirs(place, trace, policy)
    equal, n, gap = agreement(theirs, ours)
    setting = f"{policy}, yarn = {OURS[policy][1]}, {OURS[policy][2]}"
    return Agreement("muri", f"{trace} 8x8", setting, equal, n, gap if equal < n else 0.0, their_cpu_s, cpu_s)


def _published(place: Path, policy: str, ours: Mapping[str, Mapping[str, float]], cpu_s: float) -> Agreement:
    """Return how many of its published means, makespans and 99th percentiles are ours, by `WITHIN` of each."""
    name, gaps = OURS[policy][0], []
    arrival_s = {trace: _arrivals(place, trace) for trace in ours}
    for what in ("JCT", "Makespan", "99JCT"):
        for trace, published in zip(TRACES, figures(place)[f"{name}_{what}_raw"], strict=True):
            if trace in ours:
                mine = np.array(list(ours[trace].values()))
                end_s = max(jct_s + arrival_s[trace][job] for job, jct_s in ours[trace].items())
                p99_s = np.sort(mine)[int(len(mine) * 0.99)]
                value = {"JCT": mine.mean(), "Makespan": end_s, "99JCT": p99_s}[what]
                gaps.append(float(value / published - 1))
    near = sum(abs(gap) <= WITHIN for gap in gaps)
    setting = f"{policy}: published mean, makespan and p99, within {WITHIN:g} of each"
    gap = 100 * max(gaps, key=abs)
    return Agreement("muri", f"{len(ours)} traces 8x8", setting, near, len(gaps), gap, ours_cpu_s=cpu_s, unit="%")


def figures(place: Path) -> dict[str, list[float]]:
    """Return the lists of its plots, by name."""
    text = (place / "draw_fig9-10.py").read_text()
    return {name: ast.literal_eval(values) for name, values in re.findall(r"^(\w+_raw) = (\[.*\])", text, re.M)}


def costs(place: Path) -> dict[tuple[int, str], float]:
    """Return the seconds that an event costs a job, by GPUs and model, as its program has them."""
    found = re.findall(r"^overhead_dict\[(\d+)\] = (\{.*\})", (place / "run_sim.py").read_text(), re.M)
    return {(int(n), model): float(s) for n, table in found for model, s in ast.literal_eval(table).items()}


def cluster() -> Cluster:
    """Return its 8 machines of 8 GPUs, on which only GPUs count."""
    return no_network(8, servers=Server("node", sockets=((8, 10_000, 1_000_000),)))


def read(place: Path, trace: str, *, consolidate: str = "wait") -> tuple[Jobs, Floats, list[dict[str, str]]]:
    """Return the jobs of a trace, the seconds that an event costs each, and its rows."""
    table, cost = _table(place, trace), costs(place)
    steps = np.array([float(row["iterations"]) for row in table])
    step_s = np.array([float(row["iteration_time"]) * ITERATION / 1000 for row in table])
    jobs = Jobs.of(
        name=trace, id=[row["job_id"] for row in table], arrival_s=[float(row["submit_time"]) / 1000 for row in table],
        total_steps=steps, duration_s=steps * step_s, n_workers=[int(row["num_gpu"]) for row in table],
        consolidate=consolidate,
    )  # fmt: skip
    return jobs, np.array([cost[int(row["num_gpu"]), row["model_name"]] for row in table]), table


def _table(place: Path, trace: str) -> list[dict[str, str]]:
    with (place / "trace-data" / f"{trace}.csv").open() as file:
        return sorted(csv.DictReader(file), key=lambda row: float(row["submit_time"]))


def _arrivals(place: Path, trace: str) -> dict[str, float]:
    return {row["job_id"]: float(row["submit_time"]) / 1000 for row in _table(place, trace)}


def _ours(place: Path, trace: str, policy: str) -> tuple[dict[str, float], float]:
    """Return the JCT of each job in ours, and its CPU seconds."""
    _, name, how = OURS[policy]
    jobs, cost_s, _ = read(place, trace, consolidate=how)
    scheduler: Scheduler = make(name) if how == "split" else make(name, placer=FirstFit())
    return _run(jobs, cost_s, Recorded(jobs, cluster()), scheduler)


def _run(jobs: Jobs, cost_s: Floats, speed: SpeedModel, scheduler: Scheduler) -> tuple[dict[str, float], float]:
    """Return the JCT of each job on its cluster, and CPU seconds."""
    backend = LosesAtEvents(jobs, cluster(), speed=speed)
    backend.cost_s = cost_s
    began = time.process_time()
    told = Session(backend, cadence=Cadence.published("muri")).run(scheduler)
    cpu_s = time.process_time() - began
    done = told[told["kind"] == Kind.COMPLETED]
    jct_s = done["time_s"] - jobs.arrival_s[done["job"]]
    return {jobs.id[job]: float(s) for job, s in zip(done["job"].tolist(), jct_s, strict=True)}, cpu_s


def _theirs(place: Path, trace: str, policy: str, *more: str) -> tuple[dict[str, float], float]:
    """Return the JCT of each job in their simulator, and its CPU seconds."""
    options = {
        "cluster_spec": "cluster_spec/n8g8.csv", "scheme": "yarn", "trace_file": f"trace-data/{trace}.csv",
        "schedule": policy, "log_path": "log", "multi_resource": 4,
    }  # fmt: skip
    (place / "log").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", START, "run_sim.py", *(f"--{key}={value}" for key, value in options.items()), *more],
        cwd=place, check=True, capture_output=True, text=True,
    )  # fmt: skip
    with (place / "log" / "job.csv").open() as file:
        return {row["job_id"]: float(row["JCT"]) for row in csv.DictReader(file)}, float(done.stderr.splitlines()[-1])
