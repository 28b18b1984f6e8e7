"""Pollux' simulator [1]_ beside ours: what it published of its Tiresias and Optimus, job by job, and of its search.

Theirs is `results-jobload/*/summary.json` of its artifact (github.com/petuum/adaptdl, branch osdi21-artifact), which
tells the JCT of each job of each workload. Its truth, step times and gradient noise, is read from there too. Its own
program needs packages that are not made for today's Python: the CPU seconds are those of its Tiresias and Optimus with
the names put back that numpy and pandas dropped, and without the fits, which these two do not read.

.. [1] Qiao et al., "Pollux: co-adaptive cluster scheduling for goodput-optimized deep learning", OSDI 2021.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

import labkit
from benchmarks.foreign import Agreement, agreement, copied
from labkit.core import Cluster, Scheduler
from labkit.schedulers.pollux.oracle import PolluxOptimus
from labkit.simulator import Overheads
from labkit.speed.goodput import Application, Goodput, read_applications, read_workload
from labkit.topology import no_network
from labkit.topology.servers import Server

BRANCH: Final = "c793c70"
"""The head of osdi21-artifact."""
LOADS: Final = {1.0: "workloads", 0.5: "workloads-0.5", 1.5: "workloads-1.5", 2.0: "workloads-2.0"}
WORKLOADS: Final = range(1, 9)
TIMED: Final = "workload-6"
RESTART: Final = Overheads(start_s=30.0, restart_s=30.0, rescale_s=30.0)
NCF_BATCH: Final = 32_768.0
SEARCH_WITHIN: Final = 0.05
SHIM: Final = """
import sys, time, types
import numpy, pandas
numpy.int, numpy.float = int, float
pandas.DataFrame.append = lambda self, other, ignore_index: pandas.concat([self, other], ignore_index=ignore_index)
class Missing(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        return type(name, (), {})
for name in ("autograd", "pymoo", "pymoo.model", "pymoo.model.problem", "pymoo.model.crossover",
             "pymoo.model.mutation", "pymoo.model.repair", "pymoo.optimize", "pymoo.algorithms",
             "pymoo.algorithms.nsga2", "pymoo.operators", "pymoo.operators.crossover",
             "pymoo.operators.crossover.util", "pymoo.util", "pymoo.util.nds",
             "pymoo.util.nds.non_dominated_sorting"):
    sys.modules[name] = Missing(name)
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, sys.modules[name])
import simulator, tiresias
simulator.fit_perf_params = lambda *_: None
simulator.Job.get_speedup_fn = lambda self: None
simulator.print = tiresias.print = lambda *_: None
began = time.process_time()
simulator.simulate(types.SimpleNamespace(
    workload=sys.argv[2], policy=sys.argv[1], min_nodes=16, max_nodes=None, num_gpus=4, interval=60, interference=0.0,
    low_util=None, high_util=None, output=None))
sys.stderr.write(str(time.process_time() - began))
"""


def rows(folder: Path, *, loads: tuple[float, ...] = (1.0,), only: tuple[str, ...] = ()) -> Iterator[Agreement]:
    """Return a row for each policy and load."""
    with tempfile.TemporaryDirectory() as scratch:
        place = copied(folder, "simulator", Path(scratch), at=BRANCH)
        applications = read_applications(place / "traces")
        for load in loads:
            for policy in only or ("tiresias", "optimus", "pollux"):
                yield _row(place, applications, policy, load)


def _row(place: Path, applications: Mapping[str, Application], policy: str, load: float) -> Agreement:
    published = json.loads((place / f"results-jobload/{policy}-{load}/summary.json").read_text())
    theirs, ours, cpu_s = {}, {}, 0.0
    for n in WORKLOADS:
        name = f"workload-{n}"
        theirs |= {f"{n} {job}": float(jct_s) for job, jct_s in published["jcts"][name].items()}
        mine, took_s = _ours(place / LOADS[load] / f"{name}.csv", applications, policy)
        ours |= {f"{n} {job}": jct_s for job, jct_s in mine.items()}
        cpu_s += took_s / len(WORKLOADS)
    equal, n_jobs, gap = agreement(theirs, ours)
    their_s, our_s = (float(np.mean(list(jct.values()))) for jct in (theirs, ours))
    note = f"mean JCT {our_s:,.2f} s, theirs {their_s:,.2f}; CPU of one workload"
    trace, told = f"8 workloads x{load:g}", {"tiresias": "tiresias(published='pollux')"}.get(policy, policy)
    if policy == "pollux":  # their search draws without a seed, so only its mean can be compared
        near = abs(our_s / their_s - 1) <= SEARCH_WITHIN
        note = f"theirs draws without a seed: within {SEARCH_WITHIN:.0%} counts; {note}"
        return Agreement(
            "pollux", trace, f"mean JCT of {policy}", int(near), 1, our_s - their_s, ours_cpu_s=cpu_s, note=note
        )
    return Agreement(
        "pollux", trace, f"{policy}, rounds of 60 s = {told}", equal, n_jobs, gap if equal < n_jobs else 0.0,
        _their_cpu_s(place, policy) if load == 1 else float("nan"), cpu_s, note,
    )  # fmt: skip


def cluster() -> Cluster:
    """Return their 16 machines of 4 GPUs, on which only GPUs count."""
    return no_network(16, servers=Server("node", sockets=((4, 1_000, 10_000),)))


def _ours(path: Path, applications: Mapping[str, Application], policy: str) -> tuple[dict[str, float], float]:
    """Return the JCT of each job in ours, and its CPU seconds."""
    jobs, batch = read_workload(path, applications, adaptive=policy == "pollux")
    began = time.process_time()
    speed = Goodput(jobs, cluster(), applications=applications, batch=batch, round_s=1.0)
    schedulers: dict[str, Any] = {"tiresias": "tiresias(published='pollux')", "pollux": "pollux"}
    scheduler: Scheduler | str = schedulers.get(policy) or PolluxOptimus(published=True, truth=speed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = labkit.simulate(
            jobs, cluster=cluster(), speed=speed, scheduler=scheduler, cadence="pollux", overheads=RESTART
        ).table
    return dict(zip(table["id"], table["jct_s"], strict=True)), time.process_time() - began


def _their_cpu_s(place: Path, policy: str) -> float:
    """Return the CPU seconds of their simulator for one workload; NaN where it does not run."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHIM, policy, f"workloads/{TIMED}.csv"],
        cwd=place, check=False, capture_output=True, text=True,
    )  # fmt: skip
    try:
        return float(done.stderr.splitlines()[-1])
    except (ValueError, IndexError):
        return float("nan")
