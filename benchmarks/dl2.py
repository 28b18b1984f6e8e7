"""DL2's policy: milliseconds of a whole slot of decisions, whether torch is loaded for them, and how long training is.

python -m benchmarks dl2
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

from benchmarks import Row, size
from labkit.core import Jobs, Scheduler, Snapshot
from labkit.experiment import Experiment, Session, every_slot
from labkit.experiment.caveats import Caveat
from labkit.schedulers import make
from labkit.schedulers.dl2 import Weights, load
from labkit.schedulers.dl2.drafts import draft_of
from labkit.schedulers.dl2.network import Net
from labkit.schedulers.dl2.policy import BEST, DecisionRecord, decide, record
from labkit.workloads import dl2_jobs

COMMAND = "python -m benchmarks dl2"
SLOT_S = 1200.0
NODES, MANY_NODES = 48, 500
LONG = 1e4
"""So many times as long as they are, jobs stay for all slots."""
COLUMNS = ("steps_per_epoch", "max_workers", "max_ps", "worker_demand", "ps_demand")
GOOD = 0.95
"""Of a fitted Optimus' mean JCT: what a policy has to reach on 16 nodes. On the smooth speeds an oracle is at 0.947."""
N_CALLS, N_SLOTS = size(100, short=3), size(45, short=3)


def rows() -> list[Row]:
    """Return how long decisions take beside what else would decide, what they load, and how long training is."""
    many = size(1000, short=50)
    crowded, roomy = _rows(many, goal=20.0), _rows(many, goal=20.0, n_nodes=size(MANY_NODES, short=48))
    return [*_rows(40, goal=1.0), *crowded, *roomy, _torch(), *_training()]


def _rows(n_jobs: int, *, goal: float, n_nodes: int = NODES) -> list[Row]:
    snapshot, weights = _session(n_jobs, n_nodes).snapshot(), load("dl2")
    replayed = _kept(snapshot, weights)
    took = {
        "dl2(fallback=None)": (_median_ms(_deciding("dl2(fallback=None)", snapshot)), goal),
        "dl2, watched, slot after slot": (_slots_ms("dl2", n_jobs, n_nodes), goal),
        "optimus": (_median_ms(_deciding("optimus", snapshot)), None),
        "drf": (_median_ms(_deciding("drf", snapshot)), None),
        "numpy, only the network of dl2, row by row": (_median_ms(lambda: replay(weights.net, *replayed)), None),
    }
    what = f"{n_jobs} jobs, {n_nodes} nodes"
    return [
        Row(f"a slot's decisions, {what}: {name}", round(ms, 3), "ms", limit, False, COMMAND)
        for name, (ms, limit) in took.items()
    ]


def _session(n_jobs: int, n_nodes: int) -> Session:
    """Return a session in which some jobs are there from the beginning, and stay."""
    several = [dl2_jobs("short_48n", seed=seed) for seed in range(-(-n_jobs // 60))]
    column = {name: np.concatenate([getattr(jobs, name) for jobs in several])[:n_jobs] for name in COLUMNS}
    steps, run_s = (
        LONG * np.concatenate([getattr(jobs, name) for jobs in several])[:n_jobs]
        for name in ("total_steps", "duration_s")
    )
    model = [jobs.models[m] for jobs in several for m in jobs.model][:n_jobs]
    jobs = Jobs.of(
        arrival_s=np.zeros(n_jobs), model=model, n_workers=1, n_ps=1, samples_per_step=1, total_steps=steps,
        duration_s=run_s, **column,
    )  # fmt: skip
    made = Experiment.of(jobs, cluster=f"dl2-{n_nodes}n", cadence=every_slot(SLOT_S))
    return Session(made.simulator(), cadence=every_slot(SLOT_S))


def _deciding(name: str, snapshot: Snapshot) -> Callable[[], object]:
    scheduler: Scheduler = make(name)
    return lambda: scheduler.schedule(snapshot)


def _median_ms(act: Callable[[], object]) -> float:
    act()  # compiled, or loaded
    took_s = []
    for _ in range(N_CALLS):
        began_s = time.perf_counter()
        act()
        took_s.append(time.perf_counter() - began_s)
    return 1e3 * statistics.median(took_s)


def _slots_ms(name: str, n_jobs: int, n_nodes: int) -> float:
    """Return the median of a run's slots: what a scheduler that watches takes in is new each time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        session, scheduler, took_s = _session(n_jobs, n_nodes), make(name), []
        for _ in range(N_SLOTS):
            snapshot = session.snapshot()
            began_s = time.perf_counter()
            placement = scheduler.schedule(snapshot)
            took_s.append(time.perf_counter() - began_s)
            session.step(placement)
    return 1e3 * statistics.median(took_s)


def _kept(snapshot: Snapshot, weights: Weights) -> tuple[DecisionRecord, np.ndarray]:
    """Return what dl2 decides, and the model of each job."""
    batch, n = draft_of(snapshot, weights.models), len(snapshot.jobs)
    kept = record(1, n_jobs=n, n_features=len(weights.net.seen), actions_per_slot=int(batch.most[0].sum()) + n + 1)
    decide(batch, 0, weights.slot_s, weights.net, BEST._replace(keeps=True), kept, np.random.default_rng(0))
    return kept, batch.job[0]["model"]


def replay(net: Net, kept: DecisionRecord, model: np.ndarray) -> None:
    """Evaluate the same rows, and find the same actions, as one writes it with numpy.

    Raises
    ------
    AssertionError
        If an action that was kept is not the best by more than rounding.
    """
    n = int(kept.n[0])
    before, worth, at = net.bias + kept.features[:n] @ net.seen, np.zeros((int(kept.n[1]), 3), np.float32), 0
    for step in range(int(kept.n[2])):
        newest = int(kept.row[step].max())
        for row in range(at, newest + 1):
            worth[row] = _worth(net, before[kept.job[row]], model[kept.job[row]], kept.n_ps[row], kept.n_workers[row])
        at = newest + 1
        worths = np.append(worth[kept.row[step, :n]].ravel(), net.stop)
        best = np.where(kept.mask[step], worths, -np.inf).max()
        if best > worths[kept.action[step]] + 1e-4:
            raise AssertionError(f"action {kept.action[step]} of step {step} is not the best")


def _worth(net: Net, before: np.ndarray, model: int, n_ps: int, n_workers: int) -> np.ndarray:
    held = np.array([n_ps / 16, n_workers / 16, n_ps**0.5 / 4, n_workers**0.5 / 4, n_ps == 0, n_workers == 0])
    one = np.maximum(before + held.astype(np.float32) @ net.held[model], 0)
    found: np.ndarray = np.maximum(one @ net.middle + net.middle_bias, 0) @ net.worth + net.worth_bias
    return found


def _torch() -> Row:
    """Tell whether torch is loaded by a run with the policy."""
    code = (
        "import sys; from labkit.experiment import Experiment; from labkit.workloads import dl2_jobs; "
        "Experiment.of(dl2_jobs('testbed_6n', seed=1), cluster='dl2-6n').run('dl2'); print(int('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return Row("dl2 loads torch to decide", int(done.stdout), "(1: yes)", 0, False, COMMAND)


def _training() -> list[Row]:
    """Train for 16 nodes, on the speeds that ship, by the default recipe; judge on seeds that it has not met."""
    import torch

    from labkit.learning.dl2 import Recipe, Trainer, mean_jct
    from labkit.learning.settings import Setting

    torch.set_num_threads(1)
    trace, cluster = "dl2_jobs('short_48n', pattern='google')", "dl2-16n"

    def experiment(seed: int) -> Experiment:
        jobs = dl2_jobs("short_48n", seed=seed, pattern="google")
        return Experiment.of(jobs, cluster=cluster, cadence=every_slot(SLOT_S))

    seeds = range(1, size(20, short=1) + 1)
    optimus = np.mean([experiment(seed).run("optimus").summary["mean_jct_s"] / SLOT_S for seed in seeds])
    recipe = Recipe(n_lessons=size(180, short=1), n_rounds=size(40, short=1), n_envs=size(16, short=2))
    setting = Setting([cluster], [trace])
    trainer = Trainer(setting, models=setting.models(), slot_s=SLOT_S, recipe=recipe)
    good_s, share = [], np.inf
    for update in trainer.updates():
        if trainer.n_done % 10 == 0 or trainer.n_done == trainer.n_updates:
            share = float(mean_jct(trainer.weights(""), experiment, seeds).mean() / optimus)
            good_s += [update.cpu_s] if share <= GOOD else []
    told = [
        Row("dl2: a whole training for 16 nodes", round(update.cpu_s), "CPU s", 300.0, False, COMMAND),
        Row("dl2: mean JCT after it, over that of optimus", round(share, 3), "x", GOOD, False, COMMAND),
        Row("dl2: slots learned from", round(trainer.slots / update.cpu_s), "slots/CPU s", None, True, COMMAND),
    ]
    if good_s:  # else the row above tells that it was not reached
        told.append(Row(f"dl2: training until {GOOD} of optimus", round(good_s[0]), "CPU s", 300.0, False, COMMAND))
    return told
